//! Logins with `auth.mode = "oauth"`: which person opens the connect pages.
//!
//! A form of the gateway starts a login and sets a sealed cookie that holds its whole state. The callback is accepted
//! only from the browser that sends this cookie back together with the `state` that it was sealed for. The database is
//! not involved: visitors without a login cannot fill a table. A second cookie identifies the person who logged in, for
//! fifteen minutes and these pages.
//! Spec: RFC 6749 §4.1, §10.12; RFC 9700 §4.7; `OpenID` Connect Core §3.1.

mod begun;
mod callback;
mod outcome;
mod person_cookie;
pub(super) mod views;

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use futures_util::future::join_all;
use http::{HeaderMap, HeaderValue};
use moka::sync::Cache;
use tokio::sync::Semaphore;
use url::Url;

pub(super) use self::begun::NextPage;
use self::begun::{BegunLogin, LIFE, owner_text};
pub(super) use self::callback::CallbackQuery;
pub(super) use self::outcome::{
    KeptLogin, LoginKeeping, LoginOutcome, RefusedLogin, UnkeptLogin, log_out,
};
use super::person::Person;
use crate::auth::{Authenticator, accepts_issuer};
use crate::call::OwnerKey;
use crate::cause::LastCause;
use crate::clock::SharedClock;
use crate::config::{Config, ConfigDoubt, LoginConfig, LoginToken};
use crate::egress::EgressRules;
use crate::endpoint::Endpoint;
use crate::grants::{
    AccountSetupError, KeptScopes, LoginClient, LoginFailure, LoginRequest, OPENID, SharedClients,
};
use crate::seal::Sealer;
use crate::secret::Secret;
use crate::status::AskedLogin;
use crate::telemetry::line_limit::LineLimit;

/// States that are remembered as used, for as long as they could be good.
const MAX_USED: u64 = 10_000;
/// For how long `offline_access` is left out of the logins of a person.
const OFFLINE_REFUSED: Duration = Duration::from_hours(1);
/// The claim that holds the subject by default.
const SUB: &str = "sub";
/// The remedy for an issuer that gives each client another subject.
const PAIRWISE: &str = "write token = \"access\" into `connect.login`, or a `subject_claim` that is the same for \
    all clients, there and in [[auth.issuers]]";
/// Codes that are redeemed at the same time; further ones wait.
const MAX_EXCHANGES: usize = 32;

/// The logins of the configuration.
#[derive(Debug)]
pub(super) struct Logins {
    all: Vec<Login>,
    callback: Url,
    auth: Arc<Authenticator>,
    sealer: Arc<Sealer>,
    clock: SharedClock,
    used: Cache<String, ()>,
    /// Persons whose `offline_access` the issuer has refused. Their next kept login does not request this scope.
    offline_refused: Cache<OwnerKey, ()>,
    /// Persons who were sent to the issuer for a login that is kept, with `offline_access`, and have not come back.
    unfinished: Cache<OwnerKey, ()>,
    exchanges: Semaphore,
    /// Limits log lines, by kind of failure.
    lines: LineLimit<&'static str>,
}

/// One `connect.login`.
#[derive(Debug)]
struct Login {
    config: LoginConfig,
    client: LoginClient,
    /// The endpoints that accept the issuer's tokens.
    endpoints: Vec<Arc<Endpoint>>,
}

/// The purpose of a login.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LoginPurpose {
    /// To identify the person who opens the pages.
    Identify {
        /// Whether the issuer must ask for credentials even if it knows the browser.
        asks_again: bool,
    },
    /// To keep the login of this principal, for upstreams that want it asserted.
    Keep(OwnerKey),
}

/// What a login that is kept is going to ask for.
#[derive(Debug)]
pub(super) struct KeptLoginPreview {
    /// Its scopes.
    pub(super) kept: KeptScopes,
    /// Whether the person was sent to the issuer before and did not come back, so that the issuer may have refused
    /// `offline_access` on a page of its own.
    pub(super) may_be_refused: bool,
}

