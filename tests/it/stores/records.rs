//! Session records: the owner of a session, and the state that an adopter reads.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use drawbridge::call::{LogLevel, Principal, ServerDeclaration, UpstreamContinuation};
use drawbridge::config::SealKey;
use drawbridge::ownership::Ownership;
use drawbridge::protocol::Revision;
use drawbridge::redis_client::RedisClient;
use drawbridge::runtime::lifecycle::TaskSpawner;
use drawbridge::seal::Sealer;
use drawbridge::secret::Secret;
use drawbridge::store::events::SessionKey;
use drawbridge::store::fenced::FencedSessions;
use drawbridge::store::records::{
    Adoption, RecordSource, RecordState, RecordWriter, RecordedCapabilities, RecordedSite,
    RecordedTask, SessionRecord, SharedRecords,
};
use drawbridge::store::scripts::StoreKeys;

use super::{ask, dump, has, keys_with_life, redis, sealer};
use crate::harness::{eventually, within};

const SESSION: SessionKey = [9; 16];
const RECORD: &str = "test:{09090909090909090909090909090909}:record";
const LIFE: Duration = Duration::from_mins(10);

fn owner(node: u32, epoch: u16) -> Ownership {
    Ownership { node, epoch }
}

pub(super) fn record() -> SessionRecord {
    let principal = Principal::new("https://issuer", "MARKED-alice", "client", Vec::new(), None);
    SessionRecord {
        binding: principal.binding(),
        owner: principal.owner(),
        tag: 7,
        opened: Duration::from_secs(1_790_000_000),
        used: Duration::from_secs(1_790_000_001),
        is_initialized: true,
        endpoint: "mcp".to_owned(),
        revision: Revision::V2025_11_25,
        level: Some(LogLevel::Info),
        capabilities: RecordedCapabilities {
            own: Bytes::from_static(br#"{"roots":{}}"#),
            beyond: None,
            with_context: false,
        },
        client_info: Bytes::from_static(br#"{"name":"MARKED","version":"1"}"#),
        subscriptions: vec!["files/file:///MARKED".to_owned()],
        upstreams: vec![UpstreamContinuation {
            upstream: "files".to_owned(),
            declared: Arc::new(ServerDeclaration::new(
                Revision::V2025_06_18,
                Bytes::from_static(br#"{"MARKED":{}}"#),
                Bytes::from_static(br#"{"name":"MARKED"}"#),
                Some("MARKED".to_owned()),
            )),
            id: Secret::new("MARKED-upstream-session"),
            connection: 3,
        }],
        unshared: vec!["MARKED".to_owned()],
        tasks: vec![RecordedTask {
            handle: "MARKED-task".to_owned(),
            upstream: "files".to_owned(),
            site: RecordedSite::Upstream("MARKED-remote-task".to_owned()),
        }],
    }
}

/// A session of this replica.
#[derive(Debug)]
pub(super) struct Source {
    by: Ownership,
    /// `None` once the session is gone.
    pub(super) record: Mutex<Option<SessionRecord>>,
}

impl Source {
    pub(super) fn of(by: Ownership, record: SessionRecord) -> Arc<Self> {
        let record = Mutex::new(Some(record));
        Arc::new(Self { by, record })
    }
}

impl RecordSource for Source {
    fn ownership(&self) -> Ownership {
        self.by
    }

    fn highest_stream(&self) -> u32 {
        3
    }

    fn record(&self) -> Option<SessionRecord> {
        self.record.lock().unwrap().clone()
    }
}

pub(super) struct Replica {
    pub(super) records: Arc<SharedRecords>,
    pub(super) writer: Arc<RecordWriter>,
    fenced: Arc<FencedSessions>,
    tasks: TaskSpawner,
}

pub(super) fn replica(client: &RedisClient, sealer: &Arc<Sealer>, life: Duration) -> Replica {
    let keys = StoreKeys::new("test");
    let store = Arc::new(client.clone());
    let records = Arc::new(SharedRecords::new(store, keys, Arc::clone(sealer), life));
    let fenced = Arc::new(FencedSessions::default());
    let tasks = TaskSpawner::new();
    Replica {
        writer: RecordWriter::start(Arc::clone(&records), Arc::clone(&fenced), &tasks),
        records,
        fenced,
        tasks,
    }
}

impl Replica {
    fn track(&self, source: &Arc<Source>) {
        self.writer.track(SESSION, Arc::clone(source) as _);
    }

    /// Waits until the store has this record.
    async fn has_record(&self, expected: &SessionRecord) {
        eventually("the record is written", async || {
            let state = self.records.read(SESSION).await.ok()?;
            matches!(&state, RecordState::Owned { record: Some(record), .. } if **record == *expected)
                .then_some(())
        })
        .await;
    }

    async fn is(&self, expected: &RecordState) {
        eventually("the record says so", async || {
            let state = self.records.read(SESSION).await.ok()?;
            (state == *expected).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn record_is_written_and_adopted_once() {
    let Some((_server, client)) = redis().await else {
        return;
    };
    let sealer = sealer();
    let one = replica(&client, &sealer, LIFE);
    let source = Source::of(owner(1, 0), record());
    one.track(&source);
    one.has_record(&record()).await;
    let (two, three) = (
        replica(&client, &sealer, LIFE),
        replica(&client, &sealer, LIFE),
    );
    let now = two.records.time(SESSION).await.unwrap();
    let late = two.records.adopt(
        SESSION,
        owner(1, 0),
        (2, now.saturating_sub(Duration::from_millis(1))),
    );
    assert!(matches!(
        late.await.unwrap(),
        Adoption::Refused(RecordState::Owned { by, .. }) if by == owner(1, 0)
    ));
    let soon = now + Duration::from_mins(1);
    let both = tokio::join!(
        two.records.adopt(SESSION, owner(1, 0), (2, soon)),
        three.records.adopt(SESSION, owner(1, 0), (3, soon)),
    );
    let outcomes = [both.0.unwrap(), both.1.unwrap()];
    let adopted: Vec<Ownership> = outcomes
        .iter()
        .filter_map(|outcome| match outcome {
            Adoption::Adopted {
                by,
                highest_stream: 3,
                record: Some(found),
            } if **found == record() => Some(*by),
            _ => None,
        })
        .collect();
    assert_eq!(adopted.len(), 1, "{outcomes:?}");
    assert_eq!(adopted[0].epoch, 1);
    assert!(outcomes.iter().any(|outcome| matches!(
        outcome,
        Adoption::Refused(RecordState::Owned { by, .. }) if *by == adopted[0]
    )));
    // The former owner is told, and changes nothing.
    source.record.lock().unwrap().as_mut().unwrap().level = None;
    one.writer.change(SESSION);
    assert_eq!(
        within("the session is fenced", one.fenced.next()).await,
        (SESSION, owner(1, 0))
    );
    one.writer.end(SESSION, owner(1, 0), true);
    two.has_record(&record()).await;
    keys_with_life(&client).await;
}

#[tokio::test]
async fn changed_record_replaces_the_former_one() {
    let Some((_server, client)) = redis().await else {
        return;
    };
    let one = replica(&client, &sealer(), LIFE);
    let source = Source::of(owner(1, 0), record());
    one.track(&source);
    one.has_record(&record()).await;
    let mut changed = record();
    changed.subscriptions.push("files/file:///b".to_owned());
    *source.record.lock().unwrap() = Some(changed.clone());
    one.writer.change(SESSION);
    one.has_record(&changed).await;
}

#[tokio::test]
async fn ended_session_stays_ended() {
    let Some((_server, client)) = redis().await else {
        return;
    };
    let sealer = sealer();
    let one = replica(&client, &sealer, LIFE);
    assert_eq!(
        one.records.read(SESSION).await.unwrap(),
        RecordState::Absent
    );
    let source = Source::of(owner(1, 0), record());
    one.track(&source);
    one.has_record(&record()).await;
    one.writer.end(SESSION, owner(1, 0), true);
    one.is(&RecordState::Over).await;
    let soon = one.records.time(SESSION).await.unwrap() + Duration::from_mins(1);
    let adoption = one.records.adopt(SESSION, owner(1, 0), (2, soon));
    let adoption = adoption.await.unwrap();
    assert_eq!(adoption, Adoption::Refused(RecordState::Over));
    let two = replica(&client, &sealer, LIFE);
    two.track(&source);
    assert_eq!(
        within("the session is fenced", two.fenced.next()).await,
        (SESSION, owner(1, 0))
    );
    assert_eq!(two.records.read(SESSION).await.unwrap(), RecordState::Over);
    keys_with_life(&client).await;
}

#[tokio::test]
async fn stopped_replica_says_that_its_sessions_are_over() {
    let Some((_server, client)) = redis().await else {
        return;
    };
    let one = replica(&client, &sealer(), LIFE);
    one.track(&Source::of(owner(1, 0), record()));
    one.has_record(&record()).await;
    assert!(one.tasks.shut_down(Duration::ZERO).await);
    one.writer.end(SESSION, owner(1, 0), true);
    one.writer.flush(Duration::from_secs(1)).await;
    assert_eq!(one.records.read(SESSION).await.unwrap(), RecordState::Over);
}

#[tokio::test]
async fn full_store_takes_what_replaces_a_record() {
    for leaves_record in [true, false] {
        let Some((_server, client)) = redis().await else {
            return;
        };
        let one = replica(&client, &sealer(), LIFE);
        one.track(&Source::of(owner(1, 0), record()));
        one.has_record(&record()).await;
        ask::<()>(&client, &["CONFIG", "SET", "maxmemory", "1"]).await;
        assert!(one.writer.give_up(SESSION, owner(1, 0)).await.unwrap());
        one.writer.leave(SESSION);
        let given_up = owner(1, 0).given_up().unwrap();
        let adopted = one.records.adopt_given_up(SESSION, given_up, 2).await;
        let is_adopted = matches!(adopted, Ok(Adoption::Adopted { .. }));
        assert!(is_adopted, "{adopted:?}");
        one.writer.end_adopted(SESSION, owner(2, 2), leaves_record);
        let over = if leaves_record {
            RecordState::Over
        } else {
            removed(3)
        };
        one.is(&over).await;
    }
}

#[tokio::test]
async fn one_replica_gets_a_claimed_session() {
    let Some((_server, client)) = redis().await else {
        return;
    };
    let sealer = sealer();
    let (one, two) = (
        replica(&client, &sealer, LIFE),
        replica(&client, &sealer, LIFE),
    );
    let both = tokio::join!(
        one.records.claim(SESSION, owner(1, 0)),
        two.records.claim(SESSION, owner(2, 0)),
    );
    let (first, second) = (both.0.unwrap(), both.1.unwrap());
    assert_eq!(first, second);
    one.is(&RecordState::Owned {
        by: first,
        highest_stream: 0,
        record: None,
    })
    .await;
    // What no client can name leaves its epoch alone: the next request may begin anywhere.
    let (winner, other) = if first.node == 1 {
        (&one, 2)
    } else {
        (&two, 1)
    };
    winner.track(&Source::of(first, record()));
    winner.writer.end(SESSION, first, false);
    winner.is(&removed(1)).await;
    let next = one.records.claim(SESSION, owner(other, 0)).await.unwrap();
    assert_eq!(next, owner(other, 2));
}

/// What is left of a record that was removed.
fn removed(epoch: u16) -> RecordState {
    RecordState::Owned {
        by: owner(0, epoch),
        highest_stream: 0,
        record: None,
    }
}

#[tokio::test]
async fn former_owner_changes_nothing_of_the_session_that_is_claimed_next() {
    let Some((_server, client)) = redis().await else {
        return;
    };
    let sealer = sealer();
    let one = replica(&client, &sealer, LIFE);
    let claimed = one.records.claim(SESSION, owner(1, 0)).await.unwrap();
    let until = one.records.time(SESSION).await.unwrap() + LIFE;
    let adopted = one.records.adopt(SESSION, claimed, (2, until)).await;
    assert!(matches!(adopted, Ok(Adoption::Adopted { .. })));
    let former = owner(2, 1);
    one.writer.end_adopted(SESSION, former, false);
    one.is(&removed(2)).await;
    let next = one.records.claim(SESSION, owner(1, 0)).await.unwrap();
    assert_eq!(next, owner(1, 3), "the next epoch");
    let state = RecordState::Owned {
        by: next,
        highest_stream: 0,
        record: None,
    };
    // Both come late. What is not told when the next session is tracked is told no more.
    one.writer.end_adopted(SESSION, former, false);
    one.writer.flush(Duration::from_secs(1)).await;
    assert_eq!(one.records.read(SESSION).await.unwrap(), state);
    one.track(&Source::of(former, record()));
    let fenced = within("the session is fenced", one.fenced.next());
    assert_eq!(fenced.await, (SESSION, former));
    assert_eq!(one.records.read(SESSION).await.unwrap(), state);
}

#[tokio::test]
async fn owner_takes_back_that_it_has_removed_a_record() {
    let Some((_server, client)) = redis().await else {
        return;
    };
    let one = replica(&client, &sealer(), LIFE);
    let claimed = one.records.claim(SESSION, owner(1, 0)).await.unwrap();
    one.writer.end_adopted(SESSION, claimed, false);
    one.is(&removed(1)).await;
    // The next session under this record has begun.
    one.track(&Source::of(claimed, record()));
    one.has_record(&record()).await;
}

#[tokio::test]
async fn session_that_has_ended_takes_no_removed_record_back() {
    let Some((_server, client)) = redis().await else {
        return;
    };
    let sealer = sealer();
    let one = replica(&client, &sealer, LIFE);
    let claimed = one.records.claim(SESSION, owner(1, 0)).await.unwrap();
    one.track(&Source::of(claimed, record()));
    one.has_record(&record()).await;
    one.writer.end(SESSION, claimed, false);
    one.is(&removed(1)).await;
    // What it has written before comes late, over another connection.
    let late = replica(&client, &sealer, LIFE);
    late.track(&Source::of(claimed, record()));
    let refused = within("the session is fenced", late.fenced.next());
    assert_eq!(refused.await, (SESSION, claimed));
    assert_eq!(one.records.read(SESSION).await.unwrap(), removed(1));
    // The next session under this record has begun.
    let next = SessionRecord {
        tag: record().tag + 1,
        ..record()
    };
    one.track(&Source::of(claimed, next.clone()));
    one.has_record(&next).await;
    one.writer.end(SESSION, claimed, false);
    one.is(&removed(1)).await;
    let claimed = one.records.claim(SESSION, owner(2, 0)).await.unwrap();
    assert_eq!(claimed, owner(2, 2), "the next epoch");
    keys_with_life(&client).await;
}

#[tokio::test]
async fn claim_of_a_lost_replica_is_adopted_without_a_record() {
    let Some((_server, client)) = redis().await else {
        return;
    };
    let sealer = sealer();
    let one = replica(&client, &sealer, LIFE);
    let claimed = one.records.claim(SESSION, owner(1, 0)).await.unwrap();
    assert_eq!(claimed, owner(1, 0));
    let until = one.records.time(SESSION).await.unwrap() + LIFE;
    let adopted = one.records.adopt(SESSION, claimed, (2, until)).await;
    let adopted = adopted.unwrap();
    assert_eq!(
        adopted,
        Adoption::Adopted {
            by: owner(2, 1),
            highest_stream: 0,
            record: None,
        }
    );
    // The former owner neither writes nor claims it.
    let claimed = one.records.claim(SESSION, owner(1, 0)).await.unwrap();
    assert_eq!(claimed, owner(2, 1));
    one.track(&Source::of(owner(1, 0), record()));
    let fenced = within("the session is fenced", one.fenced.next());
    assert_eq!(fenced.await, (SESSION, owner(1, 0)));
    // What cannot be rebuilt leaves its epoch alone.
    one.writer.end_adopted(SESSION, owner(2, 1), false);
    one.is(&removed(2)).await;
}

#[tokio::test]
async fn session_that_begins_again_is_not_ended_by_the_one_before() {
    let Some((_server, client)) = redis().await else {
        return;
    };
    let one = replica(&client, &sealer(), LIFE);
    one.track(&Source::of(owner(1, 0), record()));
    one.has_record(&record()).await;
    // Its task is gone: the store is told of nothing.
    assert!(one.tasks.shut_down(Duration::ZERO).await);
    one.writer.end(SESSION, owner(1, 0), false);
    one.track(&Source::of(owner(1, 0), record()));
    one.writer.flush(Duration::from_secs(1)).await;
    one.has_record(&record()).await;
}

#[tokio::test]
async fn record_is_renewed_while_its_session_lives() {
    let Some((_server, client)) = redis().await else {
        return;
    };
    let one = replica(&client, &sealer(), Duration::from_secs(2));
    let mut long = record();
    long.client_info = vec![b'i'; 5000].into();
    let source = Source::of(owner(1, 0), long.clone());
    one.track(&source);
    one.has_record(&long).await;
    ask::<()>(&client, &["PEXPIRE", RECORD, "60000"]).await;
    eventually("the record is renewed", async || {
        let life: i64 = ask(&client, &["PTTL", RECORD]).await;
        (life > 0 && life <= 2000).then_some(())
    })
    .await;
    // The owner writes what Redis has lost.
    ask::<()>(&client, &["FLUSHALL"]).await;
    one.has_record(&long).await;
    assert_eq!(keys_with_life(&client).await.len(), 2);
    // No record, no renewal.
    *source.record.lock().unwrap() = None;
    one.is(&RecordState::Absent).await;
}

#[tokio::test]
async fn long_client_info_is_kept_once() {
    let Some((server, client)) = redis().await else {
        return;
    };
    let sealer = sealer();
    let one = replica(&client, &sealer, LIFE);
    let mut long = record();
    long.client_info = "MARKED ".repeat(1000).into();
    let sources: Vec<Arc<Source>> = (1..=20)
        .map(|_| Source::of(owner(1, 0), long.clone()))
        .collect();
    for (session, source) in (0..).zip(&sources) {
        one.writer.track([session; 16], Arc::clone(source) as _);
    }
    one.has_record(&long).await;
    eventually("all records are written", async || {
        let keys: Vec<String> = ask(&client, &["KEYS", "*:record"]).await;
        (keys.len() == 20).then_some(())
    })
    .await;
    assert_eq!(keys_with_life(&client).await.len(), 21);
    let bytes: usize = ask(&client, &["MEMORY", "USAGE", RECORD]).await;
    assert!(bytes < 2048, "{bytes}");
    let dump = dump(&server, &client).await;
    assert!(has(&dump, ":record") && !has(&dump, "MARKED"));
    let stranger = replica(&client, &super::sealer(), LIFE);
    let unread = RecordState::Owned {
        by: owner(1, 0),
        highest_stream: 3,
        record: None,
    };
    assert_eq!(stranger.records.read(SESSION).await.unwrap(), unread);
}

#[tokio::test]
async fn long_text_outlives_the_key_that_sealed_it() {
    let Some((_server, client)) = redis().await else {
        return;
    };
    let ring = |ids: &[&str]| {
        let key = |id: &&str| SealKey {
            id: (*id).to_owned(),
            key: Secret::new(id.repeat(32)),
        };
        let keys: Vec<SealKey> = ids.iter().map(key).collect();
        Arc::new(Sealer::new(&keys).unwrap())
    };
    let mut long = record();
    long.client_info = vec![b'i'; 5000].into();
    let source = Source::of(owner(1, 0), long.clone());
    for keys in [&["a"][..], &["b", "a"]] {
        let one = replica(&client, &ring(keys), LIFE);
        one.track(&source);
        one.has_record(&long).await;
        one.writer.write_again(Duration::ZERO).await;
    }
    // The first key has left the ring.
    replica(&client, &ring(&["b"]), LIFE)
        .has_record(&long)
        .await;
}

#[tokio::test]
async fn records_of_an_outage_are_written_afterwards() {
    let Some((mut server, client)) = redis().await else {
        return;
    };
    let one = replica(&client, &sealer(), LIFE);
    let source = Source::of(owner(1, 0), record());
    one.track(&source);
    one.has_record(&record()).await;
    server.kill();
    let mut changed = record();
    changed.level = None;
    *source.record.lock().unwrap() = Some(changed.clone());
    one.writer.change(SESSION);
    server.start().await;
    one.has_record(&changed).await;
    // Empty once more, with the same server.
    ask::<()>(&client, &["FLUSHALL"]).await;
    one.writer.write_again(Duration::ZERO).await;
    one.has_record(&changed).await;
}

#[tokio::test]
async fn session_that_was_given_up_is_adopted_once_at_once() {
    let Some((_server, client)) = redis().await else {
        return;
    };
    let sealer = sealer();
    let one = replica(&client, &sealer, LIFE);
    let source = Source::of(owner(1, 4), record());
    one.track(&source);
    one.has_record(&record()).await;
    let mut last = record();
    last.client_info = vec![b'i'; 5000].into();
    *source.record.lock().unwrap() = Some(last.clone());
    assert!(one.writer.give_up(SESSION, owner(1, 4)).await.unwrap());
    let given_up = owner(1, 4).given_up().unwrap();
    one.is(&RecordState::Owned {
        by: given_up,
        highest_stream: 3,
        record: Some(Box::new(last.clone())),
    })
    .await;
    // A call whose reply was lost is repeated.
    assert!(one.writer.give_up(SESSION, owner(1, 4)).await.unwrap());
    let (two, three) = (
        replica(&client, &sealer, LIFE),
        replica(&client, &sealer, LIFE),
    );
    let both = tokio::join!(
        two.records.adopt_given_up(SESSION, given_up, 2),
        three.records.adopt_given_up(SESSION, given_up, 3),
    );
    let outcomes = [both.0.unwrap(), both.1.unwrap()];
    let adopted: Vec<Ownership> = outcomes
        .iter()
        .filter_map(|outcome| match outcome {
            Adoption::Adopted {
                by,
                record: Some(found),
                ..
            } if **found == last => Some(*by),
            _ => None,
        })
        .collect();
    assert_eq!(adopted.len(), 1, "{outcomes:?}");
    assert_eq!(adopted[0].epoch, 6);
    // Not its session any more, and it is not given up for the next owner.
    assert!(!one.writer.give_up(SESSION, owner(1, 4)).await.unwrap());
    keys_with_life(&client).await;
}

#[tokio::test]
async fn former_owner_changes_nothing_of_a_session_that_it_has_given_up() {
    let Some((_server, client)) = redis().await else {
        return;
    };
    let one = replica(&client, &sealer(), LIFE);
    let source = Source::of(owner(1, 0), record());
    one.track(&source);
    one.has_record(&record()).await;
    assert!(one.writer.give_up(SESSION, owner(1, 0)).await.unwrap());
    source.record.lock().unwrap().as_mut().unwrap().level = None;
    one.writer.change(SESSION);
    assert_eq!(
        within("the session is fenced", one.fenced.next()).await,
        (SESSION, owner(1, 0))
    );
    one.track(&source);
    one.writer.end(SESSION, owner(1, 0), true);
    one.writer.flush(Duration::from_secs(1)).await;
    let given_up = RecordState::Owned {
        by: owner(1, 0).given_up().unwrap(),
        highest_stream: 3,
        record: Some(Box::new(record())),
    };
    assert_eq!(one.records.read(SESSION).await.unwrap(), given_up);
}

#[tokio::test]
async fn session_that_is_over_is_not_given_up_and_a_lost_record_is_written() {
    let Some((_server, client)) = redis().await else {
        return;
    };
    let one = replica(&client, &sealer(), LIFE);
    let given_up = async || {
        let record = record();
        let given_up = one.records.give_up(SESSION, owner(1, 0), 3, &record);
        given_up.await.unwrap()
    };
    let source = Source::of(owner(1, 0), record());
    one.track(&source);
    one.has_record(&record()).await;
    one.writer.end(SESSION, owner(1, 0), true);
    one.is(&RecordState::Over).await;
    assert!(!given_up().await);
    assert_eq!(one.records.read(SESSION).await.unwrap(), RecordState::Over);
    ask::<()>(&client, &["FLUSHALL"]).await;
    assert!(given_up().await);
    one.has_record(&record()).await;
}
