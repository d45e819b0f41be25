//! The connect pages: where a person gives the gateway an account at an upstream, and takes it back.
//!
//! `/connect` lists the visitor's accounts, `/connect/<upstream>` connects one. Opening a page changes nothing; only a
//! form does, which must come from the gateway's own origin with a token bound to a cookie. There are no scripts. How
//! an account is connected depends on the upstream's `upstream::ConnectMethod`.

mod authorize;
mod browser;
mod callback;
mod callback_fault;
mod cookies;
mod entry;
mod form;
mod kept_login;
mod layout;
mod login;
mod page_request;
mod person;
mod response;
mod upstream;
mod user_key;
mod views;

use std::collections::HashMap;
use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use bytes::Bytes;
use http::{Method, Response, StatusCode};
use url::{Url, form_urlencoded};

use self::browser::{Browser, FormRefusal};
use self::form::{Form, SCOPES_REFUSED, Submitted};
use self::login::Logins;
pub use self::login::ask_logins;
pub use self::page_request::PageRequest;
use self::person::Person;
use self::upstream::ConnectedUpstream;
use crate::audit::{AccountEvent, AccountRecord, AuditOutcome, AuditSink};
use crate::auth::Authenticator;
use crate::clock::SharedClock;
use crate::config::{AuthMode, Config};
use crate::consent::{ConsentLink, open_link};
use crate::database::DatabaseError;
use crate::endpoint::Endpoint;
use crate::grants::authorization::GatewayClient;
use crate::grants::{AccountSetupError, TokenFailure, UserTokens};
use crate::seal::Sealer;
use crate::telemetry::line_limit::LineLimit;
use crate::telemetry::metrics::LABELED;
use crate::vault::{ProgramRecord, StoredGrant, Vault};

/// The parts that the pages need.
#[derive(Debug)]
pub struct ConnectParts {
    /// The whole configuration.
    pub settings: Arc<Config>,
    /// Stores the accounts.
    pub vault: Vault,
    /// Takes the audit records of connected and disconnected accounts.
    pub audit: AuditSink,
    /// Seals cookies and form tokens, and opens links.
    pub sealer: Arc<Sealer>,
    /// The time of day.
    pub clock: SharedClock,
    /// The tokens of each upstream where persons authorize the gateway.
    pub tokens: Vec<Arc<UserTokens>>,
    /// The upstreams whose accounts are not used, and why.
    pub withheld: HashMap<Arc<str>, TokenFailure>,
    /// Identifies persons by the tokens of their logins.
    pub auth: Arc<Authenticator>,
    /// All endpoints.
    pub endpoints: Vec<Arc<Endpoint>>,
}

/// The connect pages.
#[derive(Debug)]
pub struct ConnectPages {
    parts: ConnectParts,
    /// Names of the upstreams, in configured order.
    names: Vec<Arc<str>>,
    upstreams: Vec<ConnectedUpstream>,
    origin: String,
    /// The gateway as a client of authorization servers.
    gateway: Arc<GatewayClient>,
    /// The logins of persons; `None` with `auth.mode = "none"`.
    logins: Option<Logins>,
    /// Limits log lines about callbacks that belong to no pending authorization, by `CallbackFault`.
    stray_callbacks: LineLimit,
}

/// One account on a page.
struct ShownAccount<'a> {
    upstream: &'a ConnectedUpstream,
    grant: Option<Arc<StoredGrant>>,
    /// The programs that used it.
    programs: Vec<ProgramRecord>,
}

impl ConnectPages {
    /// The pages of a checked configuration. Sends no request.
    ///
    /// # Errors
    /// The private key of a login cannot be used, or this machine has no trust anchors.
    pub fn new(parts: ConnectParts) -> Result<Arc<Self>, AccountSetupError> {
        let logins = match parts.settings.auth.mode {
            AuthMode::None => None,
            AuthMode::OAuth => Some(Logins::new(
                &parts.settings,
                &parts.endpoints,
                Arc::clone(&parts.auth),
                (Arc::clone(&parts.sealer), Arc::clone(&parts.clock)),
            )?),
        };
        let upstreams = parts.settings.upstreams.iter();
        let gateway = Arc::new(GatewayClient::new(&parts.settings.server.public_url));
        let made = (&*parts.tokens, &gateway);
        let upstreams: Vec<_> = upstreams
            .filter_map(|one| ConnectedUpstream::of(one, parts.withheld.get(&*one.name), made))
            .collect();
        Ok(Arc::new(Self {
            names: upstreams.iter().map(|one| Arc::clone(&one.name)).collect(),
            upstreams,
            origin: origin(&parts.settings.server.public_url),
            gateway,
            logins,
            stray_callbacks: LineLimit::default(),
            parts,
        }))
    }

    /// The upstreams that have a page.
    #[must_use]
    pub fn upstreams(&self) -> &[Arc<str>] {
        &self.names
    }

