//! The connect pages: where a person gives the gateway an account at an upstream, and takes it back.
//!
//! `/connect` shows the accounts of the one who opens it, `/connect/<upstream>` connects one. Opening a page changes
//! nothing; a form does, with a token that is tied to a cookie, from our own origin. There is no script.
//! How an upstream is connected is up to its [`upstream::ConnectMethod`].

mod authorize;
mod browser;
mod callback;
mod callback_fault;
mod form;
mod person;
mod response;
mod upstream;
mod user_key;
mod views;

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Method, Response, StatusCode};
use url::{Url, form_urlencoded};

use self::browser::{Browser, FormRefusal};
use self::form::{Form, Submitted};
use self::person::Person;
use self::upstream::ConnectedUpstream;
use crate::clock::SharedClock;
use crate::config::Config;
use crate::consent::{ConsentLink, OpenedLink, open_link};
use crate::database::DatabaseError;
use crate::grants::UserTokens;
use crate::grants::authorization::GatewayClient;
use crate::seal::Sealer;
use crate::vault::{GrantKey, StoredGrant, Vault};

/// What the pages are made of.
#[derive(Debug)]
pub struct ConnectParts {
    /// The whole configuration.
    pub settings: Arc<Config>,
    /// Where accounts are kept.
    pub vault: Vault,
    /// Seals cookies and tokens of forms, and opens links.
    pub sealer: Arc<Sealer>,
    /// The time of day.
    pub clock: SharedClock,
    /// The tokens of each upstream where persons agree at an authorization server.
    pub tokens: Vec<Arc<UserTokens>>,
}

/// A request for a page.
#[derive(Debug)]
pub struct PageRequest<'a> {
    /// The method.
    pub method: &'a Method,
    /// The query.
    pub query: Option<&'a str>,
    /// The headers.
    pub headers: &'a HeaderMap,
    /// The body: `application/x-www-form-urlencoded`.
    pub form: &'a [u8],
    /// Whose page; `None` for the page of all.
    pub upstream: Option<&'a Arc<str>>,
}

/// The pages.
#[derive(Debug)]
pub struct ConnectPages {
    parts: ConnectParts,
    /// Names, in configured order.
    names: Vec<Arc<str>>,
    upstreams: Vec<ConnectedUpstream>,
    origin: String,
    /// The gateway, as authorization servers know it.
    gateway: Arc<GatewayClient>,
}

/// One account on the page of all.
struct ShownAccount<'a> {
    upstream: &'a ConnectedUpstream,
    grant: Option<Arc<StoredGrant>>,
}

impl ConnectPages {
    /// The pages of a checked configuration.
    #[must_use]
    pub fn new(parts: ConnectParts) -> Arc<Self> {
        let upstreams = parts.settings.upstreams.iter();
        let gateway = Arc::new(GatewayClient::new(&parts.settings.server.public_url));
        let made = (&*parts.tokens, &gateway);
        let upstreams: Vec<_> = upstreams
            .filter_map(|upstream| ConnectedUpstream::of(upstream, made))
            .collect();
        Arc::new(Self {
            names: upstreams.iter().map(|one| Arc::clone(&one.name)).collect(),
            upstreams,
            origin: origin(&parts.settings.server.public_url),
            gateway,
            parts,
        })
    }

    /// The upstreams that have a page.
    #[must_use]
    pub fn upstreams(&self) -> &[Arc<str>] {
        &self.names
    }

