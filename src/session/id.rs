//! `Mcp-Session-Id` and event ids: sealed handles, refused before any look-up when forged.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use crate::call::BindingKey;
use crate::clock::millis;
use crate::ownership::Ownership;
use crate::seal::{SealPurpose, Sealer};
use crate::store::events::SessionKey;

/// Bytes inside a sealed session id: key, owner, issue time, binding.
const LEN: usize = 16 + Ownership::LEN + 8 + 32;

/// Makes and reads session ids. Spec: SPEC T-41, T-47; DESIGN §5.
#[derive(Debug, Clone)]
pub struct SessionIds {
    sealer: Arc<Sealer>,
    owner: Ownership,
}

/// The contents of a genuine session id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionId {
    /// The session.
    pub key: SessionKey,
    /// Ownership of the session when the id was made.
    pub owner: Ownership,
    /// When the id was made, since the Unix epoch.
    pub issued: Duration,
}

impl SessionIds {
    /// Ids of sessions that `owner` keeps, sealed by `sealer`.
    #[must_use]
    pub fn new(sealer: Arc<Sealer>, owner: Ownership) -> Self {
        Self { sealer, owner }
    }

    /// Ownership of the sessions that get new ids.
    #[must_use]
    pub fn owner(&self) -> Ownership {
        self.owner
    }

    /// A fresh id for a session of `binding` on `endpoint`: its key and its text, which is
    /// base64url and thus within 0x21–0x7E.
    #[must_use]
    pub fn mint(
        &self,
        binding: &BindingKey,
        endpoint: &str,
        now: Duration,
    ) -> (SessionKey, String) {
        let key: SessionKey = rand::random();
        let mut plain = Vec::with_capacity(LEN);
        plain.extend_from_slice(&key);
        plain.extend_from_slice(&self.owner.to_bytes());
        plain.extend_from_slice(&millis(now).to_be_bytes());
        plain.extend_from_slice(binding.bytes());
        (
            key,
            self.sealer
                .seal(SealPurpose::Session, endpoint.as_bytes(), &plain),
        )
    }

    /// Opens a session id sealed for this binding and endpoint; else `None`, so that another caller's id
    /// cannot be told from a forged one (SPEC A-30).
    #[must_use]
    pub fn read(&self, text: &str, binding: &BindingKey, endpoint: &str) -> Option<SessionId> {
        let plain = self
            .sealer
            .open(SealPurpose::Session, endpoint.as_bytes(), text)?;
        let (key, rest) = plain.split_first_chunk::<16>()?;
        let (owner, rest) = Ownership::split_from(rest)?;
        let (issued, rest) = rest.split_first_chunk::<8>()?;
        (rest == binding.bytes()).then(|| SessionId {
            key: *key,
            owner,
            issued: Duration::from_millis(u64::from_be_bytes(*issued)),
        })
    }
}

#[cfg(test)]
impl SessionIds {
    /// An id of these, sealed once more as one of another owner.
    pub(super) fn with_owner(&self, owner: Ownership, id: &str, endpoint: &str) -> String {
        let (purpose, aad) = (SealPurpose::Session, endpoint.as_bytes());
        let mut plain = self.sealer.open(purpose, aad, id).unwrap();
        plain[16..16 + Ownership::LEN].copy_from_slice(&owner.to_bytes());
        self.sealer.seal(purpose, aad, &plain)
    }
}

/// An SSE event id: `<tag>.<stream>.<seq>`, the tag being the session's (SPEC T-24). Where a reader
/// begins is no event but a place between two; as it needs an id that no other has, the number of
/// the reader follows: `<tag>.<stream>.<seq>.<reader>` (SPEC T-26).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventId {
    /// The session's tag.
    pub tag: u64,
    /// The stream within the session.
    pub stream: u32,
    /// The position within the stream.
    pub seq: u64,
}

