//! The answer of an issuer to a login. Spec: RFC 6749 §4.1.2; RFC 9207 §2; `OpenID` Connect Core §3.1.2.6

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use tokio::time::timeout;
use url::form_urlencoded;

use super::begun::{self, BegunLogin};
use super::outcome::{KeptLogin, LoginEnd, LoginKeeping, LoginOutcome, UnkeptLogin};
use super::{Login, Logins, person_cookie};
use crate::auth::{IdTokenCheck, LoginRefusal, PersonLogin};
use crate::call::OwnerKey;
use crate::config::LoginToken;
use crate::grants::authorization::known_error;
use crate::grants::{LoginFailure, LoginResponse, LoginTokens};
use crate::secret::Secret;
use crate::telemetry::redact::shown;

/// Bytes of an error description that the log shows.
const MAX_DESCRIPTION: usize = 256;
/// How long a code waits for a permit to be redeemed. Codes are valid for a minute or two.
const EXCHANGE_WAIT: Duration = Duration::from_secs(20);

/// The query of an answer to a login or an authorization. A parameter that occurs twice has no value, but for `iss` and
/// `error`: these have the empty one then, which refuses the answer. Spec: RFC 6749 §3.1
/// No `Debug`: it holds the `state`.
#[derive(Default)]
pub(crate) struct CallbackQuery {
    /// `state`, which identifies the login or the authorization.
    pub(crate) state: Option<String>,
    /// `code`.
    pub(crate) code: Option<Secret>,
    /// `iss`.
    pub(crate) issuer: Option<String>,
    /// `error`.
    pub(crate) error: Option<String>,
    /// `error_description`, masked and on one line, for the log alone.
    pub(crate) description: Option<String>,
}

/// Why the tokens of a login do not identify a person.
#[derive(Debug, thiserror::Error)]
enum ExchangeError {
    #[error(transparent)]
    Failure(#[from] LoginFailure),
    #[error("the token of the login is refused")]
    Refused(#[source] LoginRefusal),
    #[error("the issuer gave no ID token")]
    NoIdToken,
    #[error("too many logins end at once")]
    Crowded,
    #[error("no endpoint has the resource any more that the login was begun for")]
    NoEndpoint,
    #[error("the issuer names another person than the one whose login was to be kept")]
    OtherPerson(OwnerKey),
    #[error("the answer names another issuer than the one that was asked")]
    OtherIssuer,
}

/// A failed exchange.
#[derive(Debug)]
struct FailedExchange {
    error: ExchangeError,
    /// The login whose tokens the issuer gave nevertheless.
    unkept: Option<UnkeptLogin>,
}

impl From<ExchangeError> for FailedExchange {
    fn from(error: ExchangeError) -> Self {
        Self {
            error,
            unkept: None,
        }
    }
}

impl ExchangeError {
    fn reason(&self) -> &'static str {
        match self {
            Self::Failure(failure) => failure.reason(),
            Self::Refused(refusal) => refusal.reason,
            Self::NoIdToken => "no_id_token",
            Self::Crowded => "crowded",
            Self::NoEndpoint => "no_endpoint",
            Self::OtherPerson(_) => "other_person",
            Self::OtherIssuer => "issuer",
        }
    }

    fn remedy(&self) -> &str {
        match self {
            Self::Failure(failure) => failure.remedy(),
            Self::Refused(refusal) => refusal.wanted,
            Self::NoIdToken => {
                "let the issuer give this client ID tokens (scope openid), or write token = \"access\" into `connect.login`"
            }
            Self::Crowded => {
                "look whether the token endpoint of the issuer is slow: 32 codes are redeemed at a time"
            }
            Self::NoEndpoint | Self::OtherPerson(_) => "none: the person logs in again",
            Self::OtherIssuer => {
                "none where it happens once: another server answered than the one that was asked"
            }
        }
    }
}

impl CallbackQuery {
    pub(crate) fn read(query: Option<&str>) -> Self {
        let pairs: Vec<_> = form_urlencoded::parse(query.unwrap_or_default().as_bytes()).collect();
        let one = |name: &str| {
            let mut found = pairs.iter().filter(|(key, _)| key == name);
            match (found.next(), found.next()) {
                (Some((_, value)), None) => Some(value.clone().into_owned()),
                _ => None,
            }
        };
        // Without a value the answer would count as one that names no issuer, or no error.
        let present = |name: &str| {
            let is_there = pairs.iter().any(|(key, _)| key == name);
            is_there.then(|| one(name).unwrap_or_default())
        };
        Self {
            state: one("state"),
            code: one("code").map(Secret::new),
            issuer: present("iss"),
            error: present("error"),
            description: one("error_description")
                .map(|text| shown(&text, MAX_DESCRIPTION).replace(char::is_control, " ")),
        }
    }