    /// Answers one request. Only a POST changes something.
    ///
    /// # Cancel safety
    /// What a form asks for is done whole or not at all.
    pub async fn answer(&self, request: &PageRequest<'_>) -> Response<Bytes> {
        let browser = Browser::of(request.headers, (&self.parts.sealer, &self.parts.clock));
        let person = Person::local();
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
            let grant = self.grant(person, upstream).await?;
            accounts.push(ShownAccount { upstream, grant });
        }
        Ok(browser.keep(response::page(
            StatusCode::OK,
            &views::all(person, &accounts),
        )))
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
                return Ok(refuse_foreign(upstream, person, &link));
            }
            link => link,
        };
        let grant = self.grant(person, upstream).await?;
        let token = browser.form_token(&upstream.name);
        let program = link.as_ref().map(|link| &*link.program);
        let form = upstream
            .parts(&GrantKey::new(person.owner(), &upstream.name))
            .await;
        let account = (upstream, grant.as_deref());
        let shown = views::one(person, account, program, (&form, &token));
        Ok(browser.keep(response::page(StatusCode::OK, &shown)))
    }

    async fn posted(
        &self,
        person: &Person,
        browser: &Browser<'_>,
        request: &PageRequest<'_>,
    ) -> Result<Response<Bytes>, DatabaseError> {
        let Some(upstream) = request.upstream.and_then(|name| self.find(name)) else {
            return Ok(response::not_allowed());
        };
        let form = Form::read(request.form);
        let token = form.value("token");
        match browser.admit(request.headers, &self.origin, (&upstream.name, token)) {
            Ok(()) => {}
            Err(refusal) => return Ok(refuse_form(upstream, refusal)),
        }
        let link = match self.link(upstream, request.query) {
            Some(link) if link.owner != person.owner() => {
                return Ok(refuse_foreign(upstream, person, &link));
            }
            link => link,
        };
        let program = link.as_ref().map(|link| &*link.program);
        let key = GrantKey::new(person.owner(), &upstream.name);
        match form.value("action") {
            "disconnect" => {
                let was_there = self.parts.vault.remove_grant(&key).await?;
                tracing::info!(upstream = %upstream.name, owner = %person.owner(), was_there, "account was disconnected");
                Ok(response::page(
                    StatusCode::OK,
                    &views::disconnected(upstream),
                ))
            }
            "connect" => match upstream.submitted(&form, &key, (browser, program)).await {
                Submitted::Keep(record) => {
                    self.parts.vault.put_grant(&key, &record).await?;
                    tracing::info!(upstream = %upstream.name, owner = %person.owner(), "account was connected");
                    Ok(response::page(StatusCode::OK, &views::connected(upstream)))
                }
                Submitted::GoOn(started) => {
                    tracing::info!(
                        upstream = %upstream.name, owner = %person.owner(), host = started.host, program,
                        "account is being connected"
                    );
                    let page = views::go_on(&upstream.name, &started);
                    Ok(response::page(StatusCode::OK, &page))
                }
                Submitted::Failed(why) => Ok(response::page(
                    StatusCode::BAD_GATEWAY,
                    &views::failed(&upstream.name, why),
                )),
                Submitted::Refused(why) => Ok(response::page(
                    StatusCode::BAD_REQUEST,
                    &views::refused(&upstream.name, why),
                )),
            },
            _ => Ok(refuse_form(upstream, FormRefusal::Token)),
        }
    }

    fn find(&self, name: &str) -> Option<&ConnectedUpstream> {
        self.upstreams.iter().find(|one| &*one.name == name)
    }

    /// The account as the database has it.
    async fn grant(
        &self,
        person: &Person,
        upstream: &ConnectedUpstream,
    ) -> Result<Option<Arc<StoredGrant>>, DatabaseError> {
        let key = GrantKey::new(person.owner(), &upstream.name);
        self.parts.vault.grant(&key).await
    }

    /// What the query says of the call that asked; `None` where nothing, or nothing any more.
    fn link(&self, upstream: &ConnectedUpstream, query: Option<&str>) -> Option<ConsentLink> {
        let mut query = form_urlencoded::parse(query.unwrap_or_default().as_bytes());
        let (_, sealed) = query.find(|(name, _)| name == "for")?;
        match open_link(
            (&self.parts.sealer, &self.parts.clock),
            &upstream.name,
            &sealed,
        ) {
            OpenedLink::Good(link) => Some(link),
            OpenedLink::Unknown => None,
        }
    }
}

fn origin(public_url: &Url) -> String {
    public_url.origin().ascii_serialization()
}

fn refuse_foreign(
    upstream: &ConnectedUpstream,
    person: &Person,
    link: &ConsentLink,
) -> Response<Bytes> {
    tracing::warn!(
        upstream = %upstream.name, opened_by = %person.owner(), made_for = %link.owner,
        "connect link was opened by another person than it was made for: nothing was changed"
    );
    response::page(StatusCode::FORBIDDEN, &views::foreign())
}

fn refuse_form(upstream: &ConnectedUpstream, refusal: FormRefusal) -> Response<Bytes> {
    tracing::warn!(upstream = %upstream.name, reason = refusal.word(), "form of a connect page was refused");
    response::page(
        StatusCode::FORBIDDEN,
        &views::form_refused(&upstream.name, refusal),
    )
}

#[cfg(test)]
mod tests;
