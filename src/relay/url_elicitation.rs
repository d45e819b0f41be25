//! Calls that an upstream of 2025-11-25 answers with "visit these URLs first", for clients that
//! know no such error: the user is asked, and the call is run again.
//! Spec: BRIDGING §3.6; SPEC C-83, E-03.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::forward::{Forward, OpenedForward};
use super::methods::tools_call;
use super::refused_links::failure_reply;
use crate::call::{Call, InputOutcome, InputRequest, InputRequests, Reply};
use crate::digest::digest_of;
use crate::fault::Fault;
use crate::outbound::ReplySource;
use crate::protocol::error_codes::URL_ELICITATION_REQUIRED;
use crate::protocol::{Era, Message, json, links, methods};
use crate::translate::project::RevisionProjection;

/// Most rounds of URL elicitations in one call.
const ROUNDS: usize = 10;
/// How long a call waits until accepted URL elicitations are complete.
const HOLD: Duration = Duration::from_secs(30);
/// Most URL elicitations in one round.
const MAX_VISITS: usize = 16;

/// One required URL elicitation.
#[derive(Debug)]
struct RequiredUrl {
    /// Key derived from the URL, so that no client shows a URL twice.
    key: String,
    /// `elicitationId` of the upstream.
    id: Option<String>,
    /// JSON text of the question's parameters.
    params: Bytes,
}

impl<'a> Forward<'a> {
    /// The reply of the upstream, after all URL elicitations that it requires.
    pub(super) async fn exchange(&self, opened: &OpenedForward<'a>) -> Result<Reply, Fault> {
        let reply = self.send_once(opened).await?;
        if is_required(opened.call(self), &reply) {
            return Box::pin(self.after_url_elicitations(opened, reply)).await;
        }
        Ok(reply)
    }

    /// Sends the request once.
    async fn send_once(&self, opened: &OpenedForward<'a>) -> Result<Reply, Fault> {
        if self.method() == "tools/call" {
            return tools_call::send(self, opened).await;
        }
        self.send(opened).await
    }

    /// Puts URL elicitations that the upstream requires to the client, and sends the request again after each
    /// round of them.
    async fn after_url_elicitations(
        &self,
        opened: &OpenedForward<'a>,
        first: Reply,
    ) -> Result<Reply, Fault> {
        let (link, call, target) = (&opened.link, opened.call(self), self.target);
        let mut reply = first;
        for _ in 0..ROUNDS {
            let elicitations = elicitations(call, &reply);
            if elicitations.is_empty() {
                return Ok(reply);
            }
            let declared = link.declared();
            // A modern upstream has no word for the end of a URL elicitation.
            let tells = declared
                .as_ref()
                .is_none_or(|declared| declared.revision.era() == Era::Legacy);
            let projection =
                RevisionProjection::of(declared.as_ref().map(|d| d.revision), call.revision);
            let shown = target.view.link(call, projection, declared);
            let shown = shown.unwrap_or_else(|| Arc::clone(&call.link));
            match shown.ask(round(&elicitations)).await {
                InputOutcome::Answered(answers) if answers.iter().all(|(_, a)| a.is_accepted()) => {
                }
                InputOutcome::Answered(_) => {
                    return Ok(declined(call, &self.source(opened), &target.upstream));
                }
                InputOutcome::Suspended(result) => return Ok(Reply::Result(result)),
                InputOutcome::CannotAsk(_) | InputOutcome::Unanswered => return Ok(reply),
            }
            let ids: Vec<String> = elicitations
                .into_iter()
                .filter_map(|elicitation| elicitation.id)
                .collect();
            // The upstream decides whether the elicitations are complete.
            if tells {
                let over = self.session.completions().all(&target.upstream, &ids);
                drop(tokio::time::timeout(HOLD, over).await);
            }
            reply = self.send_once(opened).await?;
        }
        Ok(reply)
    }
}

/// Whether the upstream requires URL elicitations (-32042) of a client that supports them.
fn is_required(call: &Call, reply: &Reply) -> bool {
    let Reply::Relayed(message) = reply else {
        return false;
    };
    call.revision.era() == Era::Modern
        && message.error_code() == Some(URL_ELICITATION_REQUIRED)
        && call.message.method().is_some_and(methods::may_ask)
        && call.link.capabilities().allows("elicitation/create", true)
}

