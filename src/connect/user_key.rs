//! Kind `user_key`: a person pastes a key, which is stored sealed with the URL and the header that it is for, or with the
//! program and the variable of a child.

use http::HeaderMap;
use maud::html;

use super::form::{Form, FormParts, Submitted};
use crate::config::{CarrierConfig, UserKeyConfig};
use crate::grants::PlacedToken;
use crate::secret::Secret;
use crate::vault::{GrantKind, GrantRecord, TokenPlacement};

/// The longest key, in bytes.
const MAX_KEY: usize = 8 * 1024;

/// The text of the page before a key is pasted.
const PROMISE: &str = "The key is kept encrypted, and sent to this server alone, with the calls of this \
     gateway account. Go on only if you began this yourself.";

/// The form that a key is pasted into.
#[derive(Debug)]
pub(super) struct KeyForm {
    config: UserKeyConfig,
    /// The URL that the key is sent to, or the program of a child.
    resource: String,
}

impl KeyForm {
    pub(super) fn new(config: &UserKeyConfig, carrier: &CarrierConfig) -> Self {
        Self {
            config: config.clone(),
            resource: carrier.key_resource(),
        }
    }

    /// The form's part of the page.
    pub(super) fn parts(&self) -> FormParts {
        FormParts {
            promise: PROMISE,
            fields: Some(html! {
                label for="key" { (self.config.label) }
                input id="key" name="key" type="password" required autocomplete="off" spellcheck="false";
                @if let Some(help) = &self.config.help {
                    p { "Get one at " a href=(help) rel="noreferrer" { (help) } }
                }
            }),
        }
    }

    /// The record of a pasted key, without surrounding white space.
    pub(super) fn submitted(&self, form: &Form) -> Submitted {
        let key = form.value("key").trim();
        if key.is_empty() {
            return Submitted::Refused("There was no key in the form.");
        }
        if key.len() > MAX_KEY {
            return Submitted::Refused("The key is longer than 8 KiB.");
        }
        let secret = Secret::new(key);
        let placed = PlacedToken::new(&HeaderMap::new(), &self.config.place, &secret);
        if !key.is_ascii() || placed.is_none() {
            return Submitted::Refused(
                "The key has characters that cannot be sent. Copy it again, alone.",
            );
        }
        Submitted::Keep(Box::new(GrantRecord {
            kind: GrantKind::UserKey,
            issuer: String::new(),
            token_endpoint: None,
            revocation_endpoint: None,
            resource: self.resource.clone(),
            client_id: None,
            auth_method: None,
            placement: TokenPlacement::of(&self.config.place),
            scopes: Vec::new(),
            requested: Vec::new(),
            account: None,
            access_token: Some(secret),
            access_ends: None,
            refresh_token: None,
        }))
    }
}