    /// Whether the answer names another issuer than the one that was `asked`. Then its error is not read. Spec: RFC 9207 §2.4
    fn names_another(&self, asked: &str) -> bool {
        self.issuer.as_deref().is_some_and(|named| named != asked)
    }
}

impl Logins {
    /// Finishes the login of `answer`, if this browser started it; logs failures.
    ///
    /// # Cancel safety
    /// The login counts as ended; the person can start another.
    pub(crate) async fn end(&self, headers: &HeaderMap, answer: &CallbackQuery) -> LoginEnd {
        let state = answer.state.as_deref().unwrap_or_default();
        let found = BegunLogin::find(headers, (&self.sealer, &self.clock), state);
        let is_first = || self.used.entry_by_ref(state).or_insert(()).is_fresh();
        let Some(begun) = found.filter(|_| is_first()) else {
            if let Some(muted) = self.lines.admit("no_cookie") {
                tracing::warn!(
                    muted,
                    "login callback was refused: another browser started the login, or it arrived too late or twice"
                );
            }
            return LoginEnd {
                outcome: LoginOutcome::NoCookie,
                cookies: Vec::new(),
                keeping: None,
                unkept: None,
            };
        };
        let mut cookies: Vec<_> = begun::removed(state).into_iter().collect();
        let mut keeping = begun.refused().map(LoginKeeping::Refused);
        let keeper = begun.keeper();
        if let Some(owner) = keeper {
            self.unfinished.invalidate(&owner);
        }
        let of_offline = |code: &str| self.note_offline(keeper?, code);
        let mut unkept = None;
        let outcome = match (self.find(&begun.issuer), &answer.error, &answer.code) {
            (Some(login), None, Some(code)) => {
                match self.exchange(login, &begun, answer, code).await {
                    Ok((person, kept)) => {
                        keeping = kept.map(LoginKeeping::Kept);
                        let made = person_cookie::make(&person, (&self.sealer, &self.clock));
                        log_success(&person);
                        cookies.extend(made);
                        LoginOutcome::Done(begun.next)
                    }
                    Err(failed) => {
                        self.log_failure(&begun.issuer, &failed.error);
                        unkept = failed.unkept;
                        let next = begun.next;
                        match (of_offline(failed.error.reason()), failed.error) {
                            (Some(error), _) => LoginOutcome::OfflineRefused { error, next },
                            (None, ExchangeError::OtherPerson(_)) => {
                                LoginOutcome::OtherPerson(next)
                            }
                            (None, _) => LoginOutcome::Failed(next),
                        }
                    }
                }
            }
            _ if answer.names_another(&begun.issuer) => {
                self.log_failure(&begun.issuer, &ExchangeError::OtherIssuer);
                LoginOutcome::Failed(begun.next)
            }
            (_, error, _) => {
                let known = error.as_deref().and_then(known_error);
                if let Some(muted) = self.lines.admit(known.unwrap_or("other")) {
                    tracing::warn!(
                        issuer = begun.issuer,
                        error = known.unwrap_or("other"),
                        description = answer.description.as_deref(),
                        muted,
                        "issuer refused a login of the connect pages"
                    );
                }
                let next = begun.next;
                match error.as_deref().and_then(of_offline) {
                    Some(error) => LoginOutcome::OfflineRefused { error, next },
                    None => LoginOutcome::Refused { error: known, next },
                }
            }
        };
        LoginEnd {
            outcome,
            cookies,
            keeping,
            unkept,
        }
    }

    /// Notes that the issuer refused a login of `owner` that was to be kept, with the error `code`; returns the code where
    /// that may be for `offline_access`, which the next login leaves out.
    fn note_offline(&self, owner: OwnerKey, code: &str) -> Option<&'static str> {
        // `not_allowed` is Keycloak's, of a code.
        let codes = ["invalid_scope", "not_allowed"];
        let code = codes.into_iter().find(|known| *known == code)?;
        self.offline_refused
            .entry(owner)
            .or_insert(())
            .is_fresh()
            .then_some(code)
    }

