//! `HeldToken`: a token in the headers of requests or in a variable of a child, with the times of its refresh and of its
//! end.

use std::time::Duration;

use http::{HeaderMap, HeaderValue};
use tokio::time::Instant;

use crate::call::CallerToken;
use crate::clock::Moment;
use crate::config::TokenPlace;
use crate::secret::Secret;

/// Part of its life after which a token is refreshed, and the random spread around it.
const REFRESH_AT: f64 = 0.8;
const SPREAD: f64 = 0.1;
/// A token is not used in the last ten seconds of its life, or the last tenth where that is shorter.
const MARGIN: Duration = Duration::from_secs(10);
/// How long the next child waits for the refresh of a token that is due and still good.
pub(super) const NEXT_WITHIN: Duration = Duration::from_secs(5);
/// Longer lives are cut to this.
const LONGEST_LIFE: Duration = Duration::from_hours(365 * 24);

/// A token or key in the headers or the variable that carry it.
#[derive(Debug, Default)]
pub struct PlacedToken {
    headers: HeaderMap,
    /// Name and value of the variable of a child.
    variable: Option<(String, Secret)>,
}

impl PlacedToken {
    /// `token` at `place`, beside the headers `fixed`; `None` if the token has characters that a header cannot have.
    #[must_use]
    pub fn new(fixed: &HeaderMap, place: &TokenPlace, token: &Secret) -> Option<Self> {
        let mut headers = fixed.clone();
        let variable = match place {
            TokenPlace::Header { name, prefix } => {
                let text = format!("{prefix}{}", token.expose());
                let mut value = HeaderValue::try_from(text).ok()?;
                value.set_sensitive(true);
                headers.insert(name.clone(), value);
                None
            }
            TokenPlace::Variable(_) if token.expose().contains('\0') => return None,
            TokenPlace::Variable(name) => Some((name.clone(), token.clone())),
        };
        Some(Self { headers, variable })
    }
}

/// One token, as the headers of a request or the environment of a child carry it.
#[derive(Debug)]
pub struct HeldToken {
    placed: PlacedToken,
    /// Scopes that were requested.
    pub(super) scopes: Vec<String>,
    refresh_at: Option<Moment>,
    ends: Option<Moment>,
    /// The number of the caller's token, where the end of that token ends this one: a refresh before a newer one
    /// arrives would gain nothing.
    pub(super) ends_with: Option<u64>,
    /// Whether the upstream refused it before and a retry is due; a success is reported.
    is_on_trial: bool,
    /// Connection number of the account; `0` where principals connect nothing.
    connection: i64,
}

impl HeldToken {
    /// The headers of a request.
    #[must_use]
    pub fn headers(&self) -> &HeaderMap {
        &self.placed.headers
    }

    /// Name and value of the variable of a child; `None` where it is sent in headers.
    #[must_use]
    pub fn variable(&self) -> Option<(&str, &Secret)> {
        let (name, value) = self.placed.variable.as_ref()?;
        Some((name, value))
    }

    /// A credential that does not expire.
    #[must_use]
    pub fn lasting(placed: PlacedToken) -> Self {
        Self {
            placed,
            scopes: Vec::new(),
            refresh_at: None,
            ends: None,
            ends_with: None,
            is_on_trial: false,
            connection: 0,
        }
    }

    /// The same token on trial after a refusal: a success is reported to `Credentials::accepted`.
    #[must_use]
    pub fn on_trial(self) -> Self {
        Self {
            is_on_trial: true,
            ..self
        }
    }

    /// The same token with the connection number of its account.
    pub(super) fn of(self, connection: i64) -> Self {
        Self { connection, ..self }
    }

    /// Connection number of the account; `0` where principals connect nothing.
    #[must_use]
    pub fn connection(&self) -> i64 {
        self.connection
    }

    /// Whether a success with this token must be reported to `Credentials::accepted`.
    #[must_use]
    pub fn is_on_trial(&self) -> bool {
        self.is_on_trial
    }

