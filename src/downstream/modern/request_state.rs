//! The gateway's `requestState`: a sealed ticket that the client sends back with its answers. A ticket opens only for
//! the binding, endpoint and request it was sealed for, until it expires; all failures look alike.
//! Spec: SPEC M-63, M-64, A-30; BRIDGING §3.1, §3.3.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::call::{BindingKey, CarriedState, Principal};
use crate::clock::millis;
use crate::digest::digest_of;
use crate::endpoint::Endpoint;
use crate::ownership::Ownership;
use crate::protocol::Message;
use crate::protocol::json::{self, JsonFlaw, JsonScanner, RawString};
use crate::seal::{SealPurpose, Sealer};

/// How long the client may take to answer.
pub(super) const LIFE: Duration = Duration::from_mins(10);
/// Bytes of a parked call's key.
pub(super) const KEY_LEN: usize = 16;

/// Bytes of a SHA-256 digest.
const DIGEST_LEN: usize = 32;
/// Prefix of a digest: no JSON value begins with this byte.
const DIGEST_MARK: &[u8] = b"#";
/// Objects up to this size are hashed verbatim; longer ones are replaced by their digest. Twice a digest, so that a
/// parent holding one digest stays below the limit.
const SHORT: usize = 2 * DIGEST_LEN;

const PARKED: u8 = 1;
const CARRIED: u8 = 2;

/// The call that a retry answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RequestState {
    /// A call parked here, and its round.
    Parked {
        /// Who keeps the call.
        owner: Ownership,
        /// Key of the call in `ParkedCalls`.
        key: [u8; KEY_LEN],
        /// Counted from one.
        round: u16,
    },
    /// A call that an upstream continues from its own state.
    Carried(CarriedState),
}

/// Binding, endpoint and message of the request: a ticket opens only for an equal asker.
#[derive(Debug, Clone)]
pub(super) struct RequestBinding {
    binding: BindingKey,
    endpoint: Arc<str>,
    message: Message,
}

impl RequestBinding {
    /// The asker of a request.
    pub(super) fn new(principal: &Principal, endpoint: &Endpoint, message: &Message) -> Self {
        Self {
            binding: principal.binding(),
            endpoint: Arc::clone(&endpoint.name),
            message: message.clone(),
        }
    }

    /// Seals a ticket that expires at `expires` (since the Unix epoch).
    pub(super) fn seal(
        &self,
        sealer: &Sealer,
        request_state: &RequestState,
        expires: Duration,
    ) -> String {
        let mut plain = Vec::new();
        plain.extend_from_slice(&millis(expires).to_be_bytes());
        plain.extend_from_slice(self.binding.bytes());
        plain.extend_from_slice(&digest(&self.message));
        match request_state {
            RequestState::Parked { owner, key, round } => {
                plain.push(PARKED);
                plain.extend_from_slice(&owner.to_bytes());
                plain.extend_from_slice(key);
                plain.extend_from_slice(&round.to_be_bytes());
            }
            RequestState::Carried(carried) => {
                plain.push(CARRIED);
                plain.extend_from_slice(&carried.digest);
                let name = carried.upstream.as_bytes();
                plain.extend_from_slice(&(name.len() as u64).to_be_bytes());
                plain.extend_from_slice(name);
                if let Some(state) = &carried.state {
                    plain.push(1);
                    plain.extend_from_slice(state);
                }
            }
        }
        sealer.seal(SealPurpose::RequestState, self.endpoint.as_bytes(), &plain)
    }

    /// Opens a ticket of this asker that has not expired at `now`; that of a parked call only where `own` keeps it.
    pub(super) fn open(
        &self,
        sealer: &Sealer,
        text: &str,
        now: Duration,
        own: Ownership,
    ) -> Option<RequestState> {
        let state = self.open_any(sealer, text, now)?;
        match state {
            RequestState::Parked { owner, .. } if owner != own => None,
            _ => Some(state),
        }
    }

    /// The keeper of the parked call behind a ticket of this asker that has not expired at `now`.
    pub(super) fn owner_of(&self, sealer: &Sealer, text: &str, now: Duration) -> Option<Ownership> {
        match self.open_any(sealer, text, now)? {
            RequestState::Parked { owner, .. } => Some(owner),
            RequestState::Carried(_) => None,
        }
    }

    /// Opens a ticket of this asker, also where another replica keeps its call.
    fn open_any(&self, sealer: &Sealer, text: &str, now: Duration) -> Option<RequestState> {
        let plain = sealer.open(SealPurpose::RequestState, self.endpoint.as_bytes(), text)?;
        let (expires, rest) = plain.split_first_chunk::<8>()?;
        let (binding, rest) = rest.split_first_chunk::<32>()?;
        let (about, rest) = rest.split_first_chunk::<32>()?;
        let is_ours = binding == self.binding.bytes() && *about == digest(&self.message);
        if !is_ours || u64::from_be_bytes(*expires) < millis(now) {
            return None;
        }
        let (kind, rest) = rest.split_first()?;
        match *kind {
            PARKED => {
                let (owner, rest) = Ownership::split_from(rest)?;
                let (key, round) = rest.split_first_chunk::<KEY_LEN>()?;
                Some(RequestState::Parked {
                    owner,
                    key: *key,
                    round: u16::from_be_bytes(*round.first_chunk::<2>()?),
                })
            }
            CARRIED => carried(rest).map(RequestState::Carried),
            _ => None,
        }
    }
}