    /// Answers one request. Only POST changes data.
    ///
    /// # Cancel safety
    /// The action of a form is done whole or not at all.
    pub async fn answer(&self, request: &PageRequest<'_>) -> Response<Bytes> {
        let browser = Browser::of(request.headers, (&self.parts.sealer, &self.parts.clock));
        let person = match (self.person(request.headers), &self.logins) {
            (Some(person), _) => person,
            (None, Some(logins)) => return self.answer_stranger(logins, &browser, request).await,
            (None, None) => return response::not_allowed(),
        };
        let answered = match (request.method, request.upstream) {
            (&Method::GET | &Method::HEAD, None) => self.all(&person, &browser).await,
            (&Method::GET | &Method::HEAD, Some(name)) => {
                self.one(&person, &browser, (name, request.query)).await
            }
            (&Method::POST, _) => self.posted(&person, &browser, request).await,
            _ => Ok(response::not_allowed()),
        };
        answered.unwrap_or_else(|error| {
            let error: &(dyn std::error::Error + 'static) = &error;
            tracing::error!(error, "connect page cannot use the database");
            response::page(StatusCode::SERVICE_UNAVAILABLE, &views::no_database())
        })
    }

    async fn all(
        &self,
        person: &Person,
        browser: &Browser<'_>,
    ) -> Result<Response<Bytes>, DatabaseError> {
        let mut accounts = Vec::new();
        for upstream in &self.upstreams {
            accounts.push(self.account(person, upstream).await?);
        }
        let page = views::all(person, &accounts, &Self::login_token(browser));
        Ok(browser.keep(response::page(StatusCode::OK, &page)))
    }

    async fn one(
        &self,
        person: &Person,
        browser: &Browser<'_>,
        (name, query): (&Arc<str>, Option<&str>),
    ) -> Result<Response<Bytes>, DatabaseError> {
        let Some(upstream) = self.find(name) else {
            return Ok(response::page(StatusCode::NOT_FOUND, &views::unknown()));
        };
        let link = match self.link(upstream, query) {
            Some(link) if link.owner != person.owner() => {
                return Ok(browser.keep(self.refuse_foreign(upstream, (person, browser), &link)));
            }
            link => link,
        };
        let account = self.account(person, upstream).await?;
        let token = browser.form_token(&about(person, upstream));
        let program = link.as_ref().map(|link| &*link.program);
        let by = (link.as_ref(), self.logins.as_ref());
        let form = upstream.parts(person, by).await;
        let shown = views::one(person, &account, program, (&form, &token));
        Ok(browser.keep(response::page(StatusCode::OK, &shown)))
    }

    async fn posted(
        &self,
        person: &Person,
        browser: &Browser<'_>,
        request: &PageRequest<'_>,
    ) -> Result<Response<Bytes>, DatabaseError> {
        if let Some(answer) = self.login_form(Some(person), browser, request).await {
            return Ok(answer);
        }
        let Some(upstream) = request.upstream.and_then(|name| self.find(name)) else {
            return Ok(response::not_allowed());
        };
        let form = Form::read(request.form);
        let token = form.value("token");
        let about = about(person, upstream);
        if let Err(refusal) = browser.admit(request.headers, &self.origin, (&about, token)) {
            return Ok(browser.keep(refuse_form(upstream, refusal)));
        }
        let link = match self.link(upstream, request.query) {
            Some(link) if link.owner != person.owner() => {
                return Ok(self.refuse_foreign(upstream, (person, browser), &link));
            }
            link => link,
        };
        let program = link.as_ref().map(|link| &*link.program);
        let key = upstream.key(person);
        let walking = browser.for_walk();
        let by = (&walking, link.as_ref());
        match form.value("action") {
            "disconnect" => {
                let was_there = self.parts.vault.remove_grant(&key).await?;
                LABELED.connect_accounts.add("disconnected", 1);
                if was_there {
                    let whose = (person, upstream);
                    self.audit(AccountEvent::Disconnected, whose, |record| record);
                }
                tracing::info!(upstream = %upstream.name, owner = %person.owner(), was_there, "account was disconnected");
                let page = views::disconnected(upstream);
                Ok(response::page(StatusCode::OK, &page))
            }
            "connect" | SCOPES_REFUSED => match upstream.submitted(&form, &key, by).await {
                None => Ok(self.begin_kept_login(person, request).await),
                Some(Submitted::Keep(record)) => {
                    self.parts.vault.put_grant(&key, &record).await?;
                    LABELED.connect_accounts.add("connected", 1);
                    self.audit(AccountEvent::Connected, (person, upstream), |record| {
                        record.program(program)
                    });
                    tracing::info!(upstream = %upstream.name, owner = %person.owner(), "account was connected");
                    Ok(response::page(StatusCode::OK, &views::connected(upstream)))
                }
                Some(Submitted::GoOn(started)) => {
                    LABELED.connect_accounts.add("begun", 1);
                    tracing::info!(
                        upstream = %upstream.name, owner = %person.owner(), host = started.host, program,
                        "account is being connected"
                    );
                    let page = views::go_on(&upstream.name, &started);
                    Ok(walking.keep(response::page(StatusCode::OK, &page)))
                }
                Some(Submitted::Failed(why)) => {
                    LABELED.connect_accounts.add("unavailable", 1);
                    let page = views::failed(&upstream.name, why);
                    Ok(response::page(StatusCode::BAD_GATEWAY, &page))
                }
                Some(Submitted::Refused(why)) => Ok(response::page(
                    StatusCode::BAD_REQUEST,
                    &views::refused(&upstream.name, why),
                )),
            },
            _ => Ok(refuse_form(upstream, FormRefusal::Token)),
        }
    }

    /// Refuses a link made for another person, and says so; nothing is changed. Spec: SPEC C-84
    fn refuse_foreign(
        &self,
        upstream: &ConnectedUpstream,
        (person, browser): (&Person, &Browser<'_>),
        link: &ConsentLink,
    ) -> Response<Bytes> {
        let issuer = person.issuer();
        let claims = issuer.zip(self.logins.as_ref());
        let claims = claims.and_then(|(issuer, logins)| logins.claims(issuer));
        tracing::warn!(
            upstream = %upstream.name, opened_by = %person.owner(), made_for = %link.owner, issuer,
            login_claim = claims.map(|(of_login, _)| of_login),
            token_claim = claims.map(|(_, of_callers)| of_callers),
            "connect link was opened by another person than it was made for: nothing was changed"
        );
        self.audit(AccountEvent::Refused, (person, upstream), |record| {
            let record = record.program(Some(&link.program));
            record.reason(AuditOutcome::Denied, "foreign_link")
        });
        let issuers: Option<Vec<_>> = self.logins.as_ref().map(|all| all.issuers().collect());
        let token = Self::login_token(browser);
        let login = issuers.as_deref().map(|issuers| (issuers, &*token));
        response::page(StatusCode::FORBIDDEN, &views::foreign(person, login))
    }

    /// Records an event of a person's account at an upstream, with what `more` says of it.
    fn audit(
        &self,
        event: AccountEvent,
        (person, upstream): (&Person, &ConnectedUpstream),
        more: impl FnOnce(AccountRecord) -> AccountRecord,
    ) {
        let record = AccountRecord::new(event, person.owner(), &upstream.name);
        self.parts
            .audit
            .account(more(record.by(person.principal())));
    }

    fn find(&self, name: &str) -> Option<&ConnectedUpstream> {
        self.upstreams.iter().find(|one| &*one.name == name)
    }

    /// The account as the database has it.
    async fn account<'a>(
        &self,
        person: &Person,
        upstream: &'a ConnectedUpstream,
    ) -> Result<ShownAccount<'a>, DatabaseError> {
        let (vault, key) = (&self.parts.vault, upstream.key(person));
        let grant = vault.grant(&key).await?;
        let programs = match &grant {
            Some(_) => vault.programs().list(&key).await?,
            None => Vec::new(),
        };
        Ok(ShownAccount {
            upstream,
            grant,
            programs,
        })
    }

