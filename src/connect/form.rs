//! `Form`: the fields of a sent form, and their outcome.

use maud::Markup;
use url::form_urlencoded;

use crate::grants::authorization::StartedAuthorization;
use crate::vault::GrantRecord;

/// The members of a form.
pub(super) struct Form(Vec<(String, String)>);

impl Form {
    pub(super) fn read(body: &[u8]) -> Self {
        Self(form_urlencoded::parse(body).into_owned().collect())
    }

    /// Empty where it is not there.
    pub(super) fn value(&self, name: &str) -> &str {
        let found = self.0.iter().find(|(found, _)| found == name);
        found.map_or("", |(_, value)| value)
    }
}

/// What a page shows of the form.
#[derive(Debug)]
pub(super) struct FormParts {
    /// What is done with what is connected; where there are no fields, why not.
    pub(super) promise: &'static str,
    /// What stands above the button; `None` where nothing can be connected now.
    pub(super) fields: Option<Markup>,
}

/// What a sent form leads to.
#[derive(Debug)]
pub(super) enum Submitted {
    /// The record is kept, in place of an older one.
    Keep(Box<GrantRecord>),
    /// The browser goes on to an authorization server.
    GoOn(Box<StartedAuthorization>),
    /// Nothing: why, in words for the person.
    Refused(&'static str),
    /// Nothing, by no fault of the person: the part of a sentence that says why.
    Failed(&'static str),
}