/// A started login. No `Debug`: it holds the `state`.
pub(super) struct StartedLogin {
    /// The URL that the browser is sent to.
    pub(super) url: Url,
    /// The cookie that the browser must send back.
    pub(super) cookie: HeaderValue,
}

impl Logins {
    /// The logins of `config`. Sends no request.
    ///
    /// # Errors
    /// A private key cannot be used, or this machine has no trust anchors.
    pub(super) fn new(
        config: &Config,
        endpoints: &[Arc<Endpoint>],
        auth: Arc<Authenticator>,
        (sealer, clock): (Arc<Sealer>, SharedClock),
    ) -> Result<Self, AccountSetupError> {
        let shared = SharedClients::new(EgressRules::new(&config.egress))?;
        let login = |config: &LoginConfig| {
            let takes = |endpoint: &&Arc<Endpoint>| accepts_issuer(endpoint, &config.issuer);
            Ok(Login {
                config: config.clone(),
                client: LoginClient::new(config, shared.clone())?,
                endpoints: endpoints.iter().filter(takes).cloned().collect(),
            })
        };
        let logins = config.connect.logins.iter().map(login);
        Ok(Self {
            all: logins.collect::<Result<_, AccountSetupError>>()?,
            callback: callback_url(&config.server.public_url),
            auth,
            sealer,
            clock,
            used: Cache::builder()
                .max_capacity(MAX_USED)
                .time_to_live(LIFE)
                .build(),
            offline_refused: Cache::builder()
                .max_capacity(MAX_USED)
                .time_to_live(OFFLINE_REFUSED)
                .build(),
            unfinished: Cache::builder()
                .max_capacity(MAX_USED)
                .time_to_live(OFFLINE_REFUSED)
                .build(),
            exchanges: Semaphore::new(MAX_EXCHANGES),
            lines: LineLimit::default(),
        })
    }

    /// The issuers where people log in, in configured order.
    pub(super) fn issuers(&self) -> impl Iterator<Item = &str> {
        self.all.iter().map(|login| &*login.config.issuer)
    }

    /// The person logged in at this browser, for fifteen minutes after the login.
    pub(super) fn person(&self, headers: &HeaderMap) -> Option<Person> {
        let person = person_cookie::find(headers, (&self.sealer, &self.clock))?;
        self.find(person.issuer()?)?;
        Some(person)
    }

    /// What a login of `person` asks for if it begins at the page of `upstream` and is kept; `None` without a configured
    /// login at the person's issuer. Waits 2 s at most; logs that the issuer's metadata are not there.
    ///
    /// # Cancel safety
    /// Dropping the future abandons the search for the issuer's metadata.
    pub(super) async fn preview_kept(
        &self,
        person: &Person,
        upstream: &str,
    ) -> Option<KeptLoginPreview> {
        let issuer = person.issuer()?;
        let login = self.find(issuer)?;
        let (claim, _) = self.claims(issuer)?;
        let scopes = login.scopes(login.endpoint(Some(upstream))?, claim);
        let may_outlast = self.may_outlast(person.owner());
        let kept = login.client.kept_scopes(&scopes, may_outlast).await;
        if !kept.is_certain
            && let Some(muted) = self.lines.admit("no_metadata")
        {
            tracing::warn!(
                issuer = login.config.issuer,
                remedy = "look whether the issuer runs, and what `check --online` says of `connect.login`",
                muted,
                "connect page is shown without the metadata of the issuer"
            );
        }
        let may_be_refused = kept.has_offline && self.unfinished.contains_key(&person.owner());
        Some(KeptLoginPreview {
            kept,
            may_be_refused,
        })
    }

    /// Notes that the issuer refused the scopes of the last login of `owner` that was to be kept, as the person says: the
    /// next one leaves out `offline_access`.
    pub(super) fn note_reported(&self, owner: OwnerKey) {
        if self.unfinished.remove(&owner).is_some() {
            self.offline_refused.insert(owner, ());
            tracing::warn!(%owner, "user says that the issuer refused `offline_access` to the last login");
        }
    }

    /// Whether a login of `owner` that is kept may ask for `offline_access`.
    fn may_outlast(&self, owner: OwnerKey) -> bool {
        !self.offline_refused.contains_key(&owner)
    }

