//! Scripts that a shared store runs, each as one atomic step, and the names of keys.
//!
//! A script is a `.lua` file beside the code that calls it; the first lines of the file state the invariant.

use std::sync::{Arc, OnceLock};

use futures_util::future::{BoxFuture, join_all};

use super::events::SessionKey;
use crate::call::OwnerKey;
use crate::digest::hex;
use crate::redis_client::{RedisClient, RedisFailure, RedisScript, Value};

/// A script of the shared store.
#[derive(Debug)]
pub struct Script {
    /// What metrics call it.
    name: &'static str,
    text: &'static str,
    /// Made of the text when the script first runs.
    code: OnceLock<RedisScript>,
}

impl Script {
    /// The script with this text, in Lua.
    #[must_use]
    pub const fn new(name: &'static str, text: &'static str) -> Self {
        Self {
            name,
            text,
            code: OnceLock::new(),
        }
    }

    fn code(&self) -> &RedisScript {
        self.code.get_or_init(|| RedisScript::new(self.text))
    }

    /// What metrics call it.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }
}

/// One run of a script.
#[derive(Debug, Clone)]
pub struct ScriptCall {
    /// The script.
    pub script: &'static Script,
    /// All keys that the script names; they share a hash tag.
    pub keys: Vec<String>,
    /// Its arguments.
    pub args: Vec<Vec<u8>>,
}

/// What a script returned.
pub type ScriptResult = Result<Value, RedisFailure>;

/// Runs scripts in the shared store.
pub trait ScriptRunner: Send + Sync + std::fmt::Debug {
    /// Runs `calls` in one round trip; the results stand in the order of the calls, one for each. Bounded by
    /// the runner's own deadline.
    ///
    /// # Cancel safety
    /// Dropping the future abandons the replies; the scripts may have run.
    fn run(&self, calls: Vec<ScriptCall>) -> BoxFuture<'_, Vec<ScriptResult>>;

    /// Whether the store is connected, as one in this process always is: if not, each call fails at once.
    fn is_reachable(&self) -> bool {
        true
    }

    /// Names the run of the server that is connected, or was last; another one may have less than the one before.
    fn server_run(&self) -> Arc<str> {
        Arc::default()
    }
}

impl ScriptRunner for RedisClient {
    /// All calls are written together. They are no pipeline, as a Cluster has their keys in different slots.
    fn run(&self, calls: Vec<ScriptCall>) -> BoxFuture<'_, Vec<ScriptResult>> {
        let one = async |call: ScriptCall| {
            let args: Vec<&[u8]> = call.args.iter().map(Vec::as_slice).collect();
            self.script(call.script.name, call.script.code(), &call.keys, &args)
                .await
        };
        Box::pin(join_all(calls.into_iter().map(one)))
    }

    fn is_reachable(&self) -> bool {
        self.is_connected()
    }

    fn server_run(&self) -> Arc<str> {
        Arc::clone(&self.server().borrow().run_id)
    }
}

/// Runs one script.
///
/// # Errors
/// The script has no reply.
pub(super) async fn run_one(store: &dyn ScriptRunner, call: ScriptCall) -> ScriptResult {
    let mut results = store.run(vec![call]).await;
    results.pop().unwrap_or(Err(RedisFailure::Silent))
}

/// Names of keys in the shared store, all below one prefix.
#[derive(Debug, Clone)]
pub struct StoreKeys(Arc<str>);

impl StoreKeys {
    /// Keys that begin with `prefix`, which has no braces.
    #[must_use]
    pub fn new(prefix: &str) -> Self {
        Self(prefix.into())
    }

    /// The event log of a session.
    #[must_use]
    pub fn events(&self, session: SessionKey) -> String {
        self.of_session(session, "events")
    }

    /// The record of a session.
    #[must_use]
    pub fn record(&self, session: SessionKey) -> String {
        self.of_session(session, "record")
    }

    /// A long text of clients, which is kept once for all sessions.
    #[must_use]
    pub fn text(&self, digest: &[u8]) -> String {
        format!("{}:text:{}", self.0, hex(digest))
    }

    /// The allowance of a principal.
    #[must_use]
    pub fn rate(&self, owner: OwnerKey) -> String {
        format!("{}:rate:{}", self.0, hex(owner.bytes()))
    }

    /// What an owner holds of a quota at each replica.
    #[must_use]
    pub fn quota(&self, kind: &str, owner: OwnerKey) -> String {
        format!("{}:quota:{kind}:{}", self.0, hex(owner.bytes()))
    }

    /// Notices of all replicas.
    #[must_use]
    pub fn notices(&self) -> String {
        format!("{}:notices", self.0)
    }

    /// A key with the session's hash tag, so that a script finds all keys of a session in one slot.
    fn of_session(&self, session: SessionKey, what: &str) -> String {
        format!("{}:{{{}}}:{what}", self.0, hex(&session))
    }
}

/// The elements of a table; else none.
pub(super) fn elements(reply: &Value) -> &[Value] {
    match reply {
        Value::Array(elements) => elements,
        _ => &[],
    }
}

/// The bytes of a string.
pub(super) fn bytes(reply: &Value) -> Option<&[u8]> {
    match reply {
        Value::BulkString(bytes) => Some(bytes),
        _ => None,
    }
}

/// A number.
pub(super) fn integer(reply: &Value) -> Option<i64> {
    match reply {
        Value::Int(number) => Some(*number),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_a_session_share_its_hash_tag() {
        let keys = StoreKeys::new("gateway");
        let tag = |key: String| {
            let (_, rest) = key.split_once('{').unwrap();
            rest.split_once('}').unwrap().0.to_owned()
        };
        let session = [0xab; 16];
        assert_eq!(tag(keys.events(session)), "ab".repeat(16));
        assert_eq!(tag(keys.events(session)), tag(keys.record(session)));
        assert!(keys.events(session).starts_with("gateway:"));
    }
}
