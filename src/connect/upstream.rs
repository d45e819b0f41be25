//! `ConnectedUpstream`: an upstream where persons connect accounts, and its method.

use std::sync::Arc;

use super::authorize::AuthorizeForm;
use super::browser::Browser;
use super::form::{Form, FormParts, Submitted};
use super::kept_login;
use super::login::Logins;
use super::person::Person;
use super::user_key::KeyForm;
use crate::config::{CarrierConfig, UpstreamAuth, UpstreamConfig};
use crate::consent::ConsentLink;
use crate::grants::authorization::GatewayClient;
use crate::grants::{TokenFailure, UserTokens, login_name};
use crate::vault::GrantKey;

/// An upstream with a connect page.
#[derive(Debug)]
pub(super) struct ConnectedUpstream {
    pub(super) name: Arc<str>,
    /// Host of the upstream; of a child its program.
    place: String,
    /// Whether its account is a person's kept login.
    keeps_login: bool,
    pub(super) method: ConnectMethod,
}

/// How an account is connected. Each method has its own form fields.
#[derive(Debug)]
pub(super) enum ConnectMethod {
    /// The person pastes a key.
    Key(KeyForm),
    /// The person authorizes the gateway at an authorization server.
    Authorize(AuthorizeForm),
    /// The person's login is kept, for all upstreams that want it.
    Login,
    /// No account is used, for this reason: an older one can be disconnected.
    Withheld(&'static str),
}

impl ConnectedUpstream {
    /// `None` for an upstream without accounts of persons. `withheld` says why its accounts are not used; `tokens` are those
    /// of all upstreams of kind `user`.
    pub(super) fn of(
        upstream: &UpstreamConfig,
        withheld: Option<&TokenFailure>,
        (tokens, gateway): (&[Arc<UserTokens>], &Arc<GatewayClient>),
    ) -> Option<Self> {
        let (carrier, auth) = (&upstream.carrier, upstream.auth.as_ref()?);
        let method = match (auth, withheld) {
            (UpstreamAuth::Gateway(_), _) => return None,
            (_, Some(failure)) => ConnectMethod::Withheld(failure.public()),
            (UpstreamAuth::UserKey(config), None) => {
                ConnectMethod::Key(KeyForm::new(config, carrier))
            }
            (UpstreamAuth::User(_), None) => {
                let mut tokens = tokens.iter();
                let of_it = tokens.find(|one| **one.account().upstream() == *upstream.name)?;
                ConnectMethod::Authorize(AuthorizeForm::new(of_it, gateway))
            }
            (UpstreamAuth::Login(_), None) => ConnectMethod::Login,
        };
        Some(Self {
            name: upstream.name.as_str().into(),
            place: match carrier {
                CarrierConfig::Http(http) => http.url.host_str().unwrap_or_default().to_owned(),
                CarrierConfig::Stdio(stdio) => format!("program {}", stdio.program()),
            },
            keeps_login: matches!(auth, UpstreamAuth::Login(_)),
            method,
        })
    }

    /// Host of the upstream; of a child its program.
    pub(super) fn host(&self) -> &str {
        &self.place
    }

    /// The key of the grant of `person` in the vault.
    pub(super) fn key(&self, person: &Person) -> GrantKey {
        match person.issuer() {
            Some(issuer) if self.keeps_login => GrantKey::new(person.owner(), &login_name(issuer)),
            _ => GrantKey::new(person.owner(), &self.name),
        }
    }

    /// The form's part of the page of `person`, which was opened by `link`; `logins` tell what a login that is kept asks for.
    pub(super) async fn parts(
        &self,
        person: &Person,
        (link, logins): (Option<&ConsentLink>, Option<&Logins>),
    ) -> FormParts {
        match &self.method {
            ConnectMethod::Key(form) => form.parts(),
            ConnectMethod::Authorize(form) => form.parts(&self.key(person), link).await,
            ConnectMethod::Login => {
                let preview = match logins {
                    Some(logins) => logins.preview_kept(person, &self.name).await,
                    None => None,
                };
                kept_login::parts(person.issuer().unwrap_or_default(), preview.as_ref())
            }
            ConnectMethod::Withheld(why) => FormParts {
                promise: why,
                fields: None,
            },
        }
    }

    /// The outcome of a submitted form whose token is valid; `None` where a login has to start.
    pub(super) async fn submitted(
        &self,
        form: &Form,
        key: &GrantKey,
        by: (&Browser<'_>, Option<&ConsentLink>),
    ) -> Option<Submitted> {
        Some(match &self.method {
            ConnectMethod::Key(pasted) => pasted.submitted(form),
            ConnectMethod::Authorize(authorize) => authorize.submitted(form, key, by).await,
            ConnectMethod::Login => return None,
            ConnectMethod::Withheld(why) => Submitted::Failed(why),
        })
    }
}
