//! The lease record of a replica: what other replicas are told of it, with a MAC that only holders of
//! `cluster.secret` can make.
//!
//! `<version>.<base64url JSON>.<base64url MAC>`. Redis holds nothing that gives a replica's identity away: the MAC
//! vouches for the fingerprint of a certificate whose key never leaves its process.

use aws_lc_rs::hkdf::{HKDF_SHA256, KeyType, Salt};
use aws_lc_rs::hmac::{self, HMAC_SHA256};
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::secret::Secret;

/// The version of the format, which the MAC covers.
const VERSION: &str = "1";
/// The longest record that is read, in bytes.
const MAX_LEN: usize = 4096;
/// Separates this use of the secret from any other.
const SALT: &[u8] = b"drawbridge replica records 1";
/// Bytes of the key of the MAC.
const KEY_LEN: usize = 32;

/// What a replica says of itself. Members that a later release adds are ignored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ReplicaRecord {
    /// Random at each start, and claimed in Redis: no two living replicas have the same.
    pub node: u32,
    /// Host and port of its internal listener.
    pub address: String,
    /// The release that it runs.
    pub version: String,
    /// Digest of its configuration without what may differ between replicas.
    pub config: String,
    /// SHA-256 of its certificate, base64url; absent with `cluster.tls`.
    pub fingerprint: Option<String>,
    /// When it started, milliseconds since the Unix epoch.
    pub started: u64,
    /// Whether it drains, and takes over no sessions of others. Older releases ignore this member.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_draining: bool,
}

impl ReplicaRecord {
    /// Whether this replica has another configuration than `other`. Only replicas of the same release are compared, since
    /// releases may differ in their configuration keys.
    pub(super) fn is_configured_unlike(&self, other: &Self) -> bool {
        self.version == other.version && self.config != other.config
    }

    /// Whether both records are of one process, which may have begun to drain in between.
    pub(super) fn is_same_process(&self, other: &Self) -> bool {
        let is_draining = self.is_draining;
        *self
            == Self {
                is_draining,
                ..other.clone()
            }
    }

    /// The same once the replica drains.
    pub(super) fn draining(&self) -> Self {
        Self {
            is_draining: true,
            ..self.clone()
        }
    }
}

/// Makes and checks lease records of one cluster.
#[derive(Debug)]
pub(super) struct RecordSealer {
    /// Absent with `cluster.tls`: certificates of its CA say who a replica is.
    key: Option<hmac::Key>,
    prefix: String,
}

impl RecordSealer {
    /// Records under keys that begin with `prefix`, which the MAC covers: a record of one cluster means nothing in
    /// another one with the same secret.
    pub(super) fn new(secret: Option<&Secret>, prefix: &str) -> Self {
        Self {
            key: secret.map(derive),
            prefix: prefix.to_owned(),
        }
    }

    /// The text that is kept in Redis.
    pub(super) fn seal(&self, record: &ReplicaRecord) -> serde_json::Result<String> {
        let body = BASE64_URL_SAFE_NO_PAD.encode(serde_json::to_vec(record)?);
        let tag = match &self.key {
            Some(key) => sign(key, &self.signed(&body)),
            None => String::new(),
        };
        Ok(format!("{VERSION}.{body}.{tag}"))
    }

    /// The record behind a text from Redis; `None` if it is forged, of another cluster or of an unknown version.
    pub(super) fn open(&self, text: &str) -> Option<ReplicaRecord> {
        let (body, tag) = parts(text)?;
        if let Some(key) = &self.key {
            verify(key, &self.signed(body), tag)?;
        }
        read(body)
    }

    /// Seals `said` for the connection with this `binding`. `None` with `cluster.tls`, which has no secret.
    pub(super) fn seal_bound<T: Serialize>(&self, said: &T, binding: &str) -> Option<String> {
        let key = self.key.as_ref()?;
        let body = BASE64_URL_SAFE_NO_PAD.encode(serde_json::to_vec(said).ok()?);
        let tag = sign(key, &self.signed_bound(&body, binding));
        Some(format!("{VERSION}.{body}.{tag}"))
    }

    /// What [`Self::seal_bound`] has sealed for the connection `binding`; `None` where it is anything else, a record from
    /// Redis included.
    pub(super) fn open_bound<T: DeserializeOwned>(&self, text: &str, binding: &str) -> Option<T> {
        let key = self.key.as_ref()?;
        let (body, tag) = parts(text)?;
        verify(key, &self.signed_bound(body, binding), tag)?;
        read(body)
    }

    /// What the MAC covers. Neither prefixes nor bodies contain a zero byte.
    fn signed(&self, body: &str) -> Vec<u8> {
        [VERSION, &self.prefix, body].join("\0").into_bytes()
    }

    /// The same for one connection. One part more: it is what the MAC of no record covers.
    fn signed_bound(&self, body: &str, binding: &str) -> Vec<u8> {
        [VERSION, &self.prefix, body, binding]
            .join("\0")
            .into_bytes()
    }
}

