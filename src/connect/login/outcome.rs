//! How a login ends.

use http::HeaderValue;

use super::begun::NextPage;
use super::person_cookie;
use crate::connect::person::Person;

/// The end of a login: what became of it, and what the browser has to know. No `Debug`: it holds cookies.
pub(crate) struct LoginEnd {
    /// What became of it.
    pub(crate) outcome: LoginOutcome,
    /// Cookies that are set or removed.
    pub(crate) cookies: Vec<HeaderValue>,
}

/// What became of a login.
#[derive(Debug)]
pub(crate) enum LoginOutcome {
    /// This is who it was; the page to go on with.
    Done(NextPage),
    /// The browser does not have the cookie of the login: it is another one, it is too late, or it was answered already.
    NoCookie,
    /// The issuer, or the person there, said no.
    Refused {
        /// The error of the answer, if it is one that RFCs name.
        error: Option<&'static str>,
        /// The page to go on with.
        next: NextPage,
    },
    /// It did not work; the log says why.
    Failed(NextPage),
}

impl LoginOutcome {
    /// One word for metrics.
    pub(crate) fn word(&self) -> &'static str {
        match self {
            Self::Done(_) => "ok",
            Self::NoCookie => "no_cookie",
            Self::Refused { .. } => "refused",
            Self::Failed(_) => "failed",
        }
    }
}

/// Takes the login from the browser.
pub(crate) fn log_out(person: &Person) -> Option<HeaderValue> {
    person.issuer()?;
    person_cookie::removed()
}