    /// The link in the query: the call that asked. `None` without a link, or where it has expired.
    fn link(&self, upstream: &ConnectedUpstream, query: Option<&str>) -> Option<ConsentLink> {
        let mut query = form_urlencoded::parse(query.unwrap_or_default().as_bytes());
        let (_, sealed) = query.find(|(name, _)| name == "for")?;
        self.open(upstream, &sealed)
    }

    /// The call that a sealed link tells of; `None` where it has expired.
    fn open(&self, upstream: &ConnectedUpstream, sealed: &str) -> Option<ConsentLink> {
        let sealing = (&*self.parts.sealer, &self.parts.clock);
        open_link(sealing, &upstream.name, sealed)
    }
}

fn origin(public_url: &Url) -> String {
    public_url.origin().ascii_serialization()
}

/// The subject of a form's token: the upstream, and the person who was shown the form.
fn about(person: &Person, upstream: &ConnectedUpstream) -> String {
    let owner = person.owner();
    let owner = BASE64_URL_SAFE_NO_PAD.encode(owner.bytes());
    format!("{}/{owner}", upstream.name)
}

fn refuse_form(upstream: &ConnectedUpstream, refusal: FormRefusal) -> Response<Bytes> {
    tracing::warn!(upstream = %upstream.name, reason = refusal.word(), "form of a connect page was refused");
    let page = views::form_refused(Some(&upstream.name), refusal);
    response::page(StatusCode::FORBIDDEN, &page)
}

#[cfg(test)]
mod tests;
