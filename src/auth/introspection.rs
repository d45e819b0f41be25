//! Opaque tokens: their issuer is asked about them, in one question for all parallel requests.
//!
//! Spec: RFC 7662; SPEC. An issuer that cannot be asked makes no token bad: the caller
//! hears that the gateway cannot judge at the moment. A question that is refused is about its token alone:
//! see [`issuer_health`].

mod ask_error;
mod issuer_health;

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use tokio::time::{Instant, timeout};
use url::Url;
use url::form_urlencoded::Serializer;

use self::ask_error::IntrospectionError;
use self::issuer_health::{IssuerHealth, RequestPermission};
use super::cache::TokenKey;
use super::claims::ClaimSet;
use super::discovery::{self, CredentialPlace, DiscoveryError};
use super::fetch::IssuerClients;
use super::refused::REFUSED_AGE;
use super::reject::RejectReason;
use super::token_policy::{MissingClaims, TokenPolicy, is_used_for_access};
use crate::address::ClientNetwork;
use crate::call::Principal;
use crate::cause::LastCause;
use crate::config::{self, IntrospectionAuth};
use crate::grants::basic_credentials;
use crate::secret::Secret;
use crate::sync::fair_permits::{FairPermit, FairPermits};
use crate::sync::single_flight::SingleFlight;
use crate::telemetry::line_limit::LineLimit;
use crate::telemetry::metrics::LABELED;
use crate::telemetry::redact::shown;

/// Questions to one issuer at once; more wait, and the addresses that they come from take turns.
const MAX_QUESTIONS: usize = 32;
/// For discovery and the question itself, and as long for a place among [`MAX_QUESTIONS`] before.
const TIMEOUT: Duration = Duration::from_secs(5);
/// A discovered endpoint is looked for again after this.
const ENDPOINT_AGE: Duration = Duration::from_mins(10);

/// Bytes of the names of methods that the log shows.
const MAX_SHOWN: usize = 128;

/// The issuer has not said whether the token is good. The reason is logged where it was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum IntrospectionFailed {
    /// The question about this token was refused, by an issuer that answers others.
    Refused,
    /// The token cannot be judged now.
    Unavailable,
}

/// The address of an issuer's introspection endpoint, and its way to authenticate.
#[derive(Debug, Clone)]
struct IntrospectionEndpoint {
    url: Url,
    /// What the endpoint's origin is compared with: the same means the operator's word.
    base: Url,
    credentials_in_body: bool,
    found: Instant,
}

/// The right to ask one issuer about tokens.
#[derive(Debug)]
pub(super) struct IntrospectionClient {
    issuer: String,
    fetcher: IssuerClients,
    configured: Option<Url>,
    client_id: String,
    client_secret: Secret,
    auth_method: IntrospectionAuth,
    /// Whether JWTs are asked about too, once their signature was found good.
    pub(super) all: bool,
    /// How long an answer counts, at most until the token expires.
    pub(super) max_age: Duration,
    endpoint: tokio::sync::Mutex<Option<IntrospectionEndpoint>>,
    flights: SingleFlight<TokenKey, Result<Arc<[u8]>, IntrospectionFailed>>,
    questions: Arc<FairPermits<ClientNetwork>>,
    health: IssuerHealth,
    lines: LineLimit,
    /// Why the last question failed, unless it was about its token alone.
    cause: LastCause,
}

impl IntrospectionClient {
    pub(super) fn new(
        config: &config::IntrospectionConfig,
        issuer: &str,
        fetcher: IssuerClients,
    ) -> Self {
        for counter in [&LABELED.introspections, &LABELED.introspection_failures] {
            counter.add(issuer, 0);
        }
        Self {
            issuer: issuer.to_owned(),
            fetcher,
            configured: config.endpoint.clone(),
            client_id: config.client_id.clone(),
            client_secret: config.client_secret.clone(),
            auth_method: config.auth_method,
            all: config.tokens == config::IntrospectedTokens::All,
            max_age: config.max_age,
            endpoint: tokio::sync::Mutex::default(),
            flights: SingleFlight::default(),
            questions: FairPermits::new(MAX_QUESTIONS),
            health: IssuerHealth::default(),
            lines: LineLimit::default(),
            cause: LastCause::default(),
        }
    }

    /// Why the last question failed; empty once one was answered.
    pub(super) fn cause(&self) -> &LastCause {
        &self.cause
    }

