//! Every handle we give out, and what a shared store keeps: authenticated encryption under a key ring, one domain
//! per purpose.
//!
//! A sealed handle tells its holder nothing and opens only for the purpose and the associated data
//! it was sealed with. Being able to open one is no authentication: the binding inside has to be
//! compared by the caller (SPEC A-30).
//!
//! A handle is base64url of: version, key id, nonce, cipher text, tag. The version stands in clear, because
//! it says how to read all that follows, and is authenticated with the rest.

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::hkdf::{HKDF_SHA256, KeyType, Salt};
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;

use crate::config::SealKey;

/// Length of the key id, which follows the version.
const ID_LEN: usize = 2;
/// Bytes of a derived key.
const KEY_LEN: usize = 32;
/// Bytes of the authentication tag.
const TAG_LEN: usize = 16;
/// Longest handle accepted for purposes whose handles also travel in headers.
const MAX_LEN: usize = 4 * 1024;
/// Longest handle accepted in a body, where the handle may contain a handle of the upstream.
const MAX_CARRYING_LEN: usize = 64 * 1024;
/// Separates our use of the operator's keys from any other.
const SALT: &[u8] = b"drawbridge handle seal 1";

/// What a handle is for. A handle of one purpose never opens as another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SealPurpose {
    /// `Mcp-Session-Id`.
    Session,
    /// An event id.
    Event,
    /// A pagination cursor; may carry an upstream's.
    Cursor,
    /// A task id.
    Task,
    /// `requestState`; may carry an upstream's.
    RequestState,
    /// The id of a URL elicitation.
    Elicitation,
    /// An entry of a session's event log in a shared store.
    EventLog,
    /// The record of a session in a shared store.
    SessionRecord,
    /// The link to a connect page.
    ConnectLink,
    /// The cookie of the connect pages.
    ConnectCookie,
    /// The token in the forms of the connect pages.
    ConnectForm,
    /// A login that has begun on the connect pages.
    ConnectLogin,
    /// Who is logged in on the connect pages.
    ConnectPerson,
}

impl SealPurpose {
    const ALL: [Self; 13] = [
        Self::Session,
        Self::Event,
        Self::Cursor,
        Self::Task,
        Self::RequestState,
        Self::Elicitation,
        Self::EventLog,
        Self::SessionRecord,
        Self::ConnectLink,
        Self::ConnectCookie,
        Self::ConnectForm,
        Self::ConnectLogin,
        Self::ConnectPerson,
    ];

    fn label(self) -> &'static str {
        match self {
            Self::Session => "session",
            Self::Event => "event",
            Self::Cursor => "cursor",
            Self::Task => "task",
            Self::RequestState => "request-state",
            Self::Elicitation => "elicitation",
            Self::EventLog => "event-log",
            Self::SessionRecord => "session-record",
            Self::ConnectLink => "connect-link",
            Self::ConnectCookie => "connect-cookie",
            Self::ConnectForm => "connect-form",
            Self::ConnectLogin => "connect-login",
            Self::ConnectPerson => "connect-person",
        }
    }

    /// Version of the format of this purpose's handles, envelope and content. A handle of any other version is
    /// refused like a forged one. Raise the version with every change of the format.
    fn version(self) -> u8 {
        match self {
            Self::Session
            | Self::Event
            | Self::Cursor
            | Self::Task
            | Self::RequestState
            | Self::Elicitation
            | Self::EventLog
            | Self::SessionRecord
            | Self::ConnectCookie
            | Self::ConnectForm
            | Self::ConnectLogin
            | Self::ConnectPerson => 1,
            Self::ConnectLink => 2,
        }
    }

    /// The longest handle of this purpose that is ever opened, in characters.
    #[must_use]
    pub fn max_len(self) -> usize {
        match self {
            Self::Cursor | Self::RequestState => MAX_CARRYING_LEN,
            _ => MAX_LEN,
        }
    }
}

/// Why a key ring cannot be built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SealError {
    /// The cryptography library refused the key; the gateway cannot recover.
    #[error("sealing key {0:?} cannot be used")]
    Unusable(String),
}

/// One key of the ring, derived for every purpose.
#[derive(Debug)]
struct RingKey {
    id: [u8; ID_LEN],
    /// By position in [`SealPurpose::ALL`].
    derived: Vec<LessSafeKey>,
}