    /// Redeems the code, and identifies the person; returns the login too where it is to be kept.
    async fn exchange(
        &self,
        login: &Login,
        begun: &BegunLogin,
        answer: &CallbackQuery,
        code: &Secret,
    ) -> Result<(PersonLogin, Option<KeptLogin>), FailedExchange> {
        // The semaphore is never closed: the only error is the timeout.
        let permit = timeout(EXCHANGE_WAIT, self.exchanges.acquire()).await;
        let _permit = permit.map_err(|_| ExchangeError::Crowded)?;
        let answer = LoginResponse {
            code,
            issuer: answer.issuer.as_deref(),
            redirect_uri: &self.callback,
            verifier: &Secret::new(&*begun.verifier),
            resource: begun.resource.as_deref(),
        };
        let redeemed = login.client.redeem(&answer).await;
        let tokens = redeemed.map_err(ExchangeError::from)?;
        let Some(owner) = begun.keeper() else {
            // What the issuer gave ends with the person's session there.
            return Ok((self.identify(login, begun, &tokens).await?, None));
        };
        let person = match self.check_kept(login, begun, (owner, &tokens)).await {
            Ok(person) => person,
            Err(error) => {
                let owner = match error {
                    ExchangeError::OtherPerson(other) => other,
                    _ => owner,
                };
                let record = login.client.unkept(tokens).map(Box::new);
                let unkept = record.map(|record| UnkeptLogin { owner, record });
                return Err(FailedExchange { error, unkept });
            }
        };
        let record = login.client.kept(tokens).ok_or(ExchangeError::NoIdToken)?;
        let kept = KeptLogin {
            person: Arc::new(person.principal.clone()),
            record: Box::new(record),
            upstream: begun.next.upstream.clone().unwrap_or_default(),
            link: begun.next.link.clone(),
        };
        Ok((person, Some(kept)))
    }

    /// The person of `tokens`, who has to be `owner` for the login to be kept.
    async fn check_kept(
        &self,
        login: &Login,
        begun: &BegunLogin,
        (owner, tokens): (OwnerKey, &LoginTokens),
    ) -> Result<PersonLogin, ExchangeError> {
        let person = self.identify(login, begun, tokens).await?;
        let found = person.principal.owner();
        if found != owner {
            return Err(ExchangeError::OtherPerson(found));
        }
        if login.config.token == LoginToken::Access {
            // An access token has said who it is, and the ID token is sent on.
            self.check_id_token(login, begun, (tokens, Some("sub")))
                .await?;
        }
        Ok(person)
    }

    async fn check_id_token(
        &self,
        login: &Login,
        begun: &BegunLogin,
        (tokens, subject_claim): (&LoginTokens, Option<&str>),
    ) -> Result<PersonLogin, ExchangeError> {
        let token = tokens.id_token.as_ref().ok_or(ExchangeError::NoIdToken)?;
        let check = IdTokenCheck {
            issuer: &login.config.issuer,
            client_id: &login.config.client_id,
            nonce: &begun.nonce,
            subject_claim,
        };
        let found = self.auth.identify_by_id_token(token.expose(), &check).await;
        found.map_err(ExchangeError::Refused)
    }

    async fn identify(
        &self,
        login: &Login,
        begun: &BegunLogin,
        tokens: &LoginTokens,
    ) -> Result<PersonLogin, ExchangeError> {
        match login.config.token {
            LoginToken::Id => {
                let claim = login.config.subject_claim.as_deref();
                self.check_id_token(login, begun, (tokens, claim)).await
            }
            LoginToken::Access => {
                let token = tokens.access_token.expose();
                let asked = begun.resource.as_deref();
                let endpoint = login
                    .endpoints
                    .iter()
                    .find(|one| Some(&*one.resource) == asked);
                let endpoint = endpoint.ok_or(ExchangeError::NoEndpoint)?;
                let of = (&*login.config.issuer, &**endpoint);
                let found = self.auth.identify_by_access_token(token, of).await;
                found.map_err(ExchangeError::Refused)
            }
        }
    }

    fn log_failure(&self, issuer: &str, error: &ExchangeError) {
        let (reason, remedy) = (error.reason(), error.remedy());
        if let Some(muted) = self.lines.admit(reason) {
            let error: &(dyn Error + 'static) = error;
            tracing::warn!(
                issuer,
                reason,
                error,
                remedy,
                muted,
                "login of the connect pages failed"
            );
        }
    }
}

fn log_success(person: &PersonLogin) {
    let (issuer, owner) = (person.principal.issuer(), person.principal.owner());
    tracing::info!(issuer, %owner, "person logged in at the connect pages");
}

#[cfg(test)]
mod tests {
    use http::header::COOKIE;

