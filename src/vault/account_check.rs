//! `AccountCheck`: how long the result of a look-up of an account may be used without another look-up.

use std::time::Duration;

use tokio::time::Instant;

use crate::clock::Moment;
use crate::runtime::poll_time;

/// An account is looked up once in this time at least: look-ups stamp the last use of an account.
const LASTS: Duration = Duration::from_mins(1);

/// An account was looked up and is connected.
#[derive(Debug, Clone, Copy)]
pub struct AccountCheck {
    connection: i64,
    generation: u64,
    ends: Instant,
    /// When its token has to be refreshed, or ends.
    due: Option<Moment>,
}

impl AccountCheck {
    /// The account of `connection`, whose token is good until `due`. It was looked up after
    /// [`generation`](super::Vault::generation) was read.
    #[must_use]
    pub fn new(connection: i64, generation: u64, due: Option<Moment>) -> Self {
        Self {
            connection,
            generation,
            ends: poll_time::now() + LASTS,
            due,
        }
    }

    /// The number of the account's connection.
    #[must_use]
    pub fn connection(&self) -> i64 {
        self.connection
    }

    /// Whether the account can be used without another look-up: it was not changed up to `generation`, the last look-up
    /// was less than a minute ago, and its token is good. No lock.
    #[must_use]
    pub fn is_good(&self, generation: u64) -> bool {
        self.generation == generation
            && poll_time::now() < self.ends
            && !self.due.is_some_and(Moment::has_come)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn check_lasts_a_minute() {
        let check = AccountCheck::new(7, 1, None);
        tokio::time::advance(LASTS / 2).await;
        assert!(check.is_good(1));
        tokio::time::advance(LASTS / 2).await;
        assert!(!check.is_good(1));
    }

    #[tokio::test(start_paused = true)]
    async fn check_ends_with_a_change() {
        let check = AccountCheck::new(7, 1, None);
        assert!(check.is_good(1));
        assert!(!check.is_good(2));
    }

    // Tokio's clock has stood still meanwhile.
    #[tokio::test(start_paused = true)]
    async fn check_ends_with_the_token_while_the_machine_is_suspended() {
        let second = Duration::from_secs(1);
        let check = AccountCheck::new(7, 1, Some(Moment::after(second)));
        assert!(check.is_good(1));
        crate::clock::suspend_for(second);
        assert!(!check.is_good(1));
    }
}
