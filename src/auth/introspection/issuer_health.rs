//! `IssuerHealth`: what failed questions say about the issuer, and what about one token alone.
//!
//! Anyone may present any token, and the token's text may determine the issuer's response. A failed
//! question therefore pauses that token only; the issuer is in doubt after failures that no token can
//! cause, or of several different tokens in a row, and never shortly after an answer (SPEC A-23).

use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

use super::super::cache::TokenKey;
use crate::lock::lock;

/// Questions about this many different tokens have to fail in a row before the issuer is in doubt.
const IN_A_ROW: usize = 3;
/// Tokens remembered with their failed questions; the oldest goes first.
const MAX_FAILED: usize = 64;
/// An answered question outweighs failed ones for this long.
const ANSWER_AGE: Duration = Duration::from_secs(10);
/// Nothing is asked for this long after the issuer refused our credentials, and of one token after a
/// question about it failed.
const PAUSE: Duration = Duration::from_secs(1);

/// The likely cause of a failed question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FailureCause {
    /// The token, which is refused and remembered as refused, unless the issuer is in doubt.
    Token,
    /// Unknown; possibly the token.
    Unknown,
    /// The issuer: no token can cause this failure.
    Issuer,
    /// The gateway's own client credentials.
    Credentials,
}

/// Whether and how a question may be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RequestPermission {
    /// As soon as there is a place.
    Ask,
    /// At once or not at all, in half of the places: the issuer is in doubt.
    InDoubt,
    /// Not now.
    Paused,
}

/// Health of one issuer, derived from recent questions. Bounded in size.
#[derive(Debug, Default)]
pub(super) struct IssuerHealth(Mutex<HealthState>);

#[derive(Debug, Default)]
struct HealthState {
    answered: Option<Instant>,
    /// Different tokens whose questions failed since the last answer, oldest first; when they were paused.
    failed: Vec<(TokenKey, Option<Instant>)>,
    /// Since the last answer, a question failed in a way that no token can cause.
    is_at_fault: bool,
    credentials_refused: Option<Instant>,
}

impl IssuerHealth {
    /// Whether a question about the token of `key` may be asked now.
    pub(super) fn admit(&self, key: &TokenKey) -> RequestPermission {
        let state = lock(&self.0);
        let is_paused = |at: &Instant| at.elapsed() < PAUSE;
        let has_failed = state
            .failed
            .iter()
            .any(|(failed, at)| failed == key && at.as_ref().is_some_and(is_paused));
        let in_doubt = state.is_in_doubt();
        let refused = in_doubt && state.credentials_refused.as_ref().is_some_and(is_paused);
        if has_failed || refused {
            RequestPermission::Paused
        } else if in_doubt {
            RequestPermission::InDoubt
        } else {
            RequestPermission::Ask
        }
    }

    /// The issuer answered a question.
    pub(super) fn answered(&self) {
        let mut state = lock(&self.0);
        *state = HealthState {
            answered: Some(Instant::now()),
            ..HealthState::default()
        };
    }

    /// A question about the token of `key` failed. Whether the issuer is in doubt now.
    pub(super) fn failed(&self, key: &TokenKey, blame: FailureCause) -> bool {
        let now = Instant::now();
        let mut state = lock(&self.0);
        state.failed.retain(|(failed, _)| failed != key);
        if state.failed.len() >= MAX_FAILED {
            state.failed.remove(0);
        }
        state.failed.push((*key, Some(now)));
        state.is_at_fault |= matches!(blame, FailureCause::Issuer | FailureCause::Credentials);
        if blame == FailureCause::Credentials {
            state.credentials_refused = Some(now);
        }
        let in_doubt = state.is_in_doubt();
        if blame == FailureCause::Token
            && !in_doubt
            && let Some((_, paused)) = state.failed.last_mut()
        {
            *paused = None;
        }
        in_doubt
    }
}

impl HealthState {
    fn is_in_doubt(&self) -> bool {
        let has_answered = self.answered.is_some_and(|at| at.elapsed() < ANSWER_AGE);
        !has_answered && (self.is_at_fault || self.failed.len() >= IN_A_ROW)
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    fn key(token: &str) -> TokenKey {
        TokenKey::of("", token.as_bytes())
    }

    #[tokio::test(start_paused = true)]
    async fn one_token_that_fails_often_puts_no_issuer_in_doubt() {
        let health = IssuerHealth::default();
        for _ in 0..2 * IN_A_ROW {
            assert!(!health.failed(&key("junk"), FailureCause::Unknown));
        }
        assert_eq!(health.admit(&key("junk")), RequestPermission::Paused);
        assert_eq!(health.admit(&key("good")), RequestPermission::Ask);
        advance(PAUSE).await;
        assert_eq!(health.admit(&key("junk")), RequestPermission::Ask);
    }

    #[tokio::test(start_paused = true)]
    async fn several_tokens_in_a_row_put_the_issuer_in_doubt() {
        let health = IssuerHealth::default();
        for n in 0..IN_A_ROW {
            let in_doubt = health.failed(&key(&n.to_string()), FailureCause::Unknown);
            assert_eq!(in_doubt, n + 1 == IN_A_ROW);
        }
        assert_eq!(health.admit(&key("good")), RequestPermission::InDoubt);
        health.answered();
        assert_eq!(health.admit(&key("good")), RequestPermission::Ask);
    }

    #[tokio::test(start_paused = true)]
    async fn a_recent_answer_outweighs_failures() {
        let health = IssuerHealth::default();
        health.answered();
        for n in 0..2 * MAX_FAILED {
            assert!(!health.failed(&key(&n.to_string()), FailureCause::Credentials));
        }
        assert_eq!(health.admit(&key("good")), RequestPermission::Ask);
        assert_eq!(lock(&health.0).failed.len(), MAX_FAILED);
        advance(ANSWER_AGE).await;
        assert_eq!(health.admit(&key("good")), RequestPermission::InDoubt);
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_asked_for_a_second_after_our_credentials_were_refused() {
        let health = IssuerHealth::default();
        assert!(health.failed(&key("a"), FailureCause::Credentials));
        assert_eq!(health.admit(&key("b")), RequestPermission::Paused);
        advance(PAUSE).await;
        assert_eq!(health.admit(&key("b")), RequestPermission::InDoubt);
    }
}
