//! Access to the pages with `auth.mode = "oauth"`: the page for a browser without a login, the forms that start and end
//! logins, and the callback.

use std::error::Error;
use std::time::Duration;

use bytes::Bytes;
use http::header::SET_COOKIE;
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode};
use url::form_urlencoded;

use super::browser::{Browser, FormRefusal};
use super::form::Form;
use super::login::views::{self as login_views, LoginForm};
use super::login::{
    CallbackQuery, KeptLogin, LoginKeeping, LoginOutcome, LoginPurpose, Logins, NextPage,
    RefusedLogin, UnkeptLogin, log_out,
};
use super::person::Person;
use super::{ConnectPages, PageRequest, response, views};
use crate::audit::{AccountEvent, AccountRecord, AuditOutcome};
use crate::grants::authorization::FinishedAuthorization;
use crate::grants::login_name;
use crate::runtime::fault_point;
use crate::telemetry::metrics::LABELED;
use crate::vault::GrantKey;

/// The subject of login form tokens. No upstream or person can have this name.
const LOGIN_FORM: &str = "/login";

/// A person's action on the login form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LoginAction {
    /// Logs in; `true`: the issuer must ask for the account even if it knows the browser.
    In(bool),
    /// Logs out.
    Out,
}

impl LoginAction {
    fn of(form: &Form) -> Option<Self> {
        match form.value("action") {
            "login" => Some(Self::In(false)),
            "login-again" => Some(Self::In(true)),
            "logout" => Some(Self::Out),
            _ => None,
        }
    }
}

impl ConnectPages {
    /// The person who opens a page; `None` without a login.
    pub(super) fn person(&self, headers: &HeaderMap) -> Option<Person> {
        match &self.logins {
            Some(logins) => logins.person(headers),
            None => Some(Person::local()),
        }
    }

    /// Answers a browser without a login.
    pub(super) async fn answer_stranger(
        &self,
        logins: &Logins,
        browser: &Browser<'_>,
        request: &PageRequest<'_>,
    ) -> Response<Bytes> {
        match *request.method {
            Method::GET | Method::HEAD => {
                let page = self.login_page(logins, browser, request, came_from_login(request));
                browser.keep(response::page(StatusCode::OK, &page))
            }
            Method::POST => {
                if let Some(answer) = self.login_form(None, browser, request).await {
                    return answer;
                }
                // The login expired before the form was sent.
                let page = self.login_page(logins, browser, request, true);
                browser.keep(response::page(StatusCode::FORBIDDEN, &page))
            }
            _ => response::not_allowed(),
        }
    }

    /// Answers a login form; `None` for any other form, or without logins in the configuration.
    pub(super) async fn login_form(
        &self,
        person: Option<&Person>,
        browser: &Browser<'_>,
        request: &PageRequest<'_>,
    ) -> Option<Response<Bytes>> {
        let logins = self.logins.as_ref()?;
        let form = Form::read(request.form);
        let action = LoginAction::of(&form)?;
        let sent = (LOGIN_FORM, form.value("token"));
        if let Err(refusal) = browser.admit(request.headers, &self.origin, sent) {
            return Some(refuse_form(logins, refusal));
        }
        Some(match action {
            LoginAction::Out => {
                let page = response::page(StatusCode::OK, &login_views::logged_out());
                with_cookies(page, person.and_then(log_out))
            }
            LoginAction::In(asks_again) => {
                let next = self.next_page(request);
                let purpose = LoginPurpose::Identify { asks_again };
                begin(logins, form.value("issuer"), next, purpose).await
            }
        })
    }

    /// Answers the form that has the login of `person` kept.
    pub(super) async fn begin_kept_login(
        &self,
        person: &Person,
        request: &PageRequest<'_>,
    ) -> Response<Bytes> {
        let (Some(logins), Some(issuer)) = (&self.logins, person.issuer()) else {
            return response::not_allowed();
        };
        if Form::read(request.form).says_refused() {
            logins.note_reported(person.owner());
        }
        let next = self.next_page(request);
        tracing::info!(upstream = next.upstream.as_deref(), owner = %person.owner(), issuer, "account is being connected");
        begin(logins, issuer, next, LoginPurpose::Keep(person.owner())).await
    }