fn carried(plain: &[u8]) -> Option<CarriedState> {
    let (digest, rest) = plain.split_first_chunk::<32>()?;
    let (len, rest) = rest.split_first_chunk::<8>()?;
    let (name, state) = rest.split_at_checked(usize::try_from(u64::from_be_bytes(*len)).ok()?)?;
    Some(CarriedState {
        upstream: std::str::from_utf8(name).ok()?.into(),
        state: state
            .split_first()
            .map(|(_, state)| Bytes::copy_from_slice(state)),
        digest: *digest,
    })
}

/// Digest of method, name, URI and arguments. The arguments are normalised, because some clients serialise them again
/// for the retry, with their members in another order.
fn digest(message: &Message) -> [u8; DIGEST_LEN] {
    let method = message.method().unwrap_or_default().as_bytes().to_vec();
    let params = ["name", "uri", "arguments"].into_iter();
    let params = params.map(|name| message.param(name).unwrap_or_default());
    digest_of(std::iter::once(method).chain(params.map(|param| CanonicalJson::of(param).out)))
}

/// A JSON value in canonical form: no spaces or needless escapes, the members of each object sorted, and an object of
/// more than [`SHORT`] bytes replaced by the digest of its members. Sorting therefore moves little text, the contents
/// of a long object are handled once however deep the nesting, and many small objects need no digests.
#[derive(Debug, Default)]
struct CanonicalJson {
    out: Vec<u8>,
    /// Bytes that were written, moved or put into a digest.
    #[cfg(test)]
    handled: usize,
    #[cfg(test)]
    digests: usize,
}

impl CanonicalJson {
    fn of(value: &str) -> Self {
        let mut spelling = Self::default();
        let mut scanner = JsonScanner::new(value, json::MAX_DEPTH);
        if spelling.write(&mut scanner).is_err() {
            // No JSON: nothing that was parsed.
            spelling.out = value.into();
        }
        spelling
    }

    fn write(&mut self, scanner: &mut JsonScanner<'_>) -> Result<(), JsonFlaw> {
        match scanner.peek() {
            Some(b'{') => self.write_object(scanner),
            Some(b'[') => {
                let mut mark = "[";
                scanner.array(|scanner| {
                    self.push(std::mem::replace(&mut mark, ",").as_bytes());
                    self.write(scanner)
                })?;
                let end = if mark == "[" { "[]" } else { "]" };
                self.push(end.as_bytes());
                Ok(())
            }
            Some(b'"') => {
                let raw = scanner.string()?;
                self.write_string(&raw);
                Ok(())
            }
            _ => {
                let span = scanner.value()?;
                self.push(json::slice(scanner.text(), span).as_bytes());
                Ok(())
            }
        }
    }

    fn write_object(&mut self, scanner: &mut JsonScanner<'_>) -> Result<(), JsonFlaw> {
        let start = self.out.len();
        let mut members = Vec::new();
        self.push(b"{");
        scanner.object(|scanner, key| {
            if !members.is_empty() {
                self.push(b",");
            }
            let from = self.out.len();
            self.write_string(&key);
            let name = from..self.out.len();
            self.push(b":");
            self.write(scanner)?;
            members.push((name, from..self.out.len()));
            Ok::<_, JsonFlaw>(())
        })?;
        self.push(b"}");
        let is_long = self.out.len() - start > SHORT;
        if !is_long && members.is_sorted_by_key(|(name, _)| self.out.get(name.clone())) {
            return Ok(());
        }
        // Members of one name keep their order.
        members.sort_by_key(|(name, _)| self.out.get(name.clone()));
        let texts = members
            .into_iter()
            .map(|(_, member)| self.out.get(member).unwrap_or_default());
        if is_long {
            let digest = digest_of(texts);
            #[cfg(test)]
            {
                self.handled += self.out.len() - start;
                self.digests += 1;
            }
            self.out.truncate(start);
            self.push(DIGEST_MARK);
            self.push(&digest);
        } else {
            let ordered = texts.collect::<Vec<_>>().join(&b',');
            self.out.truncate(start);
            for part in [b"{", ordered.as_slice(), b"}"] {
                self.push(part);
            }
        }
        Ok(())
    }

    /// Writes the string without unneeded escapes; a string with a lone surrogate is copied verbatim.
    fn write_string(&mut self, raw: &RawString<'_>) {
        match raw.decode() {
            Ok(text) => self.push(json::quote(&text).as_bytes()),
            Err(_) => {
                for part in ["\"", raw.inner(), "\""] {
                    self.push(part.as_bytes());
                }
            }
        }
    }

    fn push(&mut self, bytes: &[u8]) {
        #[cfg(test)]
        {
            self.handled += bytes.len();
        }
        self.out.extend_from_slice(bytes);
    }
}

#[cfg(test)]
mod tests;
