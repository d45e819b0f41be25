//! `PrincipalState`: failures, refusals and step-ups of one principal's token requests.

use tokio::time::Instant;

use super::super::failure::TokenFailure;
use super::super::source_state::SourceState;

/// The token requests of one principal.
#[derive(Debug, Default)]
pub(super) struct PrincipalState {
    pub(super) source: SourceState,
    /// The number of the connection that lacks the further scopes of `source`.
    pub(super) lacking: i64,
    /// The version of the grant that the upstream refused, and that a refresh replaces.
    forced: i64,
}

impl PrincipalState {
    /// Records that the upstream refused the token of `version`. Returns whether that token is already the result of a
    /// refresh that a refusal caused, less than a minute ago.
    ///
    /// # Errors
    /// The refresh failed a moment ago.
    pub(super) fn force(&mut self, version: i64) -> Result<bool, TokenFailure> {
        if self.forced == version {
            let failure = self.source.current_failure(None);
            return failure.map_or(Ok(false), |failure| Err(failure.clone()));
        }
        if self.source.was_forced() {
            return Ok(true);
        }
        self.forced = version;
        self.source.forced = Some(Instant::now());
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn refused_token_is_replaced_and_a_fresh_one_is_not() {
        let mut state = PrincipalState::default();
        assert!(!state.force(1).unwrap());
        // Other calls with the same token wait for the same refresh.
        assert!(!state.force(1).unwrap());
        assert!(state.force(2).unwrap());
        let failure = TokenFailure::unfinished();
        state.source.failure = Some((failure, Instant::now() + Duration::from_mins(1), None));
        assert!(state.force(1).is_err());
    }
}