    async fn keep_login(&self, kept: &KeptLogin) -> Response<Bytes> {
        let (owner, record, upstream) = (kept.person.owner(), &kept.record, &*kept.upstream);
        let key = GrantKey::new(owner, &login_name(&record.issuer));
        fault_point::reached("login_redeemed");
        if let Err(error) = self.parts.vault.put_only_copy(&key, record).await {
            let error: &(dyn Error + 'static) = &error;
            tracing::error!(error, "kept login cannot be written to the database");
            return response::page(StatusCode::SERVICE_UNAVAILABLE, &views::no_database());
        }
        fault_point::reached("login_stored");
        LABELED.connect_accounts.add("connected", 1);
        let audited = AccountRecord::new(AccountEvent::Connected, owner, upstream);
        let link = self.find(upstream).zip(kept.link.as_deref());
        let link = link.and_then(|(upstream, sealed)| self.open(upstream, sealed));
        let audited = audited.by(&kept.person).server(&record.issuer);
        let audited = audited.program(link.as_ref().map(|link| &*link.program));
        self.parts.audit.account(audited.scopes(&record.scopes));
        tracing::info!(upstream, %owner, issuer = %record.issuer, "account was connected");
        let ends = record.access_ends.map(Duration::from_millis);
        let lasts = ends.map(|ends| ends.saturating_sub(self.parts.clock.now()));
        let asks_again_after = lasts.filter(|_| record.refresh_token.is_none());
        if let Some(lasts) = asks_again_after {
            tracing::warn!(
                upstream, %owner, issuer = %record.issuer, lasts = lasts.as_secs(),
                "the identity provider gave no refresh token: the user is asked again when the ID token ends"
            );
        }
        let finished = FinishedAuthorization {
            asks_again_after,
            scopes: record.scopes.clone(),
        };
        response::page(StatusCode::OK, &views::authorized(upstream, &finished))
    }

    /// Has the identity provider forget a login that nothing uses.
    async fn revoke_unkept(&self, unkept: &UnkeptLogin) {
        let (owner, record) = (unkept.owner, &unkept.record);
        let key = GrantKey::new(owner, &login_name(&record.issuer));
        if let Err(error) = self.parts.vault.revoke_unkept(&key, record).await {
            let error: &(dyn Error + 'static) = &error;
            tracing::warn!(
                issuer = %record.issuer, %owner, error,
                "cannot have a login that is not kept revoked at the identity provider"
            );
        }
    }

    /// Records that a login is not kept, and why.
    fn login_not_kept(&self, refused: &RefusedLogin, outcome: &LoginOutcome) {
        LABELED.connect_accounts.add("refused", 1);
        let record = AccountRecord::new(AccountEvent::Refused, refused.owner, &refused.upstream);
        let audited = match outcome {
            LoginOutcome::Failed(_) => AuditOutcome::Failed,
            _ => AuditOutcome::Denied,
        };
        let record = record.server(&refused.issuer);
        let record = record.reason(audited, format!("login_{}", outcome.word()));
        self.parts.audit.account(record);
    }

    /// The token of this browser's login forms.
    pub(super) fn login_token(browser: &Browser<'_>) -> String {
        browser.form_token(LOGIN_FORM)
    }

    /// Answers the callback of a login. Only GET is allowed. The path differs from that of authorizations, so that an
    /// answer of an upstream's authorization server never counts as a login.
    ///
    /// # Cancel safety
    /// The login counts as ended; the person can start another.
    pub async fn login_callback(
        &self,
        method: &Method,
        query: Option<&str>,
        headers: &HeaderMap,
    ) -> Response<Bytes> {
        let (&Method::GET, Some(logins)) = (method, &self.logins) else {
            return response::allows("GET");
        };
        let end = logins.end(headers, &CallbackQuery::read(query)).await;
        LABELED.connect_logins.add(end.outcome.word(), 1);
        if let Some(LoginKeeping::Refused(refused)) = &end.keeping {
            self.login_not_kept(refused, &end.outcome);
        }
        if let Some(unkept) = &end.unkept {
            self.revoke_unkept(unkept).await;
        }
        let page = match &end.keeping {
            Some(LoginKeeping::Kept(kept)) => self.keep_login(kept).await,
            Some(LoginKeeping::Refused(_)) | None => {
                response::page(StatusCode::OK, &login_views::ended(&end.outcome))
            }
        };
        with_cookies(page, end.cookies)
    }

    fn login_page(
        &self,
        logins: &Logins,
        browser: &Browser<'_>,
        request: &PageRequest<'_>,
        lost_cookie: bool,
    ) -> maud::Markup {
        let upstream = request.upstream.and_then(|name| self.find(name));
        let link = upstream.and_then(|upstream| {
            let link = self.link(upstream, request.query)?;
            Some((upstream.host(), link.program))
        });
        login_views::log_in(&LoginForm {
            issuers: logins.issuers().collect(),
            token: &Self::login_token(browser),
            upstream: upstream.map(|upstream| &*upstream.name),
            link: link.as_ref().map(|(host, program)| (*host, &**program)),
            lost_cookie,
        })
    }

    /// The requested page, to return to after the login.
    fn next_page(&self, request: &PageRequest<'_>) -> NextPage {
        let upstream = request.upstream.and_then(|name| self.find(name));
        NextPage {
            upstream: upstream.map(|upstream| upstream.name.to_string()),
            // An invalid link is dropped.
            link: upstream
                .filter(|upstream| self.link(upstream, request.query).is_some())
                .and_then(|_| value(request, "for")),
        }
    }
}

async fn begin(
    logins: &Logins,
    issuer: &str,
    next: NextPage,
    purpose: LoginPurpose,
) -> Response<Bytes> {
    let keeps = matches!(purpose, LoginPurpose::Keep(_));
    match logins.begin(issuer, next, purpose).await {
        Some(Ok(departure)) => {
            LABELED.connect_logins.add("begun", 1);
            if keeps {
                LABELED.connect_accounts.add("begun", 1);
            }
            let page = login_views::departs(departure.url.as_str(), issuer);
            with_cookies(response::page(StatusCode::OK, &page), [departure.cookie])
        }
        Some(Err(failure)) => {
            LABELED.connect_logins.add("unavailable", 1);
            if keeps {
                LABELED.connect_accounts.add("unavailable", 1);
            }
            if let Some(muted) = logins.lines().admit(failure.reason()) {
                let (reason, remedy) = (failure.reason(), failure.remedy());
                let error: &(dyn Error + 'static) = &failure;
                tracing::warn!(
                    issuer,
                    reason,
                    error,
                    remedy,
                    muted,
                    "cannot start a login for the connect pages"
                );
            }
            let page = login_views::cannot_begin();
            response::page(StatusCode::SERVICE_UNAVAILABLE, &page)
        }
        None => refuse_form(logins, FormRefusal::Token),
    }
}

fn with_cookies(
    mut response: Response<Bytes>,
    cookies: impl IntoIterator<Item = HeaderValue>,
) -> Response<Bytes> {
    for cookie in cookies {
        response.headers_mut().append(SET_COOKIE, cookie);
    }
    response
}

fn refuse_form(logins: &Logins, refusal: FormRefusal) -> Response<Bytes> {
    if let Some(muted) = logins.lines().admit(refusal.word()) {
        tracing::warn!(
            reason = refusal.word(),
            muted,
            "form of a login was refused"
        );
    }
    response::page(StatusCode::FORBIDDEN, &views::form_refused(None, refusal))
}

/// Whether this browser has just logged in and yet sends no login cookie.
fn came_from_login(request: &PageRequest<'_>) -> bool {
    value(request, "login").is_some()
}

/// The first value of a parameter of the query.
fn value(request: &PageRequest<'_>, name: &str) -> Option<String> {
    let mut query = form_urlencoded::parse(request.query.unwrap_or_default().as_bytes());
    let (_, value) = query.find(|(found, _)| found == name)?;
    Some(value.into_owned())
}
