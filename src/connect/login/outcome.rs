//! The outcome of a login.

use std::sync::Arc;

use http::HeaderValue;

use super::begun::NextPage;
use super::person_cookie;
use crate::call::{OwnerKey, Principal};
use crate::connect::person::Person;
use crate::vault::GrantRecord;

/// The outcome of a login, and the cookies for the browser. No `Debug`: it holds cookies.
pub(crate) struct LoginEnd {
    /// The outcome.
    pub(crate) outcome: LoginOutcome,
    /// Cookies to set or remove.
    pub(crate) cookies: Vec<HeaderValue>,
    /// Whether a login that was begun to be kept is kept.
    pub(crate) keeping: Option<LoginKeeping>,
    /// A login whose tokens nothing is going to use.
    pub(crate) unkept: Option<UnkeptLogin>,
}

/// A login that was begun to be kept and is refused, though the issuer gave its tokens.
#[derive(Debug)]
pub(crate) struct UnkeptLogin {
    /// The person that it is of; where that could not be verified, the one whose login was to be kept.
    pub(crate) owner: OwnerKey,
    /// Its tokens.
    pub(crate) record: Box<GrantRecord>,
}

/// What became of a login that was begun to be kept.
#[derive(Debug)]
pub(crate) enum LoginKeeping {
    /// It is to be kept.
    Kept(KeptLogin),
    /// It is not.
    Refused(RefusedLogin),
}

/// A login that is to be kept.
#[derive(Debug)]
pub(crate) struct KeptLogin {
    /// Whose.
    pub(crate) person: Arc<Principal>,
    /// The tokens to keep.
    pub(crate) record: Box<GrantRecord>,
    /// The upstream whose page it was begun on.
    pub(crate) upstream: String,
    /// The link that was opened, sealed.
    pub(crate) link: Option<String>,
}

/// A login that is not kept.
#[derive(Debug)]
pub(crate) struct RefusedLogin {
    /// Whose was to be kept.
    pub(crate) owner: OwnerKey,
    /// Where.
    pub(crate) issuer: String,
    /// The upstream whose page it was begun on.
    pub(crate) upstream: String,
}

/// The outcome of a login.
#[derive(Debug)]
pub(crate) enum LoginOutcome {
    /// Logged in; the page to return to.
    Done(NextPage),
    /// The browser does not send the login's cookie: another browser started the login, it has expired, or it was
    /// answered already.
    NoCookie,
    /// The issuer refused, or the person declined there.
    Refused {
        /// The error of the answer, if the RFCs define it.
        error: Option<&'static str>,
        /// The page to return to.
        next: NextPage,
    },
    /// The issuer refused a login that was to be kept, maybe for the scope `offline_access`: the next one does without.
    OfflineRefused {
        /// The error of the answer.
        error: &'static str,
        /// The page to return to.
        next: NextPage,
    },
    /// The issuer names another person than the one whose login was to be kept.
    OtherPerson(NextPage),
    /// Failed; the log says why.
    Failed(NextPage),
}

impl LoginOutcome {
    /// One word for metrics.
    pub(crate) fn word(&self) -> &'static str {
        match self {
            Self::Done(_) => "ok",
            Self::NoCookie => "no_cookie",
            Self::Refused { .. } | Self::OfflineRefused { .. } => "refused",
            Self::OtherPerson(_) => "other_person",
            Self::Failed(_) => "failed",
        }
    }
}

/// The cookie that ends the login.
pub(crate) fn log_out(person: &Person) -> Option<HeaderValue> {
    person.issuer()?;
    person_cookie::removed()
}
