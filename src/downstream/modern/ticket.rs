//! Our `requestState`: what a client brings back with its answers, sealed. It opens only for the
//! binding, the endpoint and the request that it was given to, until it expires; every other one
//! looks the same. Spec: SPEC M-63, M-64, A-30; BRIDGING §3.1, §3.3.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::digest::{Context, SHA256};
use bytes::Bytes;

use crate::call::{BindingKey, CarriedState, Principal};
use crate::endpoint::Endpoint;
use crate::protocol::Message;
use crate::protocol::json::{self, Flaw, RawString, Scanner};
use crate::seal::{Purpose, Sealer};

/// How long the client may take to answer.
pub(super) const LIFE: Duration = Duration::from_mins(10);
/// Bytes of what a parked call is found by.
pub(super) const KEY_LEN: usize = 16;

const PARKED: u8 = 1;
const CARRIED: u8 = 2;

/// What the answers are for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Ticket {
    /// A call that waits here, and in which of its rounds.
    Parked {
        /// What it is found by.
        key: [u8; KEY_LEN],
        /// Counted from one.
        round: u16,
    },
    /// A call that an upstream goes on with from its own state.
    Carried(CarriedState),
}

/// Who asked what: a ticket opens for that alone.
#[derive(Debug, Clone)]
pub(super) struct Asker {
    binding: BindingKey,
    endpoint: Arc<str>,
    message: Message,
}

impl Asker {
    /// The asker of a request.
    pub(super) fn new(principal: &Principal, endpoint: &Endpoint, message: &Message) -> Self {
        Self {
            binding: principal.binding(),
            endpoint: Arc::clone(&endpoint.name),
            message: message.clone(),
        }
    }

    /// Seals a ticket that expires at `expires` (since the Unix epoch).
    pub(super) fn seal(&self, sealer: &Sealer, ticket: &Ticket, expires: Duration) -> String {
        let mut plain = Vec::new();
        plain.extend_from_slice(&millis(expires).to_be_bytes());
        plain.extend_from_slice(self.binding.bytes());
        plain.extend_from_slice(&digest(&self.message));
        match ticket {
            Ticket::Parked { key, round } => {
                plain.push(PARKED);
                plain.extend_from_slice(key);
                plain.extend_from_slice(&round.to_be_bytes());
            }
            Ticket::Carried(carried) => {
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
        sealer.seal(Purpose::RequestState, self.endpoint.as_bytes(), &plain)
    }

    /// Opens a ticket of this asker that has not expired at `now`.
    pub(super) fn open(&self, sealer: &Sealer, text: &str, now: Duration) -> Option<Ticket> {
        let plain = sealer.open(Purpose::RequestState, self.endpoint.as_bytes(), text)?;
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
                let (key, round) = rest.split_first_chunk::<KEY_LEN>()?;
                Some(Ticket::Parked {
                    key: *key,
                    round: u16::from_be_bytes(*round.first_chunk::<2>()?),
                })
            }
            CARRIED => carried(rest).map(Ticket::Carried),
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

/// Method, name, URI and arguments; the arguments whatever the order of their members, for clients
/// that write them anew.
fn digest(message: &Message) -> [u8; 32] {
    let mut context = Context::new(&SHA256);
    let mut field = |text: &str| {
        context.update(&(text.len() as u64).to_be_bytes());
        context.update(text.as_bytes());
    };
    field(message.method().unwrap_or_default());
    for name in ["name", "uri", "arguments"] {
        let value = message.param(name).unwrap_or_default();
        field(&canonical(value));
    }
    let mut out = [0; 32];
    out.copy_from_slice(context.finish().as_ref());
    out
}

/// The value with the members of its objects in order, each with a comma behind it: only to be
/// compared.
fn canonical(value: &str) -> String {
    let mut out = String::with_capacity(value.len());
    let mut scanner = Scanner::new(value, json::MAX_DEPTH);
    match write_canonical(&mut out, &mut scanner) {
        Ok(()) => out,
        // No JSON: nothing that was parsed.
        Err(_) => value.to_owned(),
    }
}

/// In one pass, however deep: a value is not looked through again for each level above it.
fn write_canonical(out: &mut String, scanner: &mut Scanner<'_>) -> Result<(), Flaw> {
    match scanner.peek() {
        Some(b'{') => write_object(out, scanner),
        Some(b'[') => {
            let mut mark = '[';
            scanner.array(|scanner| {
                out.push(std::mem::replace(&mut mark, ','));
                write_canonical(out, scanner)
            })?;
            out.push_str(if mark == '[' { "[]" } else { "]" });
            Ok(())
        }
        Some(b'"') => {
            let raw = scanner.string()?;
            write_string(out, &raw);
            Ok(())
        }
        _ => {
            let span = scanner.value()?;
            out.push_str(json::slice(scanner.text(), span));
            Ok(())
        }
    }
}

fn write_object(out: &mut String, scanner: &mut Scanner<'_>) -> Result<(), Flaw> {
    out.push('{');
    let start = out.len();
    let mut members = Vec::new();
    scanner.object(|scanner, key| {
        let from = out.len();
        write_string(out, &key);
        let name = from..out.len();
        out.push(':');
        write_canonical(out, scanner)?;
        out.push(',');
        members.push((name, from..out.len()));
        Ok::<_, Flaw>(())
    })?;
    let named = |name: &Range<usize>| out.get(name.clone());
    if !members.is_sorted_by_key(|(name, _)| named(name)) {
        members.sort_by_key(|(name, _)| named(name));
        let texts = members
            .iter()
            .filter_map(|(_, whole)| out.get(whole.clone()));
        let ordered: String = texts.collect();
        out.replace_range(start.., &ordered);
    }
    out.push('}');
    Ok(())
}

/// The string without escapes that it could do without; one with half a character as it came.
fn write_string(out: &mut String, raw: &RawString<'_>) {
    match raw.decode() {
        Ok(text) => json::quote_into(out, &text),
        Err(_) => out.extend(["\"", raw.inner, "\""]),
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const NOW: Duration = Duration::from_secs(1_000);

    fn asker(subject: &str, endpoint: &str, params: &str) -> Asker {
        let principal = Principal::new("https://issuer", subject, "client", Vec::new(), None);
        let text =
            format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{{params}}}}}"#);
        let message = Message::parse(text.into(), 128).unwrap();
        Asker {
            binding: principal.binding(),
            endpoint: endpoint.into(),
            message,
        }
    }

    fn tickets() -> [Ticket; 3] {
        let carried = |state: Option<&'static [u8]>| {
            Ticket::Carried(CarriedState {
                upstream: "files".into(),
                state: state.map(Bytes::from_static),
                digest: [3; 32],
            })
        };
        let parked = Ticket::Parked {
            key: [7; KEY_LEN],
            round: 300,
        };
        [parked, carried(Some("ä\u{0}\"".as_bytes())), carried(None)]
    }

