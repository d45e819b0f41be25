//! The bytes of a session record: fields in a fixed order, lengths before texts.
//!
//! Version 2. What a later release adds makes a new version, which the release before need not read; each release
//! reads the version before its own. Version 1 has no declarations of upstreams: their sessions are not continued.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use bytes::Bytes;

use super::{RecordedCapabilities, RecordedSite, RecordedTask, SessionRecord};
use crate::call::{BindingKey, LogLevel, OwnerKey, ServerDeclaration, UpstreamContinuation};
use crate::clock::millis;
use crate::protocol::Revision;
use crate::secret::Secret;

/// Version of the format.
const VERSION: u8 = 2;
/// The version before.
const BEFORE: u8 = 1;
/// Longer texts of a client are kept once for all sessions, under their digest.
pub(super) const LONGEST_INLINE: usize = 4 * 1024;
/// The same for texts of an upstream, which all of its sessions have.
const LONGEST_DECLARED: usize = 256;
/// A text that stands in the record.
const INLINE: u8 = 0;
/// A text that stands in the record by its digest.
const DIGEST: u8 = 1;

/// SHA-256 of a text that is kept once.
pub(super) type TextDigest = [u8; 32];

/// Long texts by their digest.
pub(super) type LongTexts = HashMap<TextDigest, Bytes>;

impl SessionRecord {
    /// The bytes of the record, and the texts that are kept apart from it.
    pub(super) fn encode(&self) -> (Vec<u8>, LongTexts) {
        let mut out = RecordWriter::default();
        out.bytes.push(VERSION);
        out.bytes.extend_from_slice(self.binding.bytes());
        out.bytes.extend_from_slice(self.owner.bytes());
        out.bytes.extend_from_slice(&self.tag.to_be_bytes());
        out.time(self.opened);
        out.time(self.used);
        out.flag(self.is_initialized);
        out.text(&self.endpoint);
        out.text(self.revision.as_str());
        out.text(self.level.map_or("", LogLevel::as_str));
        out.client_text(&self.capabilities.own);
        match &self.capabilities.beyond {
            Some((revision, declared)) => {
                out.text(revision.as_str());
                out.client_text(declared);
            }
            None => out.text(""),
        }
        out.flag(self.capabilities.with_context);
        out.client_text(&self.client_info);
        out.count(self.subscriptions.len());
        for subscription in &self.subscriptions {
            out.text(subscription);
        }
        out.count(self.upstreams.len());
        for session in &self.upstreams {
            let declared = &session.declared;
            out.text(&session.upstream);
            out.text(declared.revision.as_str());
            out.shared_text(&declared.capabilities, LONGEST_DECLARED);
            out.shared_text(declared.server_info.as_bytes(), LONGEST_DECLARED);
            let instructions = declared.instructions.as_deref();
            out.flag(instructions.is_some());
            out.shared_text(instructions.unwrap_or_default(), LONGEST_DECLARED);
            out.text(session.id.expose());
            out.bytes
                .extend_from_slice(&session.connection.to_be_bytes());
        }
        out.count(self.unshared.len());
        for upstream in &self.unshared {
            out.text(upstream);
        }
        out.count(self.tasks.len());
        for task in &self.tasks {
            out.task(task);
        }
        (out.bytes, out.long)
    }

    /// Reads a record; `long` has the texts of [`digests_of`](Self::digests_of). `None` for another version, and for
    /// what is no record.
    pub(super) fn decode(bytes: &Bytes, long: &LongTexts) -> Option<Self> {
        let mut reader = RecordReader {
            left: bytes.clone(),
            long: Some(long),
            digests: Vec::new(),
        };
        reader.record()
    }

    /// The digests of all texts that are kept apart from a record. `None` as for [`decode`](Self::decode).
    pub(super) fn digests_of(bytes: &Bytes) -> Option<Vec<TextDigest>> {
        let mut reader = RecordReader {
            left: bytes.clone(),
            long: None,
            digests: Vec::new(),
        };
        reader.record()?;
        Some(reader.digests)
    }
}

#[derive(Default)]
struct RecordWriter {
    bytes: Vec<u8>,
    long: LongTexts,
}

impl RecordWriter {
    fn count(&mut self, count: usize) {
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        self.bytes.extend_from_slice(&count.to_be_bytes());
    }

    fn flag(&mut self, flag: bool) {
        self.bytes.push(u8::from(flag));
    }

    fn time(&mut self, time: Duration) {
        self.bytes.extend_from_slice(&millis(time).to_be_bytes());
    }

    fn text(&mut self, text: &str) {
        self.count(text.len());
        self.bytes.extend_from_slice(text.as_bytes());
    }

