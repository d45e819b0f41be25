//! `UnstoredGrant`: the next token of a grant, which the database has not taken yet. Where the server rotates refresh
//! tokens, it is the only copy.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::super::super::user_account::UserAccount;
use super::{RefreshFailure, Refreshed, audited, ended};
use crate::audit::AccountEvent;
use crate::database::DatabaseError;
use crate::runtime::fault_point;
use crate::telemetry::chain::chain;
use crate::vault::{GrantKey, GrantLease, GrantRecord};

/// Pause before the first retry of a write, doubled by each further one; and the number of attempts for which the callers
/// wait.
const PAUSE: Duration = Duration::from_millis(if cfg!(test) { 1 } else { 200 });
const ATTEMPTS: u32 = 8;
/// Pause between two attempts after that, and for how long these go on. As soon as the database answers, another process
/// may send the old refresh token: the pause is short.
const LATER_PAUSE: Duration = Duration::from_millis(500);
const KEPT: Duration = Duration::from_mins(10);

/// The result of a refresh, to be written under the lease.
#[derive(Debug)]
pub(in super::super) struct UnstoredGrant {
    pub(in super::super) key: GrantKey,
    /// The scopes that the grant had.
    pub(super) before: Vec<String>,
    pub(super) lease: GrantLease,
    pub(super) record: GrantRecord,
}

impl UnstoredGrant {
    /// Writes the result, in several attempts.
    ///
    /// # Errors
    /// The database fails.
    pub(super) async fn store(
        &self,
        account: &UserAccount,
    ) -> Result<Result<Refreshed, RefreshFailure>, DatabaseError> {
        let mut pause = PAUSE;
        for _ in 1..ATTEMPTS {
            if let Ok(stored) = self.store_once(account).await {
                return Ok(stored);
            }
            sleep(pause).await;
            pause *= 2;
        }
        self.store_once(account).await
    }

    /// Tries for ten minutes more to write the result. Logs how that ended.
    pub(in super::super) async fn store_later(&self, account: &UserAccount, why: &str) {
        let (upstream, owner) = (&self.key.upstream, self.key.owner);
        tracing::warn!(
            %upstream, %owner, error = why,
            "the next token of an account cannot be stored: it is tried again for ten minutes"
        );
        let began = Instant::now();
        loop {
            sleep(LATER_PAUSE).await;
            match self.store_once(account).await {
                Ok(stored) => {
                    let is_kept = matches!(stored, Ok(Refreshed::Written));
                    tracing::info!(%upstream, %owner, is_kept, "the database answers again");
                    return;
                }
                Err(error) if began.elapsed() >= KEPT => {
                    tracing::error!(
                        %upstream, %owner, error = chain(&error),
                        "the next token of an account is lost: its user may have to connect it again"
                    );
                    return;
                }
                Err(_) => {}
            }
        }
    }

    async fn store_once(
        &self,
        account: &UserAccount,
    ) -> Result<Result<Refreshed, RefreshFailure>, DatabaseError> {
        let (key, record) = (&self.key, &self.record);
        let written = account.vault.leases().finish(&self.lease, record).await?;
        if written.is_none() {
            return Ok(Ok(Refreshed::Changed));
        }
        fault_point::reached("refresh_stored");
        if record.access_token.is_none() {
            let why = "the identity provider gave no ID token for a refresh token";
            let ended = ended(account, (key, &record.issuer), ("no_id_token", why));
            return Ok(Err(ended));
        }
        account.log.succeeded(&self.before, Some(&record.scopes));
        let refreshed = audited(AccountEvent::Refreshed, key, &record.issuer);
        account.audit.account(refreshed);
        Ok(Ok(Refreshed::Written))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::time::timeout;

    use super::super::super::super::authorization::account_with;
    use super::super::super::UserTokens;
    use super::super::tests::{granting_after, key, record, stored};
    use super::*;
    use crate::database::{Database, DatabasePlace};
    use crate::lock::lock;

    #[tokio::test]
    async fn rotated_token_outlasts_an_outage_of_the_database() {
        const BODY: &str =
            r#"{"access_token":"newer","token_type":"Bearer","refresh_token":"next"}"#;
        let dir = tempfile::tempdir().unwrap();
        let account = account_with(&dir, "[egress]\nallow = [\"127.0.0.1\"]").await;
        let place = DatabasePlace::Sqlite(dir.path().join("test.db"));
        let database = Database::open(&place).await.unwrap();
        let (asked, outage) = (Arc::new(AtomicUsize::new(0)), database.clone());
        let count = Arc::clone(&asked);
        let endpoint = granting_after(BODY, move || {
            let (count, outage) = (Arc::clone(&count), outage.clone());
            async move {
                if count.fetch_add(1, Ordering::Relaxed) == 0 {
                    let away = "ALTER TABLE grants RENAME TO away";
                    outage.execute(away, &[]).await.unwrap();
                }
            }
        });
        let record = record("older", Some(1), &endpoint.await);
        account.vault.put_grant(&key(), &record).await.unwrap();
        let tokens = UserTokens::new(Arc::clone(&account));
        let token = async || Arc::clone(&tokens).token(key()).await;
        assert_eq!(token().await.unwrap_err().outcome, "database");
        // As after the pause behind a failure.
        lock(&tokens.refreshes.state(&key())).source.failure = None;
        let back = "ALTER TABLE away RENAME TO grants";
        database.execute(back, &[]).await.unwrap();
        // As after the 30 s of the lease: the old refresh token must not be sent again.
        let end = "UPDATE grants SET lease_ends = 0";
        database.execute(end, &[]).await.unwrap();
        let next = token().await.map(|_| ()).map_err(|failure| failure.outcome);
        assert!(matches!(next, Ok(()) | Err("database")), "{next:?}");
        let is_stored = async {
            while stored(&account).await.as_deref() != Some("newer") {
                sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(Duration::from_secs(20), is_stored).await.unwrap();
        let grant = account.vault.read_grant(&key()).await.unwrap().unwrap();
        assert_eq!(grant.record.refresh_token.unwrap().expose(), "next");
        assert_eq!(asked.load(Ordering::Relaxed), 1);
        let good = timeout(Duration::from_secs(20), async {
            while token().await.is_err() {
                sleep(Duration::from_millis(20)).await;
            }
        });
        good.await.expect("calls have the next token");
    }
}
