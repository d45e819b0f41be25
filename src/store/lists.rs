//! Cache of upstreams' lists, one entry per distinct content, bounded in bytes. Access is not checked
//! here: sessions hold digests, and a caller without the digest cannot look up the content.
//! Spec: DESIGN §5 ("Lists are kept once per distinct content").

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use moka::sync::Cache;
use tokio::time::Instant;

use crate::call::ServerDeclaration;
use crate::digest::digest_of;
use crate::protocol::methods::ListKind;
use crate::protocol::{Message, Revision, json};
use crate::sync::event_number::EventNumber;
use crate::telemetry::metrics::{COUNTERS, GAUGES};

/// Bytes of one entry besides the text.
const OVERHEAD_BYTES: usize = 256;
/// Bytes of one name in an index besides the text.
const ENTRY_BYTES: usize = 64;
/// Items of one page in the index of names.
const MAX_NAMES: usize = 20_000;

/// SHA-256 of a content.
pub type ContentDigest = [u8; 32];

/// One page of a list, as its upstream sent it.
#[derive(Debug)]
pub struct ListPage {
    /// The whole response.
    pub message: Message,
    /// Byte ranges of items in `message`, by name.
    names: OnceLock<HashMap<Box<str>, Range<usize>>>,
}

/// A result made out of pages for one kind of client.
#[derive(Debug, Clone)]
pub struct MergedResult {
    /// JSON text of the result; without its end where `ends_in_ttl`.
    pub text: Bytes,
    /// Whether the remaining lifetime in milliseconds and the closing brace are still to come.
    pub ends_in_ttl: bool,
}

/// The kind of client for which a result was made.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ClientForm {
    /// The endpoint's name: an endpoint may show only some items.
    pub endpoint: Arc<str>,
    /// The upstream's revision; `None` where several upstreams are merged.
    pub from: Option<Revision>,
    /// Whether the gateway hosts tasks of 2025-11-25 for the upstream; where several are merged, the
    /// content tells.
    pub hosts_tasks: bool,
    /// The client's revision.
    pub to: Revision,
}

/// A page given to a session: digest and cache lifetimes.
#[derive(Debug, Clone)]
pub struct CachedPage {
    /// Digest of the page's content.
    pub digest: ContentDigest,
    /// The number of the request, taken before the request was sent.
    pub number: EventNumber,
    /// When the page was requested. Tells its age alone; `number` tells what came before it.
    pub asked: Instant,
    /// How long the page is fresh, from `asked`.
    pub fresh: Duration,
    /// How long the page lasts, from `asked`, while change notices are received.
    pub lasts: Duration,
    /// Whether the page stays valid after a `tools/call`.
    pub outlives_calls: bool,
    /// The epoch of unbroken change notices in which the page was requested. Good while it is equal to that of the link: an
    /// order would not do, as another connection of the upstream may have had notices for longer, of other lists.
    pub epoch: Option<u64>,
    /// Whether the holding session requested the page.
    pub is_own: bool,
    /// The upstream's declaration at the time of the request.
    pub declared: Arc<ServerDeclaration>,
}

