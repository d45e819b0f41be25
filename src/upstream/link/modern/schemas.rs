//! Headers that an upstream's tools declare, learned from its lists. Spec: SPEC M-30, M-31, M-36.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;

use crate::call::OwnerKey;
use crate::cause::chain;
use crate::protocol::json;
use crate::protocol::param_headers::{ParamHeader, ParamHeaders};
use crate::sync::lazy_cache::LazyCache;
use crate::upstream::lock;

/// Most principals with cached tools.
const OWNERS: u64 = 4096;
/// How long the headers of a tool are cached.
const BELIEVED: Duration = Duration::from_hours(1);
/// Most cached tools per principal.
const TOOLS: usize = 10_000;
/// Most bytes of their names and headers, which the upstream chooses.
const TOOL_BYTES: usize = 4 << 20;
/// Least time between two walks through all pages for a tool that no list has.
const WALK_AGAIN: Duration = Duration::from_mins(1);

/// The tools of one upstream.
#[derive(Debug)]
pub(in crate::upstream) struct ToolSchemas {
    owners: LazyCache<OwnerKey, Arc<KnownTools>>,
    /// Number of calls of `forget`.
    changes: AtomicU64,
}

/// The tools that a link used last, which saves most calls the cache lookup.
#[derive(Debug, Default)]
pub(super) struct SeenTools(Mutex<Option<(u64, Arc<KnownTools>)>>);

/// Tools known for one principal.
#[derive(Debug)]
pub(super) struct KnownTools {
    since: Instant,
    known: Mutex<ToolTable>,
    walked: Mutex<Option<Instant>>,
    /// Serialises walks.
    pub(super) walking: tokio::sync::Mutex<()>,
}

/// Listed tools by name, within the bounds.
#[derive(Debug, Default)]
struct ToolTable {
    tools: BTreeMap<String, ListedHeaders>,
    bytes: usize,
}

/// Headers of one tool, as listed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ListedHeaders {
    /// The headers that the tool declares.
    Asks(Arc<ParamHeaders>),
    /// The annotations are invalid: the tool is neither listed nor called (SPEC M-31).
    Invalid,
}

impl ToolTable {
    /// Caches the headers of a tool where there is room.
    fn insert(&mut self, name: String, listed: ListedHeaders) {
        if let Some(before) = self.tools.remove(&name) {
            self.bytes -= name.len() + before.bytes();
        }
        let bytes = self.bytes + name.len() + listed.bytes();
        if bytes <= TOOL_BYTES && self.tools.len() < TOOLS {
            self.bytes = bytes;
            self.tools.insert(name, listed);
        }
    }
}

impl ListedHeaders {
    /// Length of what the upstream chose.
    fn bytes(&self) -> usize {
        let Self::Asks(headers) = self else { return 0 };
        let path = |path: &[String]| path.iter().map(String::len).sum::<usize>();
        let header = |header: &ParamHeader| 2 * header.token.len() + path(&header.path);
        headers.iter().map(header).sum()
    }
}

impl Default for ToolSchemas {
    fn default() -> Self {
        Self {
            owners: LazyCache::new(OWNERS).time_to_live(BELIEVED),
            changes: AtomicU64::default(),
        }
    }
}

impl ToolSchemas {
    /// The tools cached for `owner` at `now`; a current `seen` saves the cache lookup.
    pub(super) fn of(&self, owner: OwnerKey, seen: &SeenTools, now: Instant) -> Arc<KnownTools> {
        let changes = self.changes.load(Ordering::Acquire);
        let mut seen = lock(&seen.0);
        if let Some((then, tools)) = &*seen
            && *then == changes
            && now.saturating_duration_since(tools.since) < BELIEVED
        {
            return Arc::clone(tools);
        }
        let tools = self.owners.get_with(owner, Arc::default);
        *seen = Some((changes, Arc::clone(&tools)));
        tools
    }

    /// Evicts the tools of `owner`, which have changed.
    pub(super) fn forget(&self, owner: OwnerKey) {
        self.owners.invalidate(&owner);
        self.changes.fetch_add(1, Ordering::Release);
    }
}

impl Default for KnownTools {
    fn default() -> Self {
        Self {
            since: Instant::now(),
            known: Mutex::default(),
            walked: Mutex::default(),
            walking: tokio::sync::Mutex::default(),
        }
    }
}

impl KnownTools {
    /// The headers of a tool, if it was listed.
    pub(super) fn get(&self, tool: &str) -> Option<ListedHeaders> {
        lock(&self.known).tools.get(tool).cloned()
    }