/// Seals with the first key of the ring and opens with any.
#[derive(Debug)]
pub struct Sealer {
    ring: Vec<RingKey>,
}

impl Sealer {
    /// Derives every key once. Without keys the ring holds one random key, which dies with this
    /// process: after a restart no handle opens any more.
    ///
    /// # Errors
    /// A key cannot be used.
    pub fn new(keys: &[SealKey]) -> Result<Self, SealError> {
        let ring = if keys.is_empty() {
            tracing::info!("handles are sealed with a random key: they end with this process");
            let material: [u8; KEY_LEN] = rand::random();
            vec![RingKey::derive("ephemeral", &material)?]
        } else {
            keys.iter()
                .map(|key| RingKey::derive(&key.id, key.key.expose().as_bytes()))
                .collect::<Result<_, _>>()?
        };
        Ok(Self { ring })
    }

    /// Seals `plain` for `purpose`, tied to `aad` (the endpoint, say): base64url without padding,
    /// safe in headers and URLs, at most 42 characters longer than `plain` encoded alone.
    #[must_use]
    pub fn seal(&self, purpose: SealPurpose, aad: &[u8], plain: &[u8]) -> String {
        BASE64_URL_SAFE_NO_PAD.encode(self.seal_bytes(purpose, aad, plain))
    }

    /// The same as bytes, for a store: at most 31 bytes longer than `plain`.
    #[must_use]
    pub fn seal_bytes(&self, purpose: SealPurpose, aad: &[u8], plain: &[u8]) -> Vec<u8> {
        self.seal_as(purpose.version(), purpose, aad, plain)
    }

    #[expect(
        clippy::expect_used,
        reason = "AES-GCM refuses only messages of more than 64 GiB"
    )]
    fn seal_as(&self, version: u8, purpose: SealPurpose, aad: &[u8], plain: &[u8]) -> Vec<u8> {
        let (id, key) = self.sealing_key(purpose);
        let mut text = plain.to_vec();
        text.reserve_exact(TAG_LEN);
        // Of the thread's cryptographic generator: that of the cipher's library gathers entropy for
        // some 40 ms before its first number, which the first caller would wait for.
        let nonce: [u8; NONCE_LEN] = rand::random();
        let unique = Nonce::assume_unique_for_key(nonce);
        key.seal_in_place_append_tag(unique, associated(version, purpose, aad), &mut text)
            .expect("a handle is short");
        let mut sealed = Vec::with_capacity(1 + ID_LEN + NONCE_LEN + text.len());
        sealed.push(version);
        sealed.extend_from_slice(id);
        sealed.extend_from_slice(&nonce);
        sealed.extend_from_slice(&text);
        sealed
    }

    /// Opens what [`Sealer::seal`] made with the same `purpose` and `aad` under a key of this ring;
    /// `None` for everything else, of whatever kind. Refuses over-long input before any work.
    #[must_use]
    pub fn open(&self, purpose: SealPurpose, aad: &[u8], sealed: &str) -> Option<Vec<u8>> {
        if sealed.len() > purpose.max_len() {
            return None;
        }
        let bytes = BASE64_URL_SAFE_NO_PAD.decode(sealed).ok()?;
        self.open_bytes(purpose, aad, &bytes)
    }

    /// Opens what [`Sealer::seal_bytes`] made with the same `purpose` and `aad` under a key of this ring. The
    /// caller bounds the length.
    #[must_use]
    pub fn open_bytes(&self, purpose: SealPurpose, aad: &[u8], sealed: &[u8]) -> Option<Vec<u8>> {
        let (version, rest) = sealed.split_first()?;
        if *version != purpose.version() {
            return None;
        }
        let (id, rest) = rest.split_first_chunk::<ID_LEN>()?;
        let (nonce, text) = rest.split_first_chunk::<NONCE_LEN>()?;
        // Two names can share an id by chance, so every key of that id is tried.
        self.ring
            .iter()
            .filter(|key| key.id == *id)
            .find_map(|key| {
                let mut text = text.to_vec();
                let aad = associated(*version, purpose, aad);
                let plain_len = key
                    .derived
                    .get(purpose as usize)?
                    .open_in_place(Nonce::from(nonce), aad, &mut text)
                    .ok()?
                    .len();
                text.truncate(plain_len);
                Some(text)
            })
    }

    fn sealing_key(&self, purpose: SealPurpose) -> (&[u8; ID_LEN], &LessSafeKey) {
        #[expect(
            clippy::indexing_slicing,
            reason = "`new` makes a ring of at least one key, each derived for every purpose"
        )]
        let first = &self.ring[0];
        #[expect(clippy::indexing_slicing, reason = "as above")]
        let key = &first.derived[purpose as usize];
        (&first.id, key)
    }
}

