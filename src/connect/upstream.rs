//! `ConnectedUpstream`: an upstream that persons connect accounts at, and how.

use std::sync::Arc;

use url::Url;

use super::form::{Form, Submitted};
use super::user_key::KeyForm;
use crate::config::{CarrierConfig, UpstreamAuth, UpstreamConfig};

/// An upstream with a page.
#[derive(Debug)]
pub(super) struct ConnectedUpstream {
    pub(super) name: Arc<str>,
    /// Where what is kept is sent.
    url: Url,
    pub(super) method: ConnectMethod,
}

/// How an account is connected. Each has its own fields in the form, and makes its own use of a sent one.
#[derive(Debug)]
pub(super) enum ConnectMethod {
    /// A key is pasted.
    Key(KeyForm),
}

impl ConnectedUpstream {
    /// `None` for an upstream without accounts of persons.
    pub(super) fn of(upstream: &UpstreamConfig) -> Option<Self> {
        let CarrierConfig::Http(http) = &upstream.carrier else {
            return None;
        };
        let method = match upstream.auth.as_ref()? {
            UpstreamAuth::UserKey(config) => ConnectMethod::Key(KeyForm::new(config, &http.url)),
            UpstreamAuth::Gateway(_) => return None,
        };
        Some(Self {
            name: upstream.name.as_str().into(),
            url: http.url.clone(),
            method,
        })
    }

    /// The host of its server.
    pub(super) fn host(&self) -> &str {
        self.url.host_str().unwrap_or_default()
    }

    /// What a sent form, whose token is good, leads to.
    pub(super) fn submitted(&self, form: &Form) -> Submitted {
        match &self.method {
            ConnectMethod::Key(key) => key.submitted(form),
        }
    }
}