    /// Whether all pages were read less than a minute ago.
    pub(super) fn walked_lately(&self) -> bool {
        lock(&self.walked).is_some_and(|walked| walked.elapsed() < WALK_AGAIN)
    }

    /// Records that all pages were just read.
    pub(super) fn walked(&self) {
        *lock(&self.walked) = Some(Instant::now());
    }

    /// Caches the headers of a page of tools (JSON text of the array). Returns the array without the tools whose
    /// annotations are invalid, if there are any: one invalid tool does not hide the others (SPEC M-31).
    pub(super) fn learn(&self, upstream: &str, tools: &str) -> Option<String> {
        let elements = json::elements(tools).ok()?;
        let mut kept = Vec::with_capacity(elements.len());
        let mut known = lock(&self.known);
        for element in &elements {
            let (name, schema) = read(element);
            let listed = match ParamHeaders::read(schema.unwrap_or("{}")) {
                Ok(headers) => {
                    kept.push(*element);
                    ListedHeaders::Asks(Arc::new(headers))
                }
                Err(error) => {
                    tracing::warn!(
                        upstream, tool = ?name.as_deref().unwrap_or_default(), error = chain(&error),
                        "a tool is left out: its x-mcp-header annotations are invalid"
                    );
                    ListedHeaders::Invalid
                }
            };
            if let Some(name) = name {
                known.insert(name, listed);
            }
        }
        (kept.len() < elements.len()).then(|| json::array(kept))
    }
}

/// A tool's name and schema.
fn read(tool: &str) -> (Option<String>, Option<&str>) {
    let members = json::members(tool).unwrap_or_default();
    let member = |name: &str| {
        let mut members = members.iter();
        members.find(|(known, _)| known == name).map(|(_, v)| *v)
    };
    let name = member("name").and_then(json::string);
    (
        name.map(std::borrow::Cow::into_owned),
        member("inputSchema"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::Principal;

    #[test]
    fn what_was_forgotten_is_not_seen_again() {
        let (schemas, seen) = (ToolSchemas::default(), SeenTools::default());
        let owner = Principal::new("https://issuer", "alice", "client", Vec::new(), None).owner();
        let now = Instant::now();
        let before = schemas.of(owner, &seen, now);
        assert!(Arc::ptr_eq(&before, &schemas.of(owner, &seen, now)));
        assert!(Arc::ptr_eq(
            &before,
            &schemas.of(owner, &SeenTools::default(), now)
        ));
        schemas.forget(owner);
        assert!(!Arc::ptr_eq(&before, &schemas.of(owner, &seen, now)));
    }

    // SPEC M-31.
    #[test]
    fn an_invalid_tool_is_left_out_and_the_others_stay_as_they_are() {
        let good = r#"{"name":"good", "inputSchema":{"properties":{"r":{"type":"string","x-mcp-header":"R"}}}}"#;
        let bad = r#"{"name":"bad","inputSchema":{"properties":{"r":{"type":"number","x-mcp-header":"R"}}}}"#;
        let plain = r#"{"name":"plain"}"#;
        let tools = KnownTools::default();
        let kept = tools.learn("up", &format!("[{good},{bad},{plain}]"));
        assert_eq!(kept, Some(format!("[{good},{plain}]")));
        let asks = |tool: &str| match tools.get(tool) {
            Some(ListedHeaders::Asks(headers)) => headers.iter().count(),
            other => panic!("{other:?}"),
        };
        assert_eq!((asks("good"), asks("plain")), (1, 0));
        assert_eq!(tools.get("bad"), Some(ListedHeaders::Invalid));
        assert_eq!(tools.get("unheard_of"), None);
        assert_eq!(tools.learn("up", &format!("[{good}]")), None);
    }

    #[test]
    fn names_and_headers_of_tools_are_cached_within_a_bound() {
        let tools = KnownTools::default();
        let long = "x".repeat(TOOL_BYTES / 8);
        for number in 0..8 {
            let property = format!(r#""{long}":{{"type":"string","x-mcp-header":"R"}}"#);
            let schema = format!(r#"{{"properties":{{{property}}}}}"#);
            let page = format!(
                r#"[{{"name":"{number}{long}"}},{{"name":"{number}","inputSchema":{schema}}}]"#
            );
            for _ in 0..3 {
                assert_eq!(tools.learn("up", &page), None);
            }
        }
        let known = lock(&tools.known);
        assert!(known.bytes <= TOOL_BYTES, "{}", known.bytes);
        assert!(known.tools.contains_key("0"));
        assert_eq!(known.tools.len(), 7);
    }
}
