//! The key ring of the vault: AES-256-GCM under a key derived per kind of record.
//!
//! A sealed record is: version, nonce, cipher text, tag. The name of its key is stored beside it in the row and
//! authenticated together with the record's kind and place. Nonces are random: after 2^32 records under one key two
//! nonces are equal with a probability of 2^-33, which at a hundred records a second takes 490 days; rotate before.

use std::fmt;

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::hkdf::{HKDF_SHA256, KeyType, Prk, Salt};
use secrecy::{ExposeSecret as _, ExposeSecretMut as _, SecretSlice};

use crate::config::SealKey;

/// Bytes of a derived key.
const KEY_LEN: usize = 32;
/// Bytes of the fingerprint that names a key in the database: a key may be renamed in the configuration, and two keys
/// of the same name must differ.
const FINGERPRINT_LEN: usize = 8;
/// Separates this use of the operator's keys from any other use.
const SALT: &[u8] = b"drawbridge vault 1";
/// Version of the format of sealed records.
const VERSION: u8 = 1;

/// The kind of a sealed record. A record of one kind never opens as another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RecordKind {
    Grant,
    List,
    Registration,
    Pending,
    Revocation,
}

impl RecordKind {
    const ALL: [Self; 5] = [
        Self::Grant,
        Self::List,
        Self::Registration,
        Self::Pending,
        Self::Revocation,
    ];

    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Grant => "grant",
            Self::List => "list",
            Self::Registration => "registration",
            Self::Pending => "pending",
            Self::Revocation => "revocation",
        }
    }
}

/// Why a key ring cannot be built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VaultKeyError {
    /// The configuration has no key.
    #[error("the vault has no key")]
    Empty,
    /// The cryptography library refused the key.
    #[error("vault key {0:?} cannot be used")]
    Unusable(String),
}

/// Why a record cannot be opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OpenError {
    /// The key ring has no key of this name.
    UnknownKey,
    /// The record is not what the gateway sealed.
    Damaged,
}

/// A sealed record and the name of its key.
#[derive(Debug)]
pub(super) struct Sealed {
    pub(super) key_id: String,
    pub(super) bytes: Vec<u8>,
}

struct VaultKey {
    /// Name in the configuration.
    name: String,
    /// Fingerprint of the key.
    id: String,
    /// Derived keys, indexed by the position in [`RecordKind::ALL`].
    derived: Vec<LessSafeKey>,
}

/// Seals with the first key of the ring and opens with any key.
pub struct VaultKeys(Vec<VaultKey>);

impl fmt::Debug for VaultKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.ids()).finish()
    }
}

impl VaultKeys {
    /// Derives the key of every kind once.
    ///
    /// # Errors
    /// There is no key, or one cannot be used.
    pub fn new(keys: &[SealKey]) -> Result<Self, VaultKeyError> {
        if keys.is_empty() {
            return Err(VaultKeyError::Empty);
        }
        let ring = keys
            .iter()
            .map(VaultKey::derive)
            .collect::<Result<_, _>>()?;
        Ok(Self(ring))
    }

    /// The name in the configuration of the key with this fingerprint.
    #[must_use]
    pub fn name_of(&self, id: &str) -> Option<&str> {
        let key = self.0.iter().find(|key| key.id == id);
        key.map(|key| &*key.name)
    }

    /// The name in the configuration of the key that seals.
    #[must_use]
    pub fn sealing_name(&self) -> &str {
        &self.sealing().name
    }

