//! `Form`: the fields of a sent form, and their outcome.

use maud::{Markup, html};
use url::form_urlencoded;

use crate::grants::authorization::StartedAuthorization;
use crate::vault::GrantRecord;

/// The action of a form that connects, and says that the server refused the scopes of the last attempt.
pub(super) const SCOPES_REFUSED: &str = "refused";

/// The fields of a submitted form.
pub(super) struct Form(Vec<(String, String)>);

impl Form {
    pub(super) fn read(body: &[u8]) -> Self {
        Self(form_urlencoded::parse(body).into_owned().collect())
    }

    /// The value of a field; empty where the field is missing.
    pub(super) fn value(&self, name: &str) -> &str {
        let found = self.0.iter().find(|(found, _)| found == name);
        found.map_or("", |(_, value)| value)
    }

    /// Whether the person says that the server refused the scopes of the last attempt.
    pub(super) fn says_refused(&self) -> bool {
        self.value("action") == SCOPES_REFUSED
    }
}

/// The button with the action [`SCOPES_REFUSED`], for a person who was sent to a server and did not come back.
pub(super) fn refused_button() -> Markup {
    html! {
        p {
            "You were sent there before, and have not come back. If that server showed you an error about scopes, such as "
            code { "invalid_scope" }
            ", say so, and the gateway asks in another way:"
        }
        button name="action" value=(SCOPES_REFUSED) { "Go on, it refused the scopes" }
    }
}

/// The form's part of a page.
#[derive(Debug)]
pub(super) struct FormParts {
    /// How the credential is handled; without `fields`, why there is no form.
    pub(super) promise: &'static str,
    /// The fields above the button; `None` where no account can be connected now.
    pub(super) fields: Option<Markup>,
}

/// Outcome of a submitted form.
#[derive(Debug)]
pub(super) enum Submitted {
    /// Store the record, replacing an older one.
    Keep(Box<GrantRecord>),
    /// Send the browser to an authorization server.
    GoOn(Box<StartedAuthorization>),
    /// Not connected, for a reason that the person can solve; in words for the person.
    Refused(&'static str),
    /// Not connected, for another reason: part of a sentence for the person.
    Failed(&'static str),
}
