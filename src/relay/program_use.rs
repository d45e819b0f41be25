//! `ProgramUses`: which programs use the accounts of callers, for the connect pages and the audit log.
//!
//! A call that looks up its account looks at one stamp in memory. Once in ten minutes for a program, its use is enqueued
//! for the database, which says whether it was the first one since the account was connected.

use std::borrow::Cow;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use moka::sync::Cache;
use tokio::sync::mpsc;

use crate::audit::{AccountEvent, AccountRecord, AuditSink};
use crate::call::Call;
use crate::clock::SharedClock;
use crate::database::DatabaseError;
use crate::protocol::{Era, json, meta};
use crate::runtime::lifecycle::TaskSpawner;
use crate::session::Session;
use crate::telemetry::line_limit::LineLimit;
use crate::upstream::Upstreams;
use crate::vault::{GrantKey, MAX_NAME, Vault};

/// Between two notes of the same program, milliseconds: the last use is exact to this.
const NOTE_EVERY: i64 = 10 * 60 * 1000;
/// Stamps of programs in memory; an evicted program is noted again at its next call.
const MAX_STAMPS: u64 = 100_000;
/// Uses that wait for the database. Where it does not keep up, the next call of the program is noted.
const QUEUED: usize = 1024;

/// The uses of programs.
#[derive(Debug)]
pub(super) struct ProgramUses {
    queue: mpsc::Sender<ProgramUse>,
    /// When a program was noted last, by a hash of account and program.
    stamps: Cache<u64, Arc<AtomicI64>>,
    /// A keyed hash: clients cannot choose names that collide.
    hasher: RandomState,
    clock: SharedClock,
}

/// One use, on its way to the database.
#[derive(Debug)]
struct ProgramUse {
    /// The keys under which the vault may have the account.
    keys: Vec<GrantKey>,
    program: String,
    /// Written if it is the first use.
    record: AccountRecord,
}

impl ProgramUses {
    /// Starts the task that writes uses to `vault`, and first ones to `audit`.
    pub(super) fn start(
        vault: Vault,
        audit: AuditSink,
        clock: SharedClock,
        tasks: &TaskSpawner,
    ) -> Self {
        let (queue, uses) = mpsc::channel(QUEUED);
        tasks.spawn_service(write_uses(vault, audit, uses));
        Self {
            queue,
            stamps: Cache::new(MAX_STAMPS),
            hasher: RandomState::new(),
            clock,
        }
    }

    /// Notes that the program of `call` uses the account of the session's owner at `upstream`, which was connected by
    /// the change of number `connection`. `false` where too many uses wait, so that the next call has to be noted.
    pub(super) fn note(
        &self,
        (call, session): (&Call, &Session),
        (upstreams, upstream): (&Upstreams, &str),
        connection: i64,
    ) -> bool {
        let (owner, info) = (session.owner(), client_info(call, session));
        let hash = self.hasher.hash_one((owner, upstream, connection, info));
        let stamp = self.stamps.get_with(hash, Arc::default);
        let now = i64::try_from(self.clock.now().as_millis()).unwrap_or(i64::MAX);
        let last = stamp.load(Ordering::Relaxed);
        if now.saturating_sub(last) < NOTE_EVERY {
            return true;
        }
        let Ok(place) = self.queue.try_reserve() else {
            return false;
        };
        if stamp
            .compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed)
            .is_err()
        {
            // Another call of the program notes it.
            return true;
        }
        let program = queued_name(info);
        let record = AccountRecord::new(AccountEvent::FirstUse, owner, upstream);
        place.send(ProgramUse {
            keys: upstreams.caller_accounts().grant_keys(upstream, owner),
            record: record.of_call(call).program(Some(&program)),
            program,
        });
        true
    }
}

async fn write_uses(vault: Vault, audit: AuditSink, mut uses: mpsc::Receiver<ProgramUse>) {
    let lines = LineLimit::default();
    while let Some(noted) = uses.recv().await {
        match write_use(&vault, &noted).await {
            Ok(true) => audit.account(noted.record),
            Ok(false) => {}
            Err(error) => {
                if let Some(muted) = lines.admit(()) {
                    let error: &(dyn std::error::Error + 'static) = &error;
                    tracing::warn!(
                        error,
                        muted,
                        "database did not take which program used an account"
                    );
                }
            }
        }
    }
}

/// Returns whether it is the first use of the account by the program.
async fn write_use(vault: &Vault, noted: &ProgramUse) -> Result<bool, DatabaseError> {
    for key in &noted.keys {
        if vault.programs().note(key, &noted.program).await? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// What the program of a call says of itself: JSON text. The implicit session of modern clients is that of several
/// programs of one principal.
pub(super) fn client_info<'a>(call: &'a Call, session: &'a Session) -> &'a str {
    let of_session = || std::str::from_utf8(&session.client_info).unwrap_or_default();
    own_program(call).unwrap_or_else(of_session)
}

/// What a call itself says of its program: JSON text. `None` where it is the program of the session.
pub(super) fn own_program(call: &Call) -> Option<&str> {
    match call.revision.era() {
        Era::Modern => meta::client_info(&call.message),
        Era::Legacy => None,
    }
}

/// [`program_name`], cut before it waits for the database: clients choose how long it is.
fn queued_name(info: &str) -> String {
    program_name(info).chars().take(MAX_NAME).collect()
}

/// The name in what a program says of itself; empty where there is none.
pub(super) fn program_name(info: &str) -> Cow<'_, str> {
    let name = json::member(info, "name").and_then(json::string);
    name.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_name_is_cut_before_it_is_queued() {
        let info = format!(r#"{{"name":"{}","version":"1"}}"#, "é".repeat(1 << 20));
        assert_eq!(queued_name(&info), "é".repeat(MAX_NAME));
        assert_eq!(queued_name(r#"{"name":"editor"}"#), "editor");
    }
}