    fn task(&mut self, task: &RecordedTask) {
        self.text(&task.handle);
        self.text(&task.upstream);
        self.flag(matches!(task.site, RecordedSite::Gateway { .. }));
        match &task.site {
            RecordedSite::Gateway { created, ttl } => {
                self.time(*created);
                self.time(*ttl);
            }
            RecordedSite::Upstream(id) => self.text(id),
        }
    }

    /// A text that a client chose, and that many of its sessions have.
    fn client_text(&mut self, text: &Bytes) {
        self.shared_text(text, LONGEST_INLINE);
    }

    /// A text that many sessions have; one of more than `longest` bytes is kept apart.
    fn shared_text(&mut self, text: impl AsRef<[u8]>, longest: usize) {
        let text = text.as_ref();
        if text.len() <= longest {
            self.bytes.push(INLINE);
            self.count(text.len());
            self.bytes.extend_from_slice(text);
            return;
        }
        // A digest of SHA-256 has the length of the key.
        let key = TextDigest::try_from(digest(&SHA256, text).as_ref()).unwrap_or_default();
        self.bytes.push(DIGEST);
        self.bytes.extend_from_slice(&key);
        self.long.insert(key, Bytes::copy_from_slice(text));
    }
}

struct RecordReader<'a> {
    left: Bytes,
    /// `None` while only the digests are wanted.
    long: Option<&'a LongTexts>,
    digests: Vec<TextDigest>,
}