impl RingKey {
    fn derive(name: &str, material: &[u8]) -> Result<Self, SealError> {
        let unusable = || SealError::Unusable(name.to_owned());
        let secret = Salt::new(HKDF_SHA256, SALT).extract(material);
        let derived = SealPurpose::ALL
            .iter()
            .map(|purpose| {
                let mut key = [0; KEY_LEN];
                secret
                    .expand(&[purpose.label().as_bytes()], DerivedLen)
                    .and_then(|okm| okm.fill(&mut key))
                    .map_err(|_| unusable())?;
                let key = UnboundKey::new(&AES_256_GCM, &key).map_err(|_| unusable())?;
                Ok(LessSafeKey::new(key))
            })
            .collect::<Result<_, _>>()?;
        let mut id = [0; ID_LEN];
        for (to, from) in id.iter_mut().zip(digest(&SHA256, name.as_bytes()).as_ref()) {
            *to = *from;
        }
        Ok(Self { id, derived })
    }
}

/// The length of a derived key, as HKDF wants it told.
struct DerivedLen;

impl KeyType for DerivedLen {
    fn len(&self) -> usize {
        KEY_LEN
    }
}

/// Version, purpose and caller's data; the purpose ends at its zero byte.
fn associated(version: u8, purpose: SealPurpose, aad: &[u8]) -> Aad<Vec<u8>> {
    let label = purpose.label().as_bytes();
    let mut all = Vec::with_capacity(1 + label.len() + 1 + aad.len());
    all.push(version);
    all.extend_from_slice(label);
    all.push(0);
    all.extend_from_slice(aad);
    Aad::from(all)
}