    /// How long a refusal counts, and its token is not asked about again.
    pub(super) fn refused_age(&self) -> Duration {
        REFUSED_AGE.min(self.max_age)
    }

    /// The issuer's answer about `token`, which came from the client address `from`: an object with a boolean
    /// `active`. Parallel requests with the same token share one question.
    ///
    /// # Errors
    /// The issuer cannot be asked, refuses the question, or its answer cannot be read.
    ///
    /// # Cancel safety
    /// Another of the waiting callers asks again.
    pub(super) async fn ask(
        &self,
        token: &str,
        from: IpAddr,
    ) -> Result<Arc<[u8]>, IntrospectionFailed> {
        let key = TokenKey::of("", token.as_bytes());
        let question = self.question(&key, token, from);
        self.flights.share(key, question).await
    }

    /// Asks about a token that the issuer cannot know, so that [`cause`](Self::cause) says whether it answers and
    /// accepts the gateway's credentials. Where it refuses the question itself, neither is known, and there is no
    /// cause.
    ///
    /// # Cancel safety
    /// As for [`ask`](Self::ask).
    pub(super) async fn probe(&self) {
        let token = BASE64_URL_SAFE_NO_PAD.encode(rand::random::<[u8; 32]>());
        let answer = self.ask(&token, Ipv4Addr::LOCALHOST.into()).await;
        let members = answer.as_deref().ok().and_then(ClaimSet::read);
        if members.is_some_and(|members| is_active(&members) == Some(true)) {
            self.cause.set_text(
                "it calls a token active that was made up",
                Some(
                    "correct `introspection.endpoint`: what answers there accepts every token"
                        .into(),
                ),
            );
        }
    }

    async fn question(
        &self,
        key: &TokenKey,
        token: &str,
        from: IpAddr,
    ) -> Result<Arc<[u8]>, IntrospectionFailed> {
        // Many questions are no failure of the issuer: this caller is told to retry, and those before it
        // go on.
        let Some(_permit) = self.question_permit(key, from).await else {
            LABELED.introspection_failures.add(&self.issuer, 1);
            return Err(IntrospectionFailed::Unavailable);
        };
        LABELED.introspections.add(&self.issuer, 1);
        let answer = timeout(TIMEOUT, self.post(token));
        let error = match answer.await.unwrap_or(Err(IntrospectionError::TimedOut)) {
            Ok(answer) => {
                self.health.answered();
                self.cause.clear();
                return Ok(answer.into());
            }
            Err(error) => error,
        };
        let in_doubt = self.health.failed(key, error.blame());
        self.log(&error);
        if !matches!(error, IntrospectionError::Refused(_)) {
            self.cause.set(&error, Some(error.remedy().into()));
        }
        if in_doubt {
            // Its endpoint may have moved. Where the lock is held, it is being looked for.
            if let Ok(mut endpoint) = self.endpoint.try_lock() {
                *endpoint = None;
            }
        } else if matches!(error, IntrospectionError::Refused(_)) {
            return Err(IntrospectionFailed::Refused);
        }
        LABELED.introspection_failures.add(&self.issuer, 1);
        Err(IntrospectionFailed::Unavailable)
    }

    /// The right to ask about the token of `key` now; waits for it [`TIMEOUT`] at most, and not at all while
    /// the issuer is in doubt.
    async fn question_permit(
        &self,
        key: &TokenKey,
        from: IpAddr,
    ) -> Option<FairPermit<ClientNetwork>> {
        match self.health.admit(key) {
            RequestPermission::Ask => {
                let turn = self.questions.permit(from.into());
                let permit = timeout(TIMEOUT, turn).await.ok().flatten()?;
                (self.health.admit(key) != RequestPermission::Paused).then_some(permit)
            }
            RequestPermission::InDoubt if self.questions.free() > MAX_QUESTIONS / 2 => {
                self.questions.try_permit()
            }
            RequestPermission::InDoubt | RequestPermission::Paused => None,
        }
    }