    /// Fingerprints of the keys, the sealing one first.
    pub(super) fn ids(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|key| &*key.id)
    }

    /// The fingerprint of the key that seals.
    pub(super) fn sealing_id(&self) -> &str {
        &self.sealing().id
    }

    fn sealing(&self) -> &VaultKey {
        #[expect(clippy::indexing_slicing, reason = "`new` refuses an empty ring")]
        &self.0[0]
    }

    /// Seals `plain` for its place: the columns that select the row.
    #[expect(clippy::expect_used, reason = "AES-GCM refuses only more than 64 GiB")]
    pub(super) fn seal(&self, kind: RecordKind, place: &[&[u8]], plain: Vec<u8>) -> Sealed {
        let key = self.sealing();
        let nonce: [u8; NONCE_LEN] = rand::random();
        let mut text = plain;
        key.cipher(kind)
            .seal_in_place_append_tag(
                Nonce::assume_unique_for_key(nonce),
                associated(kind, place, &key.id),
                &mut text,
            )
            .expect("a record is short");
        let mut bytes = Vec::with_capacity(1 + NONCE_LEN + text.len());
        bytes.push(VERSION);
        bytes.extend_from_slice(&nonce);
        bytes.extend_from_slice(&text);
        Sealed {
            key_id: key.id.clone(),
            bytes,
        }
    }

    /// Opens a record that was sealed for the same kind and place under the key `key_id`.
    pub(super) fn open(
        &self,
        kind: RecordKind,
        place: &[&[u8]],
        key_id: &str,
        sealed: &[u8],
    ) -> Result<PlainRecord, OpenError> {
        let key = self.0.iter().find(|key| key.id == key_id);
        let key = key.ok_or(OpenError::UnknownKey)?;
        let (version, rest) = sealed.split_first().ok_or(OpenError::Damaged)?;
        let parts = rest.split_first_chunk::<NONCE_LEN>();
        let (nonce, text) = parts.ok_or(OpenError::Damaged)?;
        if *version != VERSION {
            return Err(OpenError::Damaged);
        }
        let mut plain = SecretSlice::from(text.to_vec());
        let opened = key.cipher(kind).open_in_place(
            Nonce::from(nonce),
            associated(kind, place, key_id),
            plain.expose_secret_mut(),
        );
        let length = opened.map_err(|_| OpenError::Damaged)?.len();
        Ok(PlainRecord { plain, length })
    }
}

/// An opened record; zeroed when dropped.
pub(super) struct PlainRecord {
    plain: SecretSlice<u8>,
    /// Length of the plain text, without the tag.
    length: usize,
}

impl std::ops::Deref for PlainRecord {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let plain = self.plain.expose_secret();
        plain.get(..self.length).unwrap_or_default()
    }
}

impl VaultKey {
    fn derive(key: &SealKey) -> Result<Self, VaultKeyError> {
        let unusable = || VaultKeyError::Unusable(key.id.clone());
        let secret = Salt::new(HKDF_SHA256, SALT).extract(key.key.expose().as_bytes());
        let derived = RecordKind::ALL.iter().map(|kind| {
            let bytes: [u8; KEY_LEN] = expand(&secret, kind.label()).ok_or_else(unusable)?;
            let key = UnboundKey::new(&AES_256_GCM, &bytes).map_err(|_| unusable())?;
            Ok(LessSafeKey::new(key))
        });
        let derived = derived.collect::<Result<_, _>>()?;
        let fingerprint: [u8; FINGERPRINT_LEN] =
            expand(&secret, "fingerprint").ok_or_else(unusable)?;
        Ok(Self {
            name: key.id.clone(),
            id: format!("{:016x}", u64::from_be_bytes(fingerprint)),
            derived,
        })
    }

    fn cipher(&self, kind: RecordKind) -> &LessSafeKey {
        #[expect(clippy::indexing_slicing, reason = "derived for every kind")]
        &self.derived[kind as usize]
    }
}

fn expand<const N: usize>(secret: &Prk, label: &str) -> Option<[u8; N]> {
    let mut out = [0; N];
    let info = [label.as_bytes()];
    let okm = secret.expand(&info, DerivedLen(N)).ok()?;
    okm.fill(&mut out).ok()?;
    Some(out)
}

/// The length of a derived key, in the form that HKDF requires.
struct DerivedLen(usize);

impl KeyType for DerivedLen {
    fn len(&self) -> usize {
        self.0
    }
}