/// Body and MAC of a text in the format of this release.
fn parts(text: &str) -> Option<(&str, &str)> {
    if text.len() > MAX_LEN {
        return None;
    }
    let mut parts = text.split('.');
    let (version, body, tag) = (parts.next()?, parts.next()?, parts.next()?);
    (version == VERSION && parts.next().is_none()).then_some((body, tag))
}

fn sign(key: &hmac::Key, signed: &[u8]) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(hmac::sign(key, signed))
}

fn verify(key: &hmac::Key, signed: &[u8], tag: &str) -> Option<()> {
    let tag = BASE64_URL_SAFE_NO_PAD.decode(tag).ok()?;
    hmac::verify(key, signed, &tag).ok()
}

fn read<T: DeserializeOwned>(body: &str) -> Option<T> {
    let body = BASE64_URL_SAFE_NO_PAD.decode(body).ok()?;
    serde_json::from_slice(&body).ok()
}

#[expect(
    clippy::expect_used,
    reason = "HKDF refuses only keys longer than 255 digests"
)]
fn derive(secret: &Secret) -> hmac::Key {
    let mut key = [0; KEY_LEN];
    Salt::new(HKDF_SHA256, SALT)
        .extract(secret.expose().as_bytes())
        .expand(&[b"mac"], DerivedLen)
        .and_then(|okm| okm.fill(&mut key))
        .expect("a short key");
    hmac::Key::new(HMAC_SHA256, &key)
}

struct DerivedLen;

impl KeyType for DerivedLen {
    fn len(&self) -> usize {
        KEY_LEN
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::fixtures;

    fn record() -> ReplicaRecord {
        fixtures::record(7)
    }

    fn sealer(secret: &str, prefix: &str) -> RecordSealer {
        RecordSealer::new(Some(&Secret::new(secret)), prefix)
    }

    #[test]
    fn record_reads_back_in_its_own_cluster_only() {
        let text = sealer("one", "a").seal(&record()).unwrap();
        assert_eq!(sealer("one", "a").open(&text), Some(record()));
        assert_eq!(sealer("two", "a").open(&text), None);
        assert_eq!(sealer("one", "b").open(&text), None);
    }

    #[test]
    fn changed_record_is_refused() {
        let own = sealer("one", "a");
        let text = own.seal(&record()).unwrap();
        let other = ReplicaRecord {
            node: 8,
            ..record()
        };
        let body = BASE64_URL_SAFE_NO_PAD.encode(serde_json::to_vec(&other).unwrap());
        let tag = text.rsplit_once('.').unwrap().1;
        assert_eq!(own.open(&format!("1.{body}.{tag}")), None);
        assert_eq!(own.open(&format!("1.{body}.")), None);
        assert_eq!(own.open(&text.replacen('1', "2", 1)), None);
    }

    #[test]
    fn members_of_later_releases_are_ignored() {
        let own = RecordSealer::new(None, "a");
        let mut json = serde_json::to_value(record()).unwrap();
        json["more"] = 1.into();
        let body = BASE64_URL_SAFE_NO_PAD.encode(json.to_string());
        assert_eq!(own.open(&format!("1.{body}.")), Some(record()));
    }

    /// A record as the former release reads it.
    #[derive(Debug, PartialEq, Deserialize)]
    struct FormerRecord {
        node: u32,
        address: String,
        version: String,
        config: String,
        fingerprint: Option<String>,
        started: u64,
    }

    #[test]
    fn former_release_reads_the_record_of_a_replica_that_drains() {
        let own = RecordSealer::new(None, "a");
        let json = |record: &ReplicaRecord| {
            let text = own.seal(record).unwrap();
            let body = text.split('.').nth(1).unwrap();
            BASE64_URL_SAFE_NO_PAD.decode(body).unwrap()
        };
        let read = |body: &[u8]| serde_json::from_slice::<FormerRecord>(body).unwrap();
        assert_eq!(read(&json(&record().draining())), read(&json(&record())));
        let json = String::from_utf8(json(&record())).unwrap();
        assert!(
            !json.contains("draining"),
            "as the former release writes it: {json}"
        );
    }

    #[test]
    fn replica_that_begins_to_drain_is_the_same_process() {
        let own = RecordSealer::new(None, "a");
        let read = own.open(&own.seal(&record().draining()).unwrap()).unwrap();
        assert!(read.is_draining && read.is_same_process(&record()));
        let other = ReplicaRecord {
            started: 2,
            ..record()
        };
        assert!(!read.is_same_process(&other));
    }

    #[test]
    fn secret_stands_in_no_record() {
        let text = sealer("hunter2", "a").seal(&record()).unwrap();
        let body = text.split('.').nth(1).unwrap();
        let body = BASE64_URL_SAFE_NO_PAD.decode(body).unwrap();
        assert!(!String::from_utf8(body).unwrap().contains("hunter2"));
    }
}