    /// Starts a login at `issuer` that returns to the page `next`; `None` without a configured login at `issuer`.
    ///
    /// # Errors
    /// The issuer's metadata cannot be had or used.
    ///
    /// # Cancel safety
    /// No state remains of a login whose cookie was not sent.
    pub(super) async fn begin(
        &self,
        issuer: &str,
        next: NextPage,
        purpose: LoginPurpose,
    ) -> Option<Result<StartedLogin, LoginFailure>> {
        let login = self.find(issuer)?;
        let endpoint = login.endpoint(next.upstream.as_deref())?;
        let (state, verifier) = (chance(), Secret::new(chance()));
        let is_access = login.config.token == LoginToken::Access;
        let begun = BegunLogin {
            issuer: issuer.to_owned(),
            nonce: chance(),
            verifier: verifier.expose().to_owned(),
            resource: is_access.then(|| endpoint.resource.clone()),
            next,
            keeps: match purpose {
                LoginPurpose::Identify { .. } => None,
                LoginPurpose::Keep(owner) => Some(owner_text(owner)),
            },
            ends: (self.clock.now() + LIFE).as_secs(),
        };
        let (claim, _) = self.claims(issuer)?;
        let scopes = login.scopes(endpoint, claim);
        let request = LoginRequest {
            redirect_uri: &self.callback,
            state: &state,
            nonce: &begun.nonce,
            verifier: &verifier,
            scopes: &scopes,
            resource: begun.resource.as_deref(),
            asks_again: purpose == LoginPurpose::Identify { asks_again: true },
            keeps: matches!(purpose, LoginPurpose::Keep(_)),
            may_outlast: match purpose {
                LoginPurpose::Identify { .. } => true,
                LoginPurpose::Keep(owner) => self.may_outlast(owner),
            },
        };
        let url = match login.client.authorization_url(&request).await {
            Ok(url) => url,
            Err(failure) => return Some(Err(failure)),
        };
        if !is_access && claim == SUB {
            self.warn_of_pairwise(login).await;
        }
        let cookie = begun.cookie(&self.sealer, &state)?;
        if let LoginPurpose::Keep(owner) = purpose
            && request.may_outlast
        {
            self.unfinished.insert(owner, ());
        }
        Some(Ok(StartedLogin { url, cookie }))
    }

    /// The claims that hold the subject: in tokens of logins at `issuer`, and in callers' tokens.
    pub(super) fn claims(&self, issuer: &str) -> Option<(&str, &str)> {
        let login = self.find(issuer)?;
        let of_callers = self.auth.subject_claim(issuer)?;
        let of_login = match login.config.token {
            LoginToken::Id => login.config.subject_claim.as_deref(),
            LoginToken::Access => None,
        };
        Some((of_login.unwrap_or(of_callers), of_callers))
    }

    async fn warn_of_pairwise(&self, login: &Login) {
        if login
            .client
            .is_pairwise()
            .await
            .is_ok_and(|is_pairwise| is_pairwise)
            && let Some(muted) = self.lines.admit("pairwise")
        {
            let (issuer, remedy) = (&*login.config.issuer, PAIRWISE);
            tracing::warn!(
                issuer,
                remedy,
                muted,
                "issuer tells each client another subject of the same person"
            );
        }
    }

    /// Limits log lines about logins to one a minute per kind.
    pub(super) fn lines(&self) -> &LineLimit<&'static str> {
        &self.lines
    }

    fn find(&self, issuer: &str) -> Option<&Login> {
        self.all.iter().find(|login| login.config.issuer == issuer)
    }
}

impl Login {
    /// The scopes of a login for `endpoint` that has to tell `claim`.
    fn scopes(&self, endpoint: &Endpoint, claim: &str) -> Vec<String> {
        match self.config.token {
            LoginToken::Access => endpoint.scopes_at_login(),
            LoginToken::Id => scopes_of(claim),
        }
    }

