//! `Form`: the fields of a sent form, and their outcome.

use url::form_urlencoded;

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

/// What a sent form leads to.
#[derive(Debug)]
pub(super) enum Submitted {
    /// The record is kept, in place of an older one.
    Keep(Box<GrantRecord>),
    /// Nothing: why, in words for the person.
    Refused(&'static str),
}