    const CALL: &str = r#""name":"t","arguments":{"a":1,"b":["x",{"c":2,"d":"é"}]}"#;

    // SPEC M-64.
    #[rstest]
    #[case::same("alice", "mcp", CALL, true)]
    #[case::rewritten(
        "alice",
        "mcp",
        r#""arguments": {"b": ["x", {"d": "\u00e9", "c": 2}], "a": 1}, "name": "t""#,
        true
    )]
    #[case::other_user("mallory", "mcp", CALL, false)]
    #[case::other_endpoint("alice", "files", CALL, false)]
    #[case::other_arguments("alice", "mcp", r#""name":"t","arguments":{"a":2}"#, false)]
    #[case::other_tool(
        "alice",
        "mcp",
        r#""name":"u","arguments":{"a":1,"b":["x",{"c":2,"d":"é"}]}"#,
        false
    )]
    fn a_ticket_opens_for_the_request_it_was_given_to(
        #[case] subject: &str,
        #[case] endpoint: &str,
        #[case] params: &str,
        #[case] opens: bool,
    ) {
        let sealer = Sealer::new(&[]).unwrap();
        for ticket in tickets() {
            let text = asker("alice", "mcp", CALL).seal(&sealer, &ticket, NOW + LIFE);
            let opened = asker(subject, endpoint, params).open(&sealer, &text, NOW);
            assert_eq!(opened, opens.then_some(ticket));
        }
    }

    #[test]
    fn a_ticket_expires_and_cannot_be_altered() {
        let sealer = Sealer::new(&[]).unwrap();
        let asker = asker("alice", "mcp", CALL);
        let [ticket, ..] = tickets();
        let text = asker.seal(&sealer, &ticket, NOW);
        assert!(asker.open(&sealer, &text, NOW).is_some());
        let later = NOW + Duration::from_millis(1);
        assert_eq!(asker.open(&sealer, &text, later), None);
        for at in 0..text.len() {
            let mut bytes = text.clone().into_bytes();
            bytes[at] ^= 1;
            let altered = String::from_utf8(bytes).unwrap();
            assert_eq!(asker.open(&sealer, &altered, NOW), None, "{at}");
        }
    }

    #[rstest]
    #[case(" 1 ", "1")]
    #[case("1.0", "1.0")]
    #[case("[ ]", "[]")]
    #[case("[1, [ \"\\u0061\" ,null]]", "[1,[\"a\",null]]")]
    #[case("{ }", "{}")]
    #[case(
        "{\"b\":{\"d\":1,\"c\":2},\"a\":[]}",
        "{\"a\":[],\"b\":{\"c\":2,\"d\":1,},}"
    )]
    #[case("{\"\\ud800\":\"\\udc00\"}", "{\"\\ud800\":\"\\udc00\",}")]
    #[case("", "")]
    fn one_value_has_one_spelling(#[case] value: &str, #[case] spelling: &str) {
        assert_eq!(canonical(value), spelling);
    }

    #[test]
    fn repeated_members_keep_their_order() {
        assert_ne!(canonical(r#"{"a":1,"a":2}"#), canonical(r#"{"a":2,"a":1}"#));
    }

    // Looked through once for each level, it would take a minute and more.
    #[test]
    fn arguments_that_are_long_and_deep_are_read_once() {
        const DEPTH: usize = 1000;
        let long = "1,".repeat(1_000_000);
        let deep = format!("{}{long}1{}", "[".repeat(DEPTH), "]".repeat(DEPTH));
        let begun = std::time::Instant::now();
        assert_eq!(canonical(&deep), deep);
        assert!(begun.elapsed() < Duration::from_secs(10));
    }
}