/// The URL elicitations that a reply requires; none if it is another reply, or its links may not be opened.
fn elicitations(call: &Call, reply: &Reply) -> Vec<RequiredUrl> {
    match reply {
        Reply::Relayed(message) if is_required(call, reply) => read(message).unwrap_or_default(),
        _ => Vec::new(),
    }
}

fn read(message: &Message) -> Option<Vec<RequiredUrl>> {
    let data = message.error_member("data")?;
    if !links::are_links(data) {
        return None;
    }
    let all = json::member(data, "elicitations")?;
    let elicitation = |text: &str| {
        let url = json::string(json::member(text, "url")?)?;
        let [a, b, c, d, ..] = digest_of([url.as_bytes()]);
        let key = u32::from_be_bytes([a, b, c, d]);
        Some(RequiredUrl {
            key: format!("url-{key:08x}"),
            id: json::member(text, "elicitationId")
                .and_then(json::string)
                .map(std::borrow::Cow::into_owned),
            // Modern URL elicitations have no ids (SPEC C-82), whichever upstream required them.
            params: without_id(text).into(),
        })
    };
    let elements = json::elements(all).ok()?;
    let mut elicitations: Vec<RequiredUrl> = Vec::new();
    for elicitation in elements
        .into_iter()
        .filter_map(elicitation)
        .take(MAX_VISITS)
    {
        if !elicitations
            .iter()
            .any(|known| known.key == elicitation.key)
        {
            elicitations.push(elicitation);
        }
    }
    Some(elicitations)
}

fn without_id(elicitation: &str) -> String {
    let members = json::members(elicitation).unwrap_or_default();
    json::object(
        members
            .into_iter()
            .filter(|(name, _)| name != "elicitationId"),
    )
}

fn round(elicitations: &[RequiredUrl]) -> InputRequests {
    let entry = |elicitation: &RequiredUrl| {
        let question = InputRequest {
            method: "elicitation/create".to_owned(),
            params: Some(elicitation.params.clone()),
        };
        (elicitation.key.clone(), question)
    };
    InputRequests {
        entries: elicitations.iter().map(entry).collect(),
        limit: None,
        carry: None,
    }
}

/// The reply after the user declined to open a URL.
fn declined(call: &Call, source: &ReplySource, upstream: &str) -> Reply {
    let text =
        format!("the user did not agree to visit the page that upstream \"{upstream}\" needs");
    failure_reply(call, source, &text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::InputResponse;

    fn refusal(elicitations: &str) -> Message {
        let text = format!(
            r#"{{"jsonrpc":"2.0","id":1,"error":{{"code":-32042,"message":"m","data":{{"elicitations":{elicitations}}}}}}}"#
        );
        Message::parse(text.into(), 128).unwrap()
    }

    #[test]
    fn the_same_url_is_asked_for_once_and_under_the_same_key() {
        let one = r#"{"mode":"url","url":"https://a.example/1","elicitationId":"x","message":"m"}"#;
        let two = r#"{"mode":"url","url":"https://a.example/2","elicitationId":"y","message":"m"}"#;
        let both = read(&refusal(&format!("[{one},{two},{one}]"))).unwrap();
        let later = read(&refusal(&format!("[{two}]"))).unwrap();
        assert_eq!(both.len(), 2);
        assert_eq!(both[1].key, later[0].key);
        assert_ne!(both[0].key, both[1].key);
        assert_eq!(both[0].id.as_deref(), Some("x"));
    }

    // SPEC C-82.
    #[test]
    fn modern_client_sees_no_elicitation_id() {
        let one = r#"{"mode":"url","url":"https://a.example/1","elicitationId":"x","message":"m"}"#;
        let elicitations = read(&refusal(&format!("[{one}]"))).unwrap();
        let shown = r#"{"mode":"url","url":"https://a.example/1","message":"m"}"#;
        assert_eq!(elicitations[0].params, shown);
    }

    // SPEC C-85: only consent lets the call go on.
    #[test]
    fn only_accept_is_consent() {
        let of = |text: &'static str| {
            InputResponse::Result(Bytes::from_static(text.as_bytes())).is_accepted()
        };
        assert!(of(r#"{"action":"accept"}"#));
        assert!(!of(r#"{"action":"decline"}"#) && !of(r#"{"action":"cancel"}"#) && !of("1"));
        assert!(!InputResponse::Error(Bytes::from_static(b"{}")).is_accepted());
    }
}
