//! What Redis has acknowledged, as its logs say right after a kill, and what the clients have heard of it in the end.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

use drawbridge::config::SealKey;
use drawbridge::ownership::{Fence, Ownership};
use drawbridge::redis_client::{RedisClient, cmd};
use drawbridge::runtime::lifecycle::TaskSpawner;
use drawbridge::seal::Sealer;
use drawbridge::secret::Secret;
use drawbridge::store::events::{
    EventStore as _, LogBounds, ReplayResult, SessionKey, SharedEvents, SharedLogParts, StreamKey,
};
use drawbridge::store::fenced::FencedSessions;
use drawbridge::store::scripts::StoreKeys;
use futures_util::future::join_all;
use serde_json::Value;

use crate::harness::redis::RedisServer;
use crate::harness::replicas::SECRET;

/// What every key of the gateways begins with.
const PREFIX: &str = "drawbridge";
/// More than the log of a session has.
const EVENTS: usize = 10_000;

/// Events of one stream, by their positions.
type Events = BTreeMap<u64, Value>;

/// Session, stream and position of an event.
type Position = (SessionKey, u32, u64);

/// What is in the logs at the kills, and what was heard of the calls that have ended.
#[derive(Default)]
pub(super) struct Acknowledgements {
    logged: Mutex<HashMap<Position, Value>>,
    /// By client and stream.
    heard: Mutex<HashMap<(usize, u32), Events>>,
    /// Errors without an id, by client and stream.
    told: Mutex<HashMap<(usize, u32), Value>>,
}

/// How many events of how many streams were looked for.
pub(super) struct Compared {
    pub(super) events: usize,
    /// Of calls whose end says that their outcome is unknown.
    pub(super) of_lost_calls: usize,
}

impl Acknowledgements {
    /// Notes what Redis has now.
    pub(super) async fn look(&self, redis: &RedisServer) {
        let client = redis.client().await;
        let reader = reader(&client);
        let mut keys = cmd("KEYS");
        keys.arg(format!("{PREFIX}:*:events"));
        let keys: Vec<String> = client.command("keys", &keys).await.unwrap();
        let sessions = keys.iter().map(|key| session_of(key));
        let found = join_all(sessions.map(|session| read(&reader, session))).await;
        self.logged
            .lock()
            .unwrap()
            .extend(found.into_iter().flatten());
    }

    /// A client has heard a whole stream, whose ids are `<tag>.<stream>.<position>`.
    pub(super) fn heard(&self, client: usize, events: &[(Option<String>, Value)]) {
        let mut heard = self.heard.lock().unwrap();
        let mut newest = None;
        for (id, message) in events {
            let Some(id) = id else {
                // The error that a replica wrote which had passed the call on. The log has it once the session is adopted.
                let told = newest.map(|stream| ((client, stream), message.clone()));
                self.told.lock().unwrap().extend(told);
                continue;
            };
            let mut numbers = id.split('.').skip(1).map(|number| number.parse().unwrap());
            let (stream, seq): (u64, u64) = (numbers.next().unwrap(), numbers.next().unwrap());
            let stream = u32::try_from(stream).unwrap();
            let events = heard.entry((client, stream)).or_default();
            events.insert(seq, message.clone());
            newest = Some(stream);
        }
    }

    /// Fails where a client has not heard what Redis had of a stream that it has heard to its end.
    pub(super) fn compare(&self, client_of: impl Fn(&Value) -> Option<usize>) -> Compared {
        let logged = self.logged.lock().unwrap();
        let heard = self.heard.lock().unwrap();
        let told = self.told.lock().unwrap();
        let mut clients = HashMap::new();
        for ((session, ..), message) in &*logged {
            if let Some(client) = client_of(message) {
                clients.insert(*session, client);
            }
        }
        let mut compared = Compared {
            events: 0,
            of_lost_calls: 0,
        };
        for ((session, stream, seq), message) in &*logged {
            let client = clients.get(session);
            let Some(events) = client.and_then(|client| heard.get(&(*client, *stream))) else {
                continue;
            };
            let told = told.get(&(*client.unwrap(), *stream));
            assert_eq!(
                events.get(seq).or(told),
                Some(message),
                "event {seq} of stream {stream} of client {client:?}, who has {events:?}"
            );
            compared.events += 1;
            let mut messages = events.values().chain(told);
            let is_lost = messages.any(|message| message["error"].is_object());
            compared.of_lost_calls += usize::from(is_lost);
        }
        compared
    }
}

/// A reader of the logs that the gateways write.
fn reader(client: &RedisClient) -> Arc<SharedEvents> {
    let key = SealKey {
        id: "k1".to_owned(),
        key: Secret::new(SECRET.to_owned()),
    };
    let parts = SharedLogParts {
        bounds: LogBounds {
            max_age: std::time::Duration::from_hours(1),
            per_session: 16 << 20,
            total: 256 << 20,
        },
        store: Arc::new(client.clone()),
        keys: StoreKeys::new(PREFIX),
        sealer: Arc::new(Sealer::new(&[key]).unwrap()),
        own: Ownership { node: 1, epoch: 0 },
        fenced: Arc::new(FencedSessions::default()),
        fence: Fence::default(),
    };
    SharedEvents::start(parts, &TaskSpawner::new())
}

/// The session of a key of its log: its number in hexadecimal stands between braces.
fn session_of(key: &str) -> SessionKey {
    let digits = key.split(['{', '}']).nth(1).unwrap();
    let mut session = SessionKey::default();
    for (at, byte) in session.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).unwrap();
    }
    session
}

async fn read(reader: &SharedEvents, session: SessionKey) -> Vec<(Position, Value)> {
    let own = Ownership { node: 1, epoch: 0 };
    let mut all = Vec::new();
    for restored in reader.load(session, own).await.unwrap() {
        let stream = restored.stream;
        let events = match reader.after(StreamKey { session, stream }, 0, EVENTS) {
            ReplayResult::Events(events) | ReplayResult::Evicted(events) => events,
            ReplayResult::Unknown => Vec::new(),
        };
        // An empty event is no message.
        for event in events.iter().filter(|event| !event.payload.is_empty()) {
            let message = serde_json::from_slice(&event.payload).unwrap();
            all.push(((session, stream, event.seq), message));
        }
    }
    all
}