    /// The endpoint that the person logs in for: one that shows the upstream of the page, else the first.
    fn endpoint(&self, upstream: Option<&str>) -> Option<&Arc<Endpoint>> {
        let shows = |endpoint: &&Arc<Endpoint>| {
            endpoint
                .upstreams
                .iter()
                .any(|one| Some(&**one) == upstream)
        };
        self.endpoints.iter().find(shows).or(self.endpoints.first())
    }
}

/// Asks each issuer for its metadata: whether people could log in there, and whether its ID tokens can name the subjects
/// that callers have. For `check --online`.
///
/// # Cancel safety
/// Dropping the future abandons the requests under way.
pub async fn ask_logins(config: &Config) -> (Vec<AskedLogin>, Vec<ConfigDoubt>) {
    let shared = SharedClients::new(EgressRules::new(&config.egress));
    let shared = &shared;
    let asked = config.connect.logins.iter().map(|login| async move {
        let of_callers = (config.auth.issuers.iter())
            .find(|issuer| issuer.issuer == login.issuer)
            .and_then(|issuer| issuer.subject_claim.as_deref());
        let claim = login.subject_claim.as_deref().or(of_callers);
        let cause = LastCause::default();
        let is_id = login.token == LoginToken::Id;
        let made = shared.as_ref().map_err(ToString::to_string);
        let made = made.and_then(|shared| {
            LoginClient::new(login, shared.clone()).map_err(|error| error.to_string())
        });
        let mut doubt = None;
        match made {
            Err(text) => cause.set_text(&text, None),
            Ok(client) => match client.rehearse(!is_id).await {
                Err(failure) => cause.set(&failure, Some(failure.remedy().to_owned().into())),
                Ok(is_pairwise) => {
                    let is_doubtful =
                        is_pairwise && is_id && claim.is_none_or(|claim| claim == SUB);
                    doubt = is_doubtful.then(|| doubtful(login));
                }
            },
        }
        let login = AskedLogin {
            issuer: login.issuer.clone(),
            cause: cause.snapshot().map(Into::into),
        };
        (login, doubt)
    });
    let (logins, doubts): (Vec<_>, Vec<_>) = join_all(asked).await.into_iter().unzip();
    (logins, doubts.into_iter().flatten().collect())
}

fn doubtful(login: &LoginConfig) -> ConfigDoubt {
    ConfigDoubt {
        key: "connect.login".to_owned(),
        what: format!(
            "{} tells each client another subject of the same person",
            login.issuer
        ),
        hint: PAIRWISE.to_owned(),
    }
}

/// The scopes of a login whose ID token has to hold `claim`. Spec: `OpenID` Connect Core §5.4
fn scopes_of(claim: &str) -> Vec<String> {
    let further = match claim {
        SUB => None,
        "email" => Some("email"),
        _ => Some("profile"),
    };
    std::iter::once(OPENID)
        .chain(further)
        .map(str::to_owned)
        .collect()
}

/// 256 random bits, in base64url.
fn chance() -> String {
    BASE64_URL_SAFE_NO_PAD.encode(rand::random::<[u8; 32]>())
}

/// The URL where issuers send browsers back.
fn callback_url(public_url: &Url) -> Url {
    let mut url = public_url.clone();
    let base = url.path().trim_end_matches('/').to_owned();
    url.set_path(&format!("{base}/connect/callback/login"));
    url
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callback_is_below_the_path_of_the_public_url() {
        let of = |text: &str| callback_url(&Url::parse(text).unwrap()).to_string();
        assert_eq!(
            of("https://gw.test"),
            "https://gw.test/connect/callback/login"
        );
        assert_eq!(
            of("https://gw.test/a/"),
            "https://gw.test/a/connect/callback/login"
        );
    }

    #[test]
    fn scope_brings_the_claim_of_the_subject() {
        assert_eq!(scopes_of("sub"), ["openid"]);
        assert_eq!(scopes_of("oid"), ["openid", "profile"]);
        assert_eq!(scopes_of("email"), ["openid", "email"]);
    }

    #[test]
    fn chance_has_the_length_of_a_state() {
        assert_eq!(chance().len(), 43);
        assert_ne!(chance(), chance());
    }
}
