//! `/connect/callback/…`, where authorization servers send browsers back, and `/connect/client.json`, which they fetch.

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, Uri};

use super::authorize::AuthorizeForm;
use super::browser::Browser;
use super::callback_fault::CallbackFault;
use super::login::CallbackQuery;
use super::person::Person;
use super::upstream::ConnectMethod;
use super::{ConnectPages, response, views};
use crate::audit::{AccountEvent, AccountRecord, AuditOutcome};
use crate::call::OwnerKey;
use crate::database::DatabaseError;
use crate::grants::authorization::{CallbackAnswer, CallbackRefusal, is_state, state_digest};
use crate::secret::Secret;
use crate::telemetry::metrics::LABELED;
use crate::vault::{GrantKey, PendingRecord};

/// `Cache-Control` of the metadata document.
const DOCUMENT_AGE: &str = "public, max-age=3600";

impl ConnectPages {
    /// Answers the callback of an authorization server. Only GET is allowed.
    ///
    /// # Cancel safety
    /// The authorization counts as ended; the code is redeemed.
    pub async fn callback(
        &self,
        method: &Method,
        uri: &Uri,
        headers: &HeaderMap,
    ) -> Response<Bytes> {
        if method != Method::GET {
            return response::allows("GET");
        }
        let browser = Browser::of(headers, (&self.parts.sealer, &self.parts.clock));
        // Checked before the `state` is used up: the person can log in and reload this page.
        let Some(person) = self.person(headers) else {
            return self.refuse(CallbackFault::Login, None, None);
        };
        let ended = self.end_authorization(&browser, &person, uri);
        ended.await.unwrap_or_else(|error| {
            let error: &(dyn std::error::Error + 'static) = &error;
            tracing::error!(
                error,
                "callback of an authorization cannot use the database"
            );
            response::page(StatusCode::SERVICE_UNAVAILABLE, &views::no_database())
        })
    }

    /// The gateway as a client of authorization servers (CIMD). Spec: SPEC B-08
    #[must_use]
    pub fn client_document(&self, method: &Method) -> Response<Bytes> {
        if !matches!(*method, Method::GET | Method::HEAD) {
            return response::allows("GET, HEAD");
        }
        let Some(document) = self.gateway.document() else {
            return response::page(StatusCode::NOT_FOUND, &views::unknown());
        };
        let mut response = Response::new(Bytes::from(document));
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static(DOCUMENT_AGE));
        response
    }

    // Spec: SPEC B-13
    async fn end_authorization(
        &self,
        browser: &Browser<'_>,
        person: &Person,
        uri: &Uri,
    ) -> Result<Response<Bytes>, DatabaseError> {
        let query = CallbackQuery::read(uri.query());
        let state = query.state.as_deref();
        let Some(state) = state.filter(|state| is_state(state)) else {
            return Ok(self.refuse(CallbackFault::State, None, Some(person)));
        };
        // Otherwise anyone who has seen a `state` could use it up, and any request would query the database.
        if !browser.is_known() {
            return Ok(self.refuse(CallbackFault::Browser, None, Some(person)));
        }
        let pending = self
            .parts
            .vault
            .pending()
            .take(&state_digest(state))
            .await?;
        let Some((owner, pending)) = pending else {
            return Ok(self.refuse(CallbackFault::State, None, Some(person)));
        };
        let refuse = |fault| Ok(self.refuse(fault, Some((owner, &pending)), Some(person)));
        if !browser.is(&pending.cookie_digest) {
            return refuse(CallbackFault::Browser);
        }
        if owner != person.owner() {
            return refuse(CallbackFault::Person);
        }
        // A mismatch means that another server answers than the one asked. Spec: RFC 9700 §4.4.2.2
        if self.gateway.url_of(uri.path()) != pending.redirect_uri {
            return refuse(CallbackFault::Address);
        }
        let Some((upstream, form)) = self.authorizes(&pending.upstream) else {
            return Ok(response::page(StatusCode::NOT_FOUND, &views::unknown()));
        };
        let key = GrantKey::new(owner, &upstream);
        let answer = CallbackAnswer {
            code: query.code.as_ref().map(Secret::expose),
            iss: query.issuer.as_deref(),
            error: query.error.as_deref(),
        };
        let program = pending.program.clone();
        let brought = (&answer, person.principal());
        Ok(match form.finish(key, pending, brought).await {
            Ok(finished) => {
                LABELED.connect_accounts.add("connected", 1);
                tracing::info!(
                    upstream, %owner, program, scopes = finished.scopes.join(" "),
                    "account was connected"
                );
                response::page(StatusCode::OK, &views::authorized(&upstream, &finished))
            }
            Err(refusal) => {
                let refusal = (&refusal, query.description.as_deref());
                refuse_answer(&upstream, owner, refusal)
            }
        })
    }

    /// Refuses a callback: only where it was begun here, an account has something to tell in the audit log.
    fn refuse(
        &self,
        fault: CallbackFault,
        waiting: Option<(OwnerKey, &PendingRecord)>,
        person: Option<&Person>,
    ) -> Response<Bytes> {
        LABELED.connect_accounts.add("refused", 1);
        if let Some(((owner, pending), person)) = waiting.zip(person) {
            let record = AccountRecord::new(AccountEvent::Refused, owner, &pending.upstream);
            let record = record
                .by(person.principal())
                .server(&pending.issuer)
                .program(pending.program.as_deref());
            let record = record.reason(AuditOutcome::Denied, format!("callback_{}", fault.word()));
            self.parts.audit.account(record);
        }
        // Visitors without a login can send stray callbacks as often as they like.
        let muted = match waiting {
            Some(_) => Some(0),
            None => self.stray_callbacks.admit(fault.word()),
        };
        if let Some(muted) = muted {
            let (owner, pending) = waiting.unzip();
            let upstream = pending.map(|pending| &*pending.upstream);
            let begun_by = owner.map(|owner| owner.to_string());
            let brought_by = person.map(|person| person.owner().to_string());
            tracing::warn!(
                reason = fault.word(),
                upstream,
                begun_by,
                brought_by,
                muted,
                "callback of an authorization was refused: nothing was changed"
            );
        }
        response::page(StatusCode::FORBIDDEN, &views::callback_refused(fault))
    }

    fn authorizes(&self, name: &str) -> Option<(String, &AuthorizeForm)> {
        let upstream = self.find(name)?;
        match &upstream.method {
            ConnectMethod::Authorize(form) => Some((upstream.name.to_string(), form)),
            ConnectMethod::Key(_) | ConnectMethod::Login | ConnectMethod::Withheld(_) => None,
        }
    }
}

/// The page of a refused answer, whose `error_description` goes to the log.
fn refuse_answer(
    upstream: &str,
    owner: OwnerKey,
    (refusal, description): (&CallbackRefusal, Option<&str>),
) -> Response<Bytes> {
    let error: &(dyn std::error::Error + 'static) = refusal;
    LABELED.connect_accounts.add("refused", 1);
    // Of an answer that another server may have made, nothing is read.
    let description = description.filter(|_| {
        matches!(
            refusal,
            CallbackRefusal::Denied(_) | CallbackRefusal::Offline(_) | CallbackRefusal::Scopes(_)
        )
    });
    tracing::warn!(upstream, %owner, error, description, "account was not connected");
    let status = match refusal {
        CallbackRefusal::Failed(_) => StatusCode::BAD_GATEWAY,
        _ => StatusCode::FORBIDDEN,
    };
    response::page(status, &views::not_authorized(upstream, refusal))
}