/// The associated data: version, kind, key and place, each preceded by its length.
fn associated(kind: RecordKind, place: &[&[u8]], key_id: &str) -> Aad<Vec<u8>> {
    let mut all = vec![VERSION];
    let fields = [kind.label().as_bytes(), key_id.as_bytes()];
    for field in fields.iter().chain(place) {
        all.extend_from_slice(&(field.len() as u64).to_be_bytes());
        all.extend_from_slice(field);
    }
    Aad::from(all)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::secret::Secret;

    fn keys(names: &[(&str, &str)]) -> VaultKeys {
        let keys: Vec<_> = names
            .iter()
            .map(|(id, material)| SealKey {
                id: (*id).to_owned(),
                key: Secret::new(material.repeat(32)),
            })
            .collect();
        VaultKeys::new(&keys).unwrap()
    }

    fn open(keys: &VaultKeys, place: &[&[u8]], sealed: &Sealed) -> Result<Vec<u8>, OpenError> {
        keys.open(RecordKind::Grant, place, &sealed.key_id, &sealed.bytes)
            .map(|plain| plain.to_vec())
    }

    #[test]
    fn sealed_record_opens_at_its_place() {
        let ring = keys(&[("k1", "a")]);
        let sealed = ring.seal(RecordKind::Grant, &[b"o", b"u"], b"plain".to_vec());
        assert_eq!(open(&ring, &[b"o", b"u"], &sealed), Ok(b"plain".to_vec()));
        assert!(!sealed.bytes.windows(5).any(|part| part == b"plain"));
    }

    #[rstest]
    #[case::another_owner(&[b"x" as &[u8], b"u"])]
    #[case::another_upstream(&[b"o" as &[u8], b"x"])]
    #[case::moved_border(&[b"ou" as &[u8], b""])]
    #[case::fewer(&[b"o" as &[u8]])]
    fn record_opens_nowhere_else(#[case] place: &[&[u8]]) {
        let ring = keys(&[("k1", "a")]);
        let sealed = ring.seal(RecordKind::Grant, &[b"o", b"u"], b"plain".to_vec());
        assert_eq!(open(&ring, place, &sealed), Err(OpenError::Damaged));
    }

    #[test]
    fn record_does_not_open_as_another_kind() {
        let ring = keys(&[("k1", "a")]);
        let sealed = ring.seal(RecordKind::List, &[b"o"], b"plain".to_vec());
        assert_eq!(open(&ring, &[b"o"], &sealed), Err(OpenError::Damaged));
    }

    #[test]
    fn each_changed_byte_spoils_a_record() {
        let ring = keys(&[("k1", "a")]);
        let sealed = ring.seal(RecordKind::Grant, &[b"o"], b"plain".to_vec());
        for at in 0..sealed.bytes.len() {
            let mut bytes = sealed.bytes.clone();
            bytes[at] ^= 1;
            let key_id = sealed.key_id.clone();
            let changed = Sealed { key_id, bytes };
            assert_eq!(open(&ring, &[b"o"], &changed), Err(OpenError::Damaged));
        }
        let cut = Sealed {
            key_id: sealed.key_id.clone(),
            bytes: sealed.bytes[..5].to_vec(),
        };
        assert_eq!(open(&ring, &[b"o"], &cut), Err(OpenError::Damaged));
    }

    #[test]
    fn older_key_opens_until_it_leaves_the_ring() {
        let old = keys(&[("k1", "a")]).seal(RecordKind::Grant, &[b"o"], b"plain".to_vec());
        let both = keys(&[("k2", "b"), ("k1", "a")]);
        assert!(open(&both, &[b"o"], &old).is_ok());
        let new = both.seal(RecordKind::Grant, &[b"o"], b"plain".to_vec());
        assert_eq!(new.key_id, both.sealing_id());
        let only_new = keys(&[("k2", "b")]);
        assert!(open(&only_new, &[b"o"], &new).is_ok());
        assert_eq!(open(&only_new, &[b"o"], &old), Err(OpenError::UnknownKey));
    }

    #[test]
    fn key_is_known_by_its_material_not_its_name() {
        let old = keys(&[("k1", "a")]).seal(RecordKind::Grant, &[b"o"], b"plain".to_vec());
        assert!(open(&keys(&[("renamed", "a")]), &[b"o"], &old).is_ok());
        let replaced = keys(&[("k1", "b")]);
        assert_eq!(open(&replaced, &[b"o"], &old), Err(OpenError::UnknownKey));
    }

    #[test]
    fn empty_ring_is_refused() {
        assert!(matches!(VaultKeys::new(&[]), Err(VaultKeyError::Empty)));
    }
}