    use super::*;
    use crate::auth::Authenticator;
    use crate::call::Principal;
    use crate::clock::{SharedClock, SystemClock};
    use crate::connect::login::begun::owner_text;
    use crate::connect::login::{MAX_EXCHANGES, NextPage};
    use crate::runtime::lifecycle::TaskSpawner;
    use crate::seal::Sealer;

    const CONFIG: &str = "[auth]\nmode = \"oauth\"\n[[auth.issuers]]\nissuer = \"https://as.test\"\n\
        [upstreams.a]\ncommand = \"x\"\n[connect.login]\nissuer = \"https://as.test\"\nclient_id = \"g\"\n\
        client_secret = \"hunter2\"\n";

    #[test]
    fn error_description_is_one_masked_line() {
        let query = "error=x&error_description=AADSTS65004%0AApproval+required,+token=hunter2";
        let text = CallbackQuery::read(Some(query)).description.unwrap();
        assert!(text.starts_with("AADSTS65004 Approval required"), "{text}");
        assert!(!text.contains("hunter2"), "{text}");
    }

    fn logins() -> Logins {
        let config = crate::config::parse(CONFIG, "test.toml", &|_| None).unwrap();
        let clock: SharedClock = Arc::new(SystemClock);
        let (egress, tasks) = (&config.egress, TaskSpawner::new());
        let auth = Authenticator::new(&config.auth, egress, Arc::clone(&clock), tasks).unwrap();
        let sealing = (Arc::new(Sealer::new(&[]).unwrap()), clock);
        Logins::new(&config, &[], auth, sealing).unwrap()
    }

    /// A login at the issuer of [`logins`] that has no end.
    fn begun(keeps: Option<String>) -> BegunLogin {
        BegunLogin {
            issuer: "https://as.test".to_owned(),
            nonce: String::new(),
            verifier: String::new(),
            resource: None,
            next: NextPage::default(),
            keeps,
            ends: u64::MAX,
        }
    }

    // Spec: RFC 9207 §2.4
    #[tokio::test]
    async fn error_of_another_issuer_is_not_acted_on() {
        let logins = logins();
        let owner = Principal::anonymous().owner();
        let ended = async |(letter, iss): (&str, &str)| {
            let begun = begun(Some(owner_text(owner)));
            let state = letter.repeat(43);
            let cookie = begun.cookie(&logins.sealer, &state).unwrap();
            let pair = cookie.to_str().unwrap().split(';').next().unwrap();
            let headers = HeaderMap::from_iter([(COOKIE, pair.parse().unwrap())]);
            let query = format!("state={state}&error=invalid_scope{iss}");
            let answer = CallbackQuery::read(Some(&query));
            logins.end(&headers, &answer).await.outcome
        };
        for other in [
            ("a", "&iss=https://evil.test"),
            ("b", "&iss=https://as.test&iss=https://as.test"),
        ] {
            let outcome = ended(other).await;
            assert!(matches!(outcome, LoginOutcome::Failed(_)), "{outcome:?}");
            assert!(logins.may_outlast(owner));
        }
        let outcome = ended(("c", "&iss=https://as.test")).await;
        assert!(
            matches!(outcome, LoginOutcome::OfflineRefused { .. }),
            "{outcome:?}"
        );
        assert!(!logins.may_outlast(owner));
    }

    #[tokio::test(start_paused = true)]
    async fn code_that_waits_too_long_for_others_is_not_redeemed() {
        let logins = logins();
        let others = u32::try_from(MAX_EXCHANGES).unwrap();
        let _others = logins.exchanges.acquire_many(others).await.unwrap();
        let begun = begun(None);
        let (answer, code) = (CallbackQuery::default(), Secret::new("code"));
        let exchange = logins.exchange(&logins.all[0], &begun, &answer, &code);
        let failed = exchange.await.err().unwrap();
        assert!(matches!(failed.error, ExchangeError::Crowded));
    }

    // Spec: RFC 6749 §3.1
    #[test]
    fn parameter_that_stands_there_twice_has_no_value() {
        let read = CallbackQuery::read(Some("state=a&code=1&code=2&iss=https%3A%2F%2Fas.test"));
        assert_eq!(read.state.as_deref(), Some("a"));
        assert!(read.code.is_none() && read.error.is_none());
        assert_eq!(read.issuer.as_deref(), Some("https://as.test"));
    }

    // Counted as missing, they would let an answer pass that one of them refuses.
    #[test]
    fn issuer_or_error_that_stands_there_twice_refuses() {
        let read = CallbackQuery::read(Some("iss=a&iss=a&error=x&error=x&code=1"));
        assert!(read.names_another("a"));
        assert_eq!(read.error.as_deref(), Some(""));
    }
}