impl EventId {
    /// Reads the wire form.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('.');
        let tag = parts.next().filter(|tag| tag.len() == 16)?;
        let id = Self {
            tag: u64::from_str_radix(tag, 16).ok()?,
            stream: parts.next()?.parse().ok()?,
            seq: parts.next()?.parse().ok()?,
        };
        let reader = parts.next().map(str::parse::<u64>);
        let is_whole = parts.next().is_none() && !matches!(reader, Some(Err(_)));
        is_whole.then_some(id)
    }

    /// Whether the stream belongs to a call, and is not the session's one stream for messages outside calls.
    #[must_use]
    pub fn is_of_call(&self) -> bool {
        self.stream != 0
    }

    /// The common beginning of the ids of all events of a stream; the position follows.
    #[must_use]
    pub fn stem(tag: u64, stream: u32) -> String {
        // 16 digits, 10 at most, and two points.
        let mut stem = String::with_capacity(28);
        // Writing to a String cannot fail.
        let _ = write!(stem, "{tag:016x}.{stream}.");
        stem
    }
}

impl std::fmt::Display for EventId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:016x}.{}.{}", self.tag, self.stream, self.seq)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::Principal;

    const OWNER: Ownership = Ownership { node: 7, epoch: 3 };

    fn ids() -> SessionIds {
        SessionIds::new(Arc::new(Sealer::new(&[]).unwrap()), OWNER)
    }

    fn binding(subject: &str) -> BindingKey {
        Principal::new("https://issuer", subject, "client", Vec::new(), None).binding()
    }

    #[test]
    fn an_id_reads_back_for_its_own_binding_and_endpoint_only() {
        let ids = ids();
        let now = Duration::from_secs(1_000);
        let (key, text) = ids.mint(&binding("alice"), "mcp", now);
        let read = ids.read(&text, &binding("alice"), "mcp");
        assert_eq!(
            read,
            Some(SessionId {
                key,
                owner: OWNER,
                issued: now
            })
        );
        assert_eq!(ids.read(&text, &binding("mallory"), "mcp"), None);
        assert_eq!(ids.read(&text, &binding("alice"), "files"), None);
        assert_eq!(ids.read("forged", &binding("alice"), "mcp"), None);
    }

    #[test]
    fn id_of_an_unknown_version_is_refused() {
        let (ids, binding) = (ids(), binding("alice"));
        let (_, text) = ids.mint(&binding, "mcp", Duration::ZERO);
        assert!(ids.read(&text, &binding, "mcp").is_some());
        let next = ids
            .sealer
            .of_next_version(SealPurpose::Session, b"mcp", &text);
        assert_eq!(ids.read(&next, &binding, "mcp"), None);
    }

    // SPEC T-41.
    #[test]
    fn ids_are_visible_ascii_and_never_repeat() {
        let ids = ids();
        let made: std::collections::HashSet<String> = (0..1_000)
            .map(|_| ids.mint(&binding("alice"), "mcp", Duration::ZERO).1)
            .collect();
        assert_eq!(made.len(), 1_000);
        assert!(
            made.iter()
                .all(|id| id.bytes().all(|byte| (0x21..=0x7e).contains(&byte)))
        );
    }

    #[test]
    fn event_ids_round_trip_and_garbage_is_refused() {
        let id = EventId {
            tag: 0xdead_beef,
            stream: 4,
            seq: 17,
        };
        assert_eq!(EventId::parse(&id.to_string()), Some(id));
        for bad in [
            "",
            "1.2.3",
            "00000000deadbeef.4",
            "00000000deadbeef.4.17.",
            "00000000deadbeef.4.17.1.1",
            "x.y.z",
        ] {
            assert_eq!(EventId::parse(bad), None, "{bad}");
        }
        let begins = format!("{id}.3");
        assert_eq!(EventId::parse(&begins), Some(id), "a reader began after it");
        let built = format!("{}{}", EventId::stem(id.tag, id.stream), id.seq);
        assert_eq!(built, id.to_string());
    }
}