#[cfg(test)]
impl Sealer {
    /// The same content sealed in the version after the current one, by the same key: what a later release
    /// would make.
    pub(crate) fn of_next_version(&self, purpose: SealPurpose, aad: &[u8], handle: &str) -> String {
        let plain = self
            .open(purpose, aad, handle)
            .expect("a handle of this ring");
        BASE64_URL_SAFE_NO_PAD.encode(self.seal_as(purpose.version() + 1, purpose, aad, &plain))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;
    use crate::secret::Secret;

    fn key(id: &str, byte: u8) -> SealKey {
        SealKey {
            id: id.to_owned(),
            key: Secret::new(char::from(byte).to_string().repeat(32)),
        }
    }

    fn sealer(keys: &[SealKey]) -> Sealer {
        Sealer::new(keys).expect("usable keys")
    }

    #[test]
    fn what_was_sealed_opens_again() {
        let sealer = sealer(&[]);
        let handle = sealer.seal(SealPurpose::Session, b"/mcp", b"plain");
        let opened = sealer.open(SealPurpose::Session, b"/mcp", &handle);
        assert_eq!(opened.as_deref(), Some(&b"plain"[..]));
    }

    #[test]
    fn a_handle_hides_its_content_and_never_repeats() {
        let sealer = sealer(&[]);
        let one = sealer.seal(SealPurpose::Cursor, b"", b"tools");
        assert_ne!(one, sealer.seal(SealPurpose::Cursor, b"", b"tools"));
        assert!(
            one.bytes()
                .all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
        );
    }

    #[rstest]
    #[case::another_purpose(SealPurpose::Event, b"/mcp")]
    #[case::another_endpoint(SealPurpose::Session, b"/mcp/git")]
    #[case::no_endpoint(SealPurpose::Session, b"")]
    fn a_handle_opens_only_where_it_belongs(#[case] purpose: SealPurpose, #[case] aad: &[u8]) {
        let sealer = sealer(&[]);
        let handle = sealer.seal(SealPurpose::Session, b"/mcp", b"plain");
        assert_eq!(sealer.open(purpose, aad, &handle), None);
    }

    #[test]
    fn each_changed_character_spoils_a_handle() {
        let sealer = sealer(&[]);
        let handle = sealer.seal(SealPurpose::Session, b"/mcp", b"plain");
        for at in 0..handle.len() {
            let mut changed = handle.clone().into_bytes();
            changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(changed).expect("ASCII");
            assert_eq!(
                sealer.open(SealPurpose::Session, b"/mcp", &changed),
                None,
                "{at}"
            );
        }
    }

    #[test]
    fn unknown_version_is_refused_for_each_purpose() {
        let sealer = sealer(&[]);
        for purpose in SealPurpose::ALL {
            for version in 0..=u8::MAX {
                let handle = sealer.seal_as(version, purpose, b"/mcp", b"plain");
                let opened = sealer.open_bytes(purpose, b"/mcp", &handle);
                assert_eq!(
                    opened.is_some(),
                    version == purpose.version(),
                    "{purpose:?}"
                );
            }
        }
    }

    #[test]
    fn version_of_a_handle_cannot_be_changed() {
        let sealer = sealer(&[]);
        let mut bytes = sealer.seal_as(2, SealPurpose::Task, b"", b"plain");
        bytes[0] = SealPurpose::Task.version();
        let changed = BASE64_URL_SAFE_NO_PAD.encode(bytes);
        assert_eq!(sealer.open(SealPurpose::Task, b"", &changed), None);
    }

    #[test]
    fn a_handle_of_another_process_without_keys_is_unknown() {
        let handle = sealer(&[]).seal(SealPurpose::Session, b"", b"plain");
        assert_eq!(sealer(&[]).open(SealPurpose::Session, b"", &handle), None);
    }

    #[test]
    fn an_older_key_opens_until_it_leaves_the_ring() {
        let old = sealer(&[key("k1", b'a')]).seal(SealPurpose::Session, b"", b"plain");
        let both = sealer(&[key("k2", b'b'), key("k1", b'a')]);
        assert!(both.open(SealPurpose::Session, b"", &old).is_some());
        let new = both.seal(SealPurpose::Session, b"", b"plain");
        let only_new = sealer(&[key("k2", b'b')]);
        assert!(only_new.open(SealPurpose::Session, b"", &new).is_some());
        assert_eq!(only_new.open(SealPurpose::Session, b"", &old), None);
    }

    #[test]
    fn the_name_of_a_key_does_not_stand_for_its_material() {
        let handle = sealer(&[key("k1", b'a')]).seal(SealPurpose::Session, b"", b"plain");
        assert_eq!(
            sealer(&[key("k1", b'b')]).open(SealPurpose::Session, b"", &handle),
            None
        );
    }

    #[test]
    fn an_over_long_handle_is_refused_unread() {
        let sealer = sealer(&[]);
        let large = vec![0; MAX_LEN];
        let session = sealer.seal(SealPurpose::Session, b"", &large);
        assert_eq!(sealer.open(SealPurpose::Session, b"", &session), None);
        let cursor = sealer.seal(SealPurpose::Cursor, b"", &large);
        assert_eq!(sealer.open(SealPurpose::Cursor, b"", &cursor), Some(large));
    }

    #[test]
    fn debug_output_shows_no_key() {
        let shown = format!("{:?}", sealer(&[key("k1", b'z')]));
        assert!(
            !shown.contains("zzz") && !shown.contains("122, 122"),
            "{shown}"
        );
    }

    proptest! {
        #[test]
        fn any_bytes_come_back(plain: Vec<u8>, aad: Vec<u8>) {
            let sealer = sealer(&[]);
            let handle = sealer.seal(SealPurpose::Task, &aad, &plain);
            prop_assert_eq!(sealer.open(SealPurpose::Task, &aad, &handle), Some(plain));
        }

        #[test]
        fn foreign_text_never_opens(text in "\\PC{0,200}|[A-Za-z0-9_-]{0,200}") {
            prop_assert_eq!(sealer(&[]).open(SealPurpose::Session, b"", &text), None);
        }
    }
}