impl RecordReader<'_> {
    fn record(&mut self) -> Option<SessionRecord> {
        let [version] = self.chunk()?;
        if ![BEFORE, VERSION].contains(&version) {
            return None;
        }
        let mut record = SessionRecord {
            binding: BindingKey::from_bytes(self.chunk()?),
            owner: OwnerKey::from_bytes(self.chunk()?),
            tag: u64::from_be_bytes(self.chunk()?),
            opened: self.time()?,
            used: self.time()?,
            is_initialized: self.flag()?,
            endpoint: self.text()?,
            revision: Revision::parse(&self.text()?)?,
            level: match self.text()?.as_str() {
                "" => None,
                word => Some(LogLevel::parse(word)?),
            },
            capabilities: self.capabilities()?,
            client_info: self.shared_text()?,
            subscriptions: self.list(Self::text)?,
            upstreams: Vec::new(),
            unshared: Vec::new(),
            tasks: Vec::new(),
        };
        if version == BEFORE {
            self.list(Self::undeclared)?;
        } else {
            record.upstreams = self.list(Self::upstream)?;
            record.unshared = self.list(Self::text)?;
            record.tasks = self.list(Self::task)?;
        }
        self.left.is_empty().then_some(record)
    }

    fn capabilities(&mut self) -> Option<RecordedCapabilities> {
        let own = self.shared_text()?;
        let revision = self.text()?;
        let beyond = if revision.is_empty() {
            None
        } else {
            Some((Revision::parse(&revision)?, self.shared_text()?))
        };
        let with_context = self.flag()?;
        Some(RecordedCapabilities {
            own,
            beyond,
            with_context,
        })
    }

    fn upstream(&mut self) -> Option<UpstreamContinuation> {
        let upstream = self.text()?;
        let revision = Revision::parse(&self.text()?)?;
        let (capabilities, info) = (self.shared_text()?, self.shared_text()?);
        let has_instructions = self.flag()?;
        let instructions = String::from_utf8(self.shared_text()?.into()).ok()?;
        let instructions = has_instructions.then_some(instructions);
        let declared = ServerDeclaration::new(revision, capabilities, info, instructions);
        Some(UpstreamContinuation {
            upstream,
            declared: Arc::new(declared),
            id: Secret::new(self.text()?),
            connection: i64::from_be_bytes(self.chunk()?),
        })
    }

    fn task(&mut self) -> Option<RecordedTask> {
        Some(RecordedTask {
            handle: self.text()?,
            upstream: self.text()?,
            site: if self.flag()? {
                RecordedSite::Gateway {
                    created: self.time()?,
                    ttl: self.time()?,
                }
            } else {
                RecordedSite::Upstream(self.text()?)
            },
        })
    }

    /// A session at an upstream as version 1 has it: name, revision and id.
    fn undeclared(&mut self) -> Option<[String; 3]> {
        Some([self.text()?, self.text()?, self.text()?])
    }

    fn list<T>(&mut self, one: impl Fn(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let count = self.count()?;
        // What a forged count names beyond the bytes that are left ends the reading.
        (0..count).map(|_| one(self)).collect()
    }

    fn chunk<const LEN: usize>(&mut self) -> Option<[u8; LEN]> {
        let chunk = *self.left.first_chunk()?;
        self.left = self.left.slice(LEN..);
        Some(chunk)
    }

    fn count(&mut self) -> Option<usize> {
        usize::try_from(u32::from_be_bytes(self.chunk()?)).ok()
    }

    fn time(&mut self) -> Option<Duration> {
        Some(Duration::from_millis(u64::from_be_bytes(self.chunk()?)))
    }

    fn flag(&mut self) -> Option<bool> {
        match self.chunk()? {
            [0] => Some(false),
            [1] => Some(true),
            _ => None,
        }
    }

    fn bytes(&mut self) -> Option<Bytes> {
        let length = self.count()?;
        (length <= self.left.len()).then(|| self.left.split_to(length))
    }

    fn text(&mut self) -> Option<String> {
        String::from_utf8(self.bytes()?.into()).ok()
    }

    fn shared_text(&mut self) -> Option<Bytes> {
        match self.chunk()? {
            [INLINE] => self.bytes(),
            [DIGEST] => {
                let digest = self.chunk()?;
                self.digests.push(digest);
                match self.long {
                    Some(long) => long.get(&digest).cloned(),
                    None => Some(Bytes::new()),
                }
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::tests::record;
    use super::*;

    fn read(bytes: Vec<u8>, long: &LongTexts) -> Option<SessionRecord> {
        SessionRecord::decode(&bytes.into(), long)
    }

    #[test]
    fn every_field_reads_back() {
        let record = record();
        let (bytes, long) = record.encode();
        assert!(long.is_empty());
        assert_eq!(read(bytes, &long), Some(record));
    }

    #[test]
    fn absent_fields_read_back() {
        let mut record = record();
        record.level = None;
        record.capabilities.beyond = None;
        record.subscriptions.clear();
        record.upstreams.clear();
        record.unshared.clear();
        record.tasks.clear();
        let (bytes, long) = record.encode();
        assert_eq!(read(bytes, &long), Some(record));
    }

    #[test]
    fn long_texts_are_kept_apart_by_digest() {
        let mut record = record();
        record.client_info = vec![b'i'; LONGEST_INLINE + 1].into();
        record.capabilities.own = vec![b'c'; LONGEST_INLINE].into();
        let (bytes, long) = record.encode();
        assert_eq!(long.len(), 1);
        assert!(bytes.len() < 2 * LONGEST_INLINE);
        let digests = SessionRecord::digests_of(&bytes.clone().into()).unwrap();
        assert_eq!(digests, long.keys().copied().collect::<Vec<_>>());
        assert_eq!(
            read(bytes.clone(), &LongTexts::new()),
            None,
            "it is missing"
        );
        assert_eq!(read(bytes, &long), Some(record));
    }

    #[test]
    fn another_version_is_refused() {
        let (mut bytes, long) = record().encode();
        bytes[0] = VERSION + 1;
        assert_eq!(read(bytes, &long), None);
    }

    #[test]
    fn truncated_and_overlong_records_are_refused() {
        let (bytes, long) = record().encode();
        for end in 0..bytes.len() {
            assert_eq!(read(bytes[..end].to_vec(), &long), None, "{end}");
        }
        assert_eq!(read([&bytes[..], b"x"].concat(), &long), None);
    }

    // What a release wrote is read by the next one: a change of these bytes needs a new version.
    #[test]
    fn bytes_of_version_2_stay_as_they_are() {
        let (bytes, _) = record().encode();
        let sum = digest(&SHA256, &bytes);
        let beginning = [0x21, 0x00, 0x00, 0x83, 0xd7, 0xd2, 0xdc, 0xee];
        assert_eq!(sum.as_ref()[..8], beginning);
    }

    #[test]
    fn version_1_reads_back_without_sessions_at_upstreams() {
        let record = record();
        let (mut bytes, long) = record.encode();
        let before = SessionRecord {
            upstreams: Vec::new(),
            unshared: Vec::new(),
            tasks: Vec::new(),
            ..record
        };
        // The three lists are empty, and the last two are of version 2.
        let (ending, _) = before.encode();
        bytes.truncate(ending.len() - 12);
        bytes[0] = BEFORE;
        bytes.extend_from_slice(&1_u32.to_be_bytes());
        for text in ["files", "2025-03-26", "upstream-session"] {
            bytes.extend_from_slice(&u32::try_from(text.len()).unwrap().to_be_bytes());
            bytes.extend_from_slice(text.as_bytes());
        }
        let sum = digest(&SHA256, &bytes);
        let beginning = [0x8a, 0xbb, 0xaf, 0xf1, 0xe6, 0x78, 0xfa, 0x4c];
        assert_eq!(sum.as_ref()[..8], beginning, "as version 1 was written");
        assert_eq!(read(bytes, &long), Some(before));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(bytes: Vec<u8>, at in 0_usize..200, by: u8) {
            drop(read(bytes, &LongTexts::new()));
            let (mut bytes, long) = record().encode();
            let at = at % bytes.len();
            bytes[at] = bytes[at].wrapping_add(by);
            drop(read(bytes, &long));
        }
    }
}