    /// Whether its end has come, or comes within seconds.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.ends.is_some_and(Moment::has_come)
    }

    /// The same token, for a grant that cannot be refreshed.
    pub(super) fn unrefreshed(self) -> Self {
        Self {
            refresh_at: None,
            ..self
        }
    }

    /// When the token needs another look: its refresh is due, or the token ends without a refresh. `None` for a token without
    /// either.
    #[must_use]
    pub fn due(&self) -> Option<Moment> {
        self.refresh_at.or(self.ends)
    }

    /// Whether a refresh is due.
    #[must_use]
    pub fn is_due(&self) -> bool {
        self.refresh_at.is_some_and(Moment::has_come)
    }

    /// A token that expires after `lasts`, and no later than the caller's token `subject`.
    pub(super) fn new(
        placed: PlacedToken,
        scopes: Vec<String>,
        lasts: Option<Duration>,
        subject: Option<&CallerToken>,
    ) -> Self {
        let lasts = lasts.map(|lasts| lasts.min(LONGEST_LIFE));
        let left = subject.and_then(|subject| subject.ends);
        let left = left.map(|ends| ends.saturating_duration_since(Instant::now()));
        let ends_with = subject.filter(|_| match (left, lasts) {
            (Some(left), Some(lasts)) => left <= lasts,
            (left, None) => left.is_some(),
            (None, Some(_)) => false,
        });
        let lasts = lasts.into_iter().chain(left).min();
        let chance = rand::random_range(1.0 - SPREAD..=1.0 + SPREAD);
        let refresh_at = lasts.map(|lasts| Moment::after(lasts.mul_f64(REFRESH_AT * chance)));
        let ends = lasts.map(|lasts| Moment::after(lasts.saturating_sub(MARGIN.min(lasts / 10))));
        Self {
            placed,
            scopes,
            refresh_at,
            ends,
            ends_with: ends_with.map(|subject| subject.number),
            is_on_trial: false,
            connection: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::call::{CallerAccess, Principal};

    #[test]
    fn token_that_lasts_for_ever_is_held() {
        let forever = Some(Duration::from_secs(u64::MAX));
        let token = HeldToken::new(PlacedToken::default(), Vec::new(), forever, None);
        assert!(!token.has_ended() && !token.is_due());
    }

    // Tokens that were made together, as after a restart, are not refreshed together.
    #[tokio::test(start_paused = true)]
    async fn refreshes_are_spread_by_a_tenth_of_their_time() {
        let life = Some(Duration::from_secs(1000));
        let made = |_| HeldToken::new(PlacedToken::default(), Vec::new(), life, None);
        let tokens: Vec<_> = (0..1000).map(made).collect();
        let due = async |seconds| {
            tokio::time::advance(Duration::from_secs(seconds)).await;
            tokens.iter().filter(|token| token.is_due()).count()
        };
        // The refresh comes after 800 seconds, a tenth sooner or later.
        assert_eq!(due(719).await, 0);
        assert!((1..=300).contains(&due(21).await), "of the first eighth");
        assert!((300..=700).contains(&due(60).await), "of the first half");
        assert!((700..1000).contains(&due(60).await), "but the last eighth");
        assert_eq!(due(21).await, 1000);
        assert!(tokens.iter().all(|token| !token.has_ended()));
    }

    // No answer of a child tells that its token has ended: the clock alone does.
    #[test]
    fn token_ends_while_the_machine_is_suspended() {
        let hour = Duration::from_hours(1);
        let token = HeldToken::new(PlacedToken::default(), Vec::new(), Some(hour), None);
        crate::clock::suspend_for(hour / 2);
        assert!(!token.has_ended() && !token.is_due());
        crate::clock::suspend_for(hour / 2);
        assert!(token.has_ended() && token.is_due());
    }

    #[test]
    fn token_of_a_child_is_in_its_variable_alone() {
        let place = TokenPlace::Variable("TRACKER_TOKEN".to_owned());
        let placed = |token| PlacedToken::new(&HeaderMap::new(), &place, &Secret::new(token));
        let held = HeldToken::lasting(placed("hunter2").unwrap());
        assert!(held.headers().is_empty());
        let (name, value) = held.variable().unwrap();
        assert_eq!((name, value.expose()), ("TRACKER_TOKEN", "hunter2"));
        assert!(!format!("{held:?}").contains("hunter2"));
        assert!(placed("no variable holds\0this").is_none());
    }

    fn subject(seconds: u64) -> Arc<CallerToken> {
        let alice = Principal::new("https://issuer", "alice", "c", Vec::new(), None);
        let access = CallerAccess::new(
            alice.access_key("https://gw"),
            alice.issuer(),
            alice.owner(),
        );
        access.bring("token", Some(Instant::now() + Duration::from_secs(seconds)));
        access.token().unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn exchanged_token_ends_with_the_callers() {
        let made = |lasts: Option<u64>, subject: &CallerToken| {
            let lasts = lasts.map(Duration::from_secs);
            HeldToken::new(PlacedToken::default(), Vec::new(), lasts, Some(subject))
        };
        let (short, long) = (subject(100), subject(1000));
        assert_eq!(made(Some(500), &short).ends_with, Some(0));
        assert_eq!(made(None, &short).ends_with, Some(0));
        assert_eq!(made(Some(500), &long).ends_with, None);
        let tokens = [
            made(Some(500), &short),
            made(None, &short),
            made(Some(100), &long),
        ];
        tokio::time::advance(Duration::from_secs(85)).await;
        assert!(tokens.iter().all(|token| !token.has_ended()));
        tokio::time::advance(Duration::from_secs(15)).await;
        assert!(tokens.iter().all(HeldToken::has_ended));
    }
}
