//! The entries of an `input_required` result. Spec: SPEC M-61, M-62, C-80…C-82.

use std::borrow::Cow;

use crate::call::{ClientCapabilities, InputRequest};
use crate::protocol::input_request_rules;
use crate::protocol::{Message, Revision, json};
use crate::translate::input_responses::PutQuestion;

/// Most entries of one round.
const MAX_ENTRIES: usize = 64;

/// One question of an `input_required` result.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct QuestionEntry {
    pub(super) key: String,
    method: String,
    /// JSON text.
    params: Option<String>,
}

/// The entries, and JSON text of `requestState`, byte for byte.
type InterimResult = (Vec<QuestionEntry>, Option<String>);

/// Reads an interim result.
///
/// # Errors
/// A sentence about what is wrong with it.
pub(super) fn read(reply: &Message) -> Result<InterimResult, String> {
    let state = match reply.result_member("requestState") {
        None | Some("null") => None,
        Some(text) if text.starts_with('"') => Some(text.to_owned()),
        Some(_) => return Err("requestState is no string".to_owned()),
    };
    let requests = match reply.result_member("inputRequests") {
        None | Some("null") => "{}",
        Some(text) => text,
    };
    let members = json::members(requests).map_err(|error| format!("inputRequests: {error}"))?;
    if members.len() > MAX_ENTRIES {
        return Err(format!("more than {MAX_ENTRIES} questions at once"));
    }
    if members.is_empty() && state.is_none() {
        return Err("input_required with neither questions nor state".to_owned());
    }
    let entries = members
        .into_iter()
        .map(|(key, text)| entry(key.into_owned(), text));
    Ok((entries.collect::<Result<_, _>>()?, state))
}

fn entry(key: String, text: &str) -> Result<QuestionEntry, String> {
    let members = json::members(text).map_err(|error| format!("a question: {error}"))?;
    let member = |name: &str| {
        let mut members = members.iter();
        members.find(|(known, _)| known == name).map(|(_, v)| *v)
    };
    let method = member("method").and_then(json::string);
    let method = method.ok_or("a question without a method")?.into_owned();
    let params = member("params").filter(|text| text.starts_with('{'));
    Ok(QuestionEntry {
        key,
        method,
        params: params.map(str::to_owned),
    })
}

impl QuestionEntry {
    fn is_elicitation(&self) -> bool {
        self.method == "elicitation/create"
    }

    /// The question in words, as part of a sentence.
    pub(super) fn what(&self) -> String {
        match self.method.as_str() {
            // Only the site, not the URL, since the user has not agreed to it (BRIDGING §3.6).
            "elicitation/create" if self.is_url() => {
                let url = self.param("url").and_then(json::string);
                let site = url.as_deref().and_then(site).unwrap_or("a URL");
                format!("a visit to {site}")
            }
            "elicitation/create" => "a form".to_owned(),
            "sampling/createMessage" => "a completion (sampling)".to_owned(),
            "roots/list" => "its roots".to_owned(),
            other => other.chars().take(64).collect(),
        }
    }

    /// Why no client can be asked this question; `None` if it is valid.
    pub(super) fn flaw(&self) -> Option<&'static str> {
        input_request_rules::flaw(&self.method, self.params.as_deref().unwrap_or("{}"))
    }

    /// The question in the form in which a client receives it.
    pub(super) fn put(&self) -> PutQuestion<'_> {
        PutQuestion {
            key: &self.key,
            method: &self.method,
            what: self.what(),
        }
    }

    /// Whether the client's capabilities include the question. Spec: SPEC M-62
    pub(super) fn is_allowed(&self, capabilities: &ClientCapabilities) -> bool {
        let params = self.params.as_deref().unwrap_or("{}");
        capabilities.missing(&self.method, params).is_none()
    }

    /// The question in the form of a client's `revision`: before 2025-11-25 elicitation had one mode without a name,
    /// and in 2025-11-25 a URL elicitation has an id (SPEC C-80, C-82).
    pub(super) fn question_for(&self, revision: Revision) -> InputRequest {
        let params = match revision {
            Revision::V2025_11_25 if self.is_url() && self.param("elicitationId").is_none() => {
                let id = format!("\"{:032x}\"", rand::random::<u128>());
                self.with("elicitationId", Some(&id))
            }
            Revision::V2026_07_28 | Revision::V2025_11_25 => self.params.clone(),
            _ if self.is_elicitation() => self.with("mode", None),
            _ => self.params.clone(),
        };
        InputRequest {
            method: self.method.clone(),
            params: params.map(Into::into),
        }
    }

    pub(super) fn is_url(&self) -> bool {
        self.is_elicitation() && self.param("mode") == Some("\"url\"")
    }

    /// A parameter, as JSON text.
    pub(super) fn param(&self, name: &str) -> Option<&str> {
        json::member(self.params.as_deref()?, name)
    }

    /// The parameters with the member `name` set to `value`, or removed.
    pub(super) fn with(&self, name: &str, value: Option<&str>) -> Option<String> {
        let text = self.params.as_deref()?;
        let Ok(members) = json::members(text) else {
            return Some(text.to_owned());
        };
        let kept = members.into_iter().filter(|(known, _)| known != name);
        let put = value.map(|value| (Cow::Borrowed(name), value));
        Some(json::object(kept.chain(put)))
    }
}