    fn log(&self, error: &IntrospectionError) {
        if let Some(muted) = self.lines.admit(error.kind()) {
            let remedy = error.remedy();
            let endpoint = self.configured.as_ref().map(Url::as_str);
            let error: &(dyn std::error::Error + 'static) = error;
            tracing::warn!(
                issuer = self.issuer,
                endpoint,
                error,
                remedy,
                muted,
                "issuer gave no answer about a token"
            );
        }
    }

    async fn post(&self, token: &str) -> Result<Vec<u8>, IntrospectionError> {
        let endpoint = self.endpoint().await?;
        let form = self.form(token, endpoint.credentials_in_body);
        let authorization = (!endpoint.credentials_in_body)
            .then(|| basic_credentials(&self.client_id, &self.client_secret))
            .flatten();
        let answer = self
            .fetcher
            .post(&endpoint.url, &endpoint.base, authorization, form)
            .await;
        let answer = answer.map_err(IntrospectionError::Fetch)?;
        if answer.status != 200 {
            return Err(IntrospectionError::of_status(answer.status, &answer.body));
        }
        let answer = answer.body;
        // Spec: RFC 7662 §2.2: `active` is the only required member
        let is_answer =
            ClaimSet::read(&answer).is_some_and(|members| is_active(&members).is_some());
        is_answer
            .then_some(answer)
            .ok_or(IntrospectionError::Answer)
    }

    async fn endpoint(&self) -> Result<IntrospectionEndpoint, IntrospectionError> {
        let mut endpoint = self.endpoint.lock().await;
        if let Some(known) = &*endpoint
            && known.found.elapsed() < ENDPOINT_AGE
        {
            return Ok(known.clone());
        }
        let (url, base, place) = if let Some(url) = &self.configured {
            (url.clone(), url.clone(), CredentialPlace::Header)
        } else {
            let base = Url::parse(&self.issuer).map_err(DiscoveryError::from)?;
            let (url, place) = discovery::introspection(&self.fetcher, &self.issuer).await?;
            (url, base, place)
        };
        if let (IntrospectionAuth::Auto, CredentialPlace::Neither(methods)) =
            (self.auth_method, &place)
        {
            tracing::warn!(
                issuer = self.issuer,
                endpoint = url.as_str(),
                methods = %shown(&methods.join(" "), MAX_SHOWN),
                remedy = "let the issuer take a client secret from this client, or set `introspection.auth_method` if it does",
                "issuer takes no client secret at its introspection endpoint, by its metadata: it is sent one as \
                 client_secret_basic"
            );
        }
        let found = IntrospectionEndpoint {
            url,
            base,
            credentials_in_body: match self.auth_method {
                IntrospectionAuth::Auto => place == CredentialPlace::Body,
                IntrospectionAuth::Basic => false,
                IntrospectionAuth::Post => true,
            },
            found: Instant::now(),
        };
        Ok(endpoint.insert(found).clone())
    }

    /// The question. Spec: RFC 7662 §2.1
    fn form(&self, token: &str, credentials_in_body: bool) -> String {
        let mut form = Serializer::new(String::new());
        form.append_pair("token", token);
        form.append_pair("token_type_hint", "access_token");
        if credentials_in_body {
            form.append_pair("client_id", &self.client_id);
            form.append_pair("client_secret", self.client_secret.expose());
        }
        form.finish()
    }

    #[cfg(test)]
    pub(super) fn places(&self) -> &Arc<FairPermits<ClientNetwork>> {
        &self.questions
    }

    #[cfg(test)]
    pub(super) fn flights(&self) -> usize {
        self.flights.under_way()
    }
}

/// Names the caller of a token that the issuer has spoken about.
///
/// # Errors
/// The token is not active, or breaks a rule of this endpoint.
pub(super) fn validate(answer: &[u8], terms: &TokenPolicy<'_>) -> Result<Principal, RejectReason> {
    let members = ClaimSet::read(answer).ok_or(RejectReason::Inactive)?;
    if is_active(&members) != Some(true) {
        return Err(RejectReason::Inactive);
    }
    // Spec: RFC 7662 §2.2 with RFC 6749 §7.1; `typ` is how Keycloak marks refresh and ID tokens
    for kind in ["token_type", "typ"] {
        match members.text(kind)? {
            None => {}
            Some(kind) if kind.eq_ignore_ascii_case("Bearer") => {}
            Some(kind) if kind.eq_ignore_ascii_case("DPoP") => return Err(RejectReason::Bound),
            Some(_) => return Err(RejectReason::Type),
        }
    }
    // `token_type` is Bearer for refresh tokens of Ory Hydra, too.
    if !is_used_for_access(&members)? {
        return Err(RejectReason::Type);
    }
    terms.admit(&members, MissingClaims::Tolerated)
}

fn is_active(members: &ClaimSet<'_>) -> Option<bool> {
    members.flag("active").ok().flatten()
}