impl CachedPage {
    /// Whether the page was requested after `event`, or there was none. The event of a change that the page itself showed has
    /// the number of its request.
    #[must_use]
    pub fn is_since(&self, event: Option<EventNumber>) -> bool {
        event <= Some(self.number)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum CacheKey {
    Page(ContentDigest),
    Made(ContentDigest, ClientForm),
}

#[derive(Debug, Clone)]
enum CachedContent {
    Page(Arc<ListPage>),
    Made(MergedResult),
}

/// The cache. Cloning shares it.
#[derive(Debug, Clone)]
pub struct ListCache(Cache<CacheKey, CachedContent>);

impl ListCache {
    /// A cache of at most about `total` bytes, favouring the most used entries.
    #[must_use]
    pub fn new(total: usize) -> Self {
        let weigh = |_: &CacheKey, content: &CachedContent| {
            let size = match content {
                CachedContent::Page(page) => page.message.bytes().len() + page.index_size(),
                CachedContent::Made(made) => made.text.len(),
            };
            u32::try_from(size + OVERHEAD_BYTES).unwrap_or(u32::MAX)
        };
        let cache = Cache::builder()
            .max_capacity(total as u64)
            .weigher(weigh)
            .eviction_listener(|_, _, cause| {
                if cause.was_evicted() {
                    COUNTERS.lists_evicted.add(1);
                }
            })
            .build();
        Self(cache)
    }

    /// Caches a page; returns the digest of its content.
    #[must_use]
    pub fn keep(&self, message: &Message) -> ContentDigest {
        let digest = digest_of([message.result().unwrap_or_default().as_bytes()]);
        let page = || {
            CachedContent::Page(Arc::new(ListPage {
                message: owned(message),
                names: OnceLock::new(),
            }))
        };
        self.0.entry(CacheKey::Page(digest)).or_insert_with(page);
        self.publish();
        digest
    }

    /// The page with this digest, unless evicted.
    #[must_use]
    pub fn page(&self, digest: &ContentDigest) -> Option<Arc<ListPage>> {
        match self.0.get(&CacheKey::Page(*digest))? {
            CachedContent::Page(page) => Some(page),
            CachedContent::Made(_) => None,
        }
    }

    /// JSON text of the tool `name` on a cached page. The first lookup builds the index of names and
    /// reinserts the page, so that the cache weighs the index too.
    #[must_use]
    pub fn tool(&self, digest: &ContentDigest, page: &Arc<ListPage>, name: &str) -> Option<Bytes> {
        let has_index = page.names.get().is_some();
        let tool = page.tool(name);
        if !has_index {
            let page = CachedContent::Page(Arc::clone(page));
            self.0.insert(CacheKey::Page(*digest), page);
            self.publish();
        }
        tool
    }

    /// Caches a result made from the content `digest`.
    pub fn keep_made(&self, digest: ContentDigest, form: ClientForm, made: MergedResult) {
        self.0
            .insert(CacheKey::Made(digest, form), CachedContent::Made(made));
        self.publish();
    }

    /// The result made from the content `digest` for `form`, unless evicted.
    #[must_use]
    pub fn made(&self, digest: ContentDigest, form: ClientForm) -> Option<MergedResult> {
        match self.0.get(&CacheKey::Made(digest, form))? {
            CachedContent::Made(made) => Some(made),
            CachedContent::Page(_) => None,
        }
    }

    fn publish(&self) {
        let size = i64::try_from(self.0.weighted_size()).unwrap_or(i64::MAX);
        GAUGES.lists_bytes.set(size);
    }
}

impl ListPage {
    /// Bytes of the index of names; 0 until built.
    fn index_size(&self) -> usize {
        let names = self.names.get().into_iter().flat_map(HashMap::keys);
        names.map(|name| name.len() + ENTRY_BYTES).sum()
    }

    /// JSON text of the tool called `name`.
    fn tool(&self, name: &str) -> Option<Bytes> {
        let names = self
            .names
            .get_or_init(|| self.read_names().unwrap_or_default());
        Some(self.message.bytes().slice(names.get(name)?.clone()))
    }

    fn read_names(&self) -> Option<HashMap<Box<str>, Range<usize>>> {
        let whole = std::str::from_utf8(self.message.bytes()).ok()?;
        let items = self.message.result_member(ListKind::Tools.member())?;
        let mut names = HashMap::new();
        for item in json::elements(items).ok()?.into_iter().take(MAX_NAMES) {
            let members = json::members(item).unwrap_or_default();
            let name = members.iter().find(|(key, _)| key == "name");
            if let Some(name) = name.and_then(|(_, name)| json::string(name))
                && let Some(span) = json::span_of(whole, item)
            {
                // The first of equal names is the one that lists show.
                names.entry(name.into()).or_insert(span);
            }
        }
        Some(names)
    }
}

impl MergedResult {
    /// The result, with what is left of its lifetime.
    #[must_use]
    pub fn result(&self, ttl: Duration) -> Bytes {
        if !self.ends_in_ttl {
            return self.text.clone();
        }
        let mut out = Vec::with_capacity(self.text.len() + 24);
        out.extend_from_slice(&self.text);
        out.extend_from_slice(ttl.as_millis().to_string().as_bytes());
        out.push(b'}');
        out.into()
    }
}

/// A message that shares no buffer: as a part of a larger one it would keep all of that, uncounted.
fn owned(message: &Message) -> Message {
    let bytes = Bytes::copy_from_slice(message.bytes());
    // Its nesting was within bounds when it came.
    Message::parse(bytes, usize::MAX).unwrap_or_else(|_| message.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(id: u32, tools: &str) -> Message {
        let text = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"tools":{tools}}}}}"#);
        Message::parse(text.into(), 128).unwrap()
    }

    #[test]
    fn equal_content_is_kept_once() {
        let lists = ListCache::new(1 << 20);
        let first = lists.keep(&reply(1, r#"[{"name":"a"}]"#));
        let second = lists.keep(&reply(2, r#"[{"name":"a"}]"#));
        assert_eq!(first, second);
        let kept = lists.page(&first).unwrap();
        assert_eq!(kept.message.id(), Some("1"));
        assert_ne!(lists.keep(&reply(1, r#"[{"name":"b"}]"#)), first);
    }

    #[test]
    fn what_does_not_fit_is_not_kept() {
        let lists = ListCache::new(1000);
        let long = format!(r#"[{{"name":"{}"}}]"#, "x".repeat(2000));
        let digest = lists.keep(&reply(1, &long));
        lists.0.run_pending_tasks();
        assert!(lists.page(&digest).is_none());
    }

    #[test]
    fn kept_page_counts_its_own_buffer_and_its_index_of_names() {
        let lists = ListCache::new(1 << 20);
        let tools: Vec<_> = (0..100)
            .map(|n| format!(r#"{{"name":"{n:050}"}}"#))
            .collect();
        let text = reply(1, &format!("[{}]", tools.join(",")));
        let mut large = text.bytes().to_vec();
        let length = large.len();
        large.resize(1 << 20, b' ');
        let part = Bytes::from(large).slice(..length);
        let digest = lists.keep(&Message::parse(part.clone(), 128).unwrap());
        let page = lists.page(&digest).unwrap();
        assert!(part.is_unique(), "the page keeps none of it");
        lists.0.run_pending_tasks();
        let before = lists.0.weighted_size();
        assert!(lists.tool(&digest, &page, "none").is_none());
        lists.0.run_pending_tasks();
        assert!(lists.0.weighted_size() >= before + 100 * 50);
    }

    #[test]
    fn tools_are_found_by_name_the_first_of_equals() {
        let lists = ListCache::new(1 << 20);
        let digest = lists.keep(&reply(
            1,
            r#"[{"name":"a","x":1},5,{"name":"a","x":2},{"name":"b"}]"#,
        ));
        let page = lists.page(&digest).unwrap();
        assert_eq!(page.tool("a").unwrap(), r#"{"name":"a","x":1}"#);
        assert_eq!(page.tool("b").unwrap(), r#"{"name":"b"}"#);
        assert_eq!(page.tool("c"), None);
    }

    #[test]
    fn the_remaining_lifetime_is_put_in_last() {
        let made = MergedResult {
            text: Bytes::from_static(br#"{"tools":[],"ttlMs":"#),
            ends_in_ttl: true,
        };
        assert_eq!(
            made.result(Duration::from_secs(2)),
            r#"{"tools":[],"ttlMs":2000}"#
        );
    }
}