/// Host and port of a URL; `None` where they cannot be read for certain.
fn site(url: &str) -> Option<&str> {
    /// Bytes of the longest host name and of a port.
    const LONGEST: usize = 253 + 6;
    let (_, rest) = url.split_once("://")?;
    let authority = rest.split(['/', '?', '#', '\\']).next()?;
    let (_, site) = authority.rsplit_once('@').unwrap_or(("", authority));
    let is_host = |c: u8| c.is_ascii_alphanumeric() || b".-:[]".contains(&c);
    let is_site = (1..=LONGEST).contains(&site.len()) && site.bytes().all(is_host);
    is_site.then_some(site)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use rstest::rstest;

    use super::*;

    fn interim(result: &str) -> Result<InterimResult, String> {
        let text = format!(r#"{{"jsonrpc":"2.0","id":1,"result":{result}}}"#);
        read(&Message::parse(text.into(), 128).unwrap())
    }

    fn only(params: &str, method: &str) -> QuestionEntry {
        let text =
            format!(r#"{{"inputRequests":{{"k":{{"method":"{method}","params":{params}}}}}}}"#);
        interim(&text).unwrap().0.remove(0)
    }

    // SPEC M-63: the state is kept as it is spelled.
    #[test]
    fn the_state_is_kept_byte_for_byte() {
        let (entries, state) = interim(r#"{"requestState":"a\u00e9\/ü"}"#).unwrap();
        assert!(entries.is_empty());
        assert_eq!(state.as_deref(), Some(r#""a\u00e9\/ü""#));
    }

    // SPEC M-61.
    #[rstest]
    #[case("{}", "neither")]
    #[case(r#"{"requestState":7}"#, "no string")]
    #[case(r#"{"inputRequests":[]}"#, "inputRequests")]
    #[case(r#"{"inputRequests":{"a":{}}}"#, "without a method")]
    #[case(
        r#"{"inputRequests":{"a":{"method":"roots/list"},"a":{"method":"roots/list"}}}"#,
        "inputRequests"
    )]
    fn a_malformed_round_is_refused(#[case] result: &str, #[case] why: &str) {
        let error = interim(result).unwrap_err();
        assert!(error.contains(why), "{error}");
    }

    // BRIDGING §3.6.
    #[rstest]
    #[case("https://consent.example:8443/start?a=b", "consent.example:8443")]
    #[case("https://trusted.example@evil.example?x", "evil.example")]
    #[case("https://evil.example\\\\@trusted.example/", "evil.example")]
    #[case("https://[2001:db8::1]/", "[2001:db8::1]")]
    #[case("https://a.example and then some/", "a URL")]
    #[case("mailto:a@b.example", "a URL")]
    #[case("https:///path", "a URL")]
    fn a_url_is_told_with_its_site_alone(#[case] url: &str, #[case] told: &str) {
        let url_elicitation = format!(r#"{{"mode":"url","url":"{url}"}}"#);
        let url_elicitation = only(&url_elicitation, "elicitation/create");
        assert_eq!(url_elicitation.what(), format!("a visit to {told}"));
    }

    // SPEC M-62.
    #[rstest]
    #[case(
        r#"{"elicitation":{}}"#,
        r#"{"mode":"form"}"#,
        "elicitation/create",
        true
    )]
    #[case(
        r#"{"elicitation":{}}"#,
        r#"{"mode":"url"}"#,
        "elicitation/create",
        false
    )]
    #[case(
        r#"{"sampling":{}}"#,
        r#"{"messages":[]}"#,
        "sampling/createMessage",
        true
    )]
    #[case(
        r#"{"sampling":{}}"#,
        r#"{"tools":[]}"#,
        "sampling/createMessage",
        false
    )]
    #[case(
        r#"{"sampling":{"tools":{}}}"#,
        r#"{"tools":[]}"#,
        "sampling/createMessage",
        true
    )]
    #[case(r#"{"roots":{}}"#, "{}", "tools/call", false)]
    fn only_what_was_offered_is_allowed(
        #[case] offered: &'static str,
        #[case] params: &str,
        #[case] method: &str,
        #[case] allowed: bool,
    ) {
        let offered = ClientCapabilities::read(Bytes::from_static(offered.as_bytes()));
        assert_eq!(only(params, method).is_allowed(&offered), allowed);
    }

    // SPEC C-80, C-82.
    #[test]
    fn questions_are_put_as_the_clients_revision_spells_them() {
        let text = |entry: &QuestionEntry, revision| {
            let params = entry.question_for(revision).params.unwrap();
            String::from_utf8(params.to_vec()).unwrap()
        };
        let form = only(r#"{"mode":"form","message":"m"}"#, "elicitation/create");
        assert_eq!(text(&form, Revision::V2025_06_18), r#"{"message":"m"}"#);
        assert!(text(&form, Revision::V2025_11_25).contains("mode"));
        let url_elicitation = only(r#"{"mode":"url","url":"https://x"}"#, "elicitation/create");
        assert!(text(&url_elicitation, Revision::V2025_11_25).contains("\"elicitationId\":\""));
        assert!(!text(&url_elicitation, Revision::V2026_07_28).contains("elicitationId"));
    }
}
