//! Calls that need answers: the client is asked the questions of an `input_required` result, and the call is sent again
//! with the answers. Spec: SPEC M-40, M-60…M-66; BRIDGING §3.2, §3.3.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::envelope::RetryInputs;
use super::question::{self, QuestionEntry};
use super::url_elicitations::CallUrlElicitations;
use super::{ModernServerLink, OutgoingCall};
use crate::call::{CarriedState, InputOutcome, InputRequests, Notice, Reply, ResumedInput};
use crate::digest::digest_of;
use crate::protocol::input_request_rules;
use crate::protocol::json;
use crate::protocol::{Era, Message, methods};
use crate::sync::backoff::Backoff;
use crate::translate::input_responses::input_responses;
use crate::translate::task::state::UpstreamTask;
use crate::upstream::error::LinkError;

/// How often one call is sent again, with answers or only with its state.
const MAX_ROUNDS: u32 = 10;
/// Pause before a call is sent again only with its state: the first, and the longest.
const PACE_FIRST: Duration = Duration::from_millis(50);
const PACE_LONGEST: Duration = Duration::from_millis(250);

/// The kind of a result.
#[derive(Debug, PartialEq, Eq)]
enum ResultKind {
    Complete,
    InputRequired,
}

/// The outcome of one round of questions.
enum RoundOutcome {
    /// Send the call again with these inputs.
    Again(RetryInputs),
    /// The call has its reply.
    Over(Reply),
}

impl ModernServerLink {
    /// Sends a call repeatedly until its result is complete.
    pub(super) async fn rounds(&self, outgoing: &OutgoingCall<'_>) -> Result<Reply, LinkError> {
        let mut inputs = match &outgoing.call.resumption {
            Some(resumption) if resumption.carry.upstream != self.settings.name => {
                return Ok(stale());
            }
            Some(resumption) => resumed(resumption),
            None => unprompted(outgoing),
        };
        let given = inputs.responses.as_deref();
        if given.is_some_and(|given| !input_request_rules::name_only_files(given)) {
            return Ok(no_files());
        }
        let mut pace = Backoff::new(PACE_FIRST, PACE_LONGEST);
        let mut url_elicitations = CallUrlElicitations::default();
        for round in 0..=MAX_ROUNDS {
            let reply = self.send(outgoing, &inputs).await?;
            let extended = || {
                self.connection
                    .shares_extension(outgoing.call.link.capabilities())
            };
            match kind(&reply, outgoing.method(), extended)? {
                ResultKind::Complete => {
                    tell(outgoing, url_elicitations.over(&[]));
                    return self.completed(outgoing, reply);
                }
                ResultKind::InputRequired => {}
            }
            if !methods::may_ask(outgoing.method()) {
                let what = "only calls, prompts and reads may need answers (SPEC M-60)";
                return Err(LinkError::Invalid(what.to_owned()));
            }
            let (entries, state) = question::read(&reply).map_err(LinkError::Invalid)?;
            if !entries.is_empty() {
                tell(outgoing, url_elicitations.over(&entries));
                if let Some(reply) = url_elicitations.unfinished(&entries) {
                    return Ok(reply);
                }
            }
            // Checked before the client is asked: answers after the last round could not be sent.
            if round == MAX_ROUNDS {
                break;
            }
            if entries.is_empty() {
                tokio::time::sleep(pace.next_pause()).await;
                inputs = RetryInputs {
                    responses: None,
                    state,
                };
                continue;
            }
            match Box::pin(self.ask(outgoing, entries, state, &mut url_elicitations)).await? {
                RoundOutcome::Again(next) => inputs = next,
                RoundOutcome::Over(reply) => return Ok(reply),
            }
        }
        Err(LinkError::Unanswered("it keeps asking for more".to_owned()))
    }

    /// Asks the client the questions of one round.
    async fn ask(
        &self,
        outgoing: &OutgoingCall<'_>,
        entries: Vec<QuestionEntry>,
        state: Option<String>,
        url_elicitations: &mut CallUrlElicitations,
    ) -> Result<RoundOutcome, LinkError> {
        let link = &outgoing.call.link;
        // All questions of the round are checked before the client is asked any (BRIDGING §3.2).
        if let Some(entry) = entries.iter().find(|e| !e.is_allowed(link.capabilities())) {
            let why = format!(
                "it asks for {}, which this client did not offer",
                entry.what()
            );
            return Err(LinkError::Unanswered(why));
        }
        if let Some(flaw) = entries.iter().find_map(QuestionEntry::flaw) {
            return Err(LinkError::Unanswered(format!("of what it asks, {flaw}")));
        }
        let revision = outgoing.call.revision;
        let questions: Vec<_> = entries
            .iter()
            .map(|entry| {
                let question = link.capabilities().fitted(entry.question_for(revision));
                (entry.key.clone(), question)
            })
            .collect();
        let round = InputRequests {
            entries: questions.clone(),
            limit: Some(self.settings.upstream.ask_timeout),
            carry: Some(CarriedState {
                upstream: Arc::clone(&self.settings.name),
                state: state.clone().map(Bytes::from),
                digest: digest(outgoing.request),
            }),
        };
        let _paused = outgoing.activity.pause();
        let answers = match link.ask(round).await {
            InputOutcome::Suspended(result) => {
                return Ok(RoundOutcome::Over(Reply::Result(result)));
            }
            InputOutcome::CannotAsk(missing) => return Err(LinkError::Unanswered(missing)),
            InputOutcome::Answered(answers) => answers,
            InputOutcome::Unanswered => Vec::new(),
        };
        url_elicitations.note(&questions, &answers);
        match input_responses(entries.iter().map(QuestionEntry::put), &answers) {
            Ok(responses) => Ok(RoundOutcome::Again(RetryInputs {
                responses: Some(responses),
                state,
            })),
            Err(why) => Err(LinkError::Unanswered(why)),
        }
    }

    /// A complete reply; tools with invalid annotations are removed from a list of tools.
    fn completed(&self, outgoing: &OutgoingCall<'_>, reply: Message) -> Result<Reply, LinkError> {
        if outgoing.method() != "tools/list" {
            return Ok(Reply::Relayed(reply));
        }
        let Some(tools) = reply.result_member("tools") else {
            return Ok(Reply::Relayed(reply));
        };
        let known = outgoing.tools(self);
        let Some(kept) = known.learn(&self.settings.name, tools) else {
            return Ok(Reply::Relayed(reply));
        };
        let bytes = reply.edit().result_member("tools", kept).finish();
        let reply = Message::parse(bytes, json::MAX_DEPTH);
        reply
            .map(Reply::Relayed)
            .map_err(|error| LinkError::Invalid(error.to_string()))
    }
}

fn tell(outgoing: &OutgoingCall<'_>, notices: Vec<Notice>) {
    for notice in notices {
        outgoing.call.link.notify(notice);
    }
}

/// The kind of a reply. Spec: SPEC M-40: absent means complete, unknown is invalid.
fn kind(
    reply: &Message,
    method: &str,
    extended: impl FnOnce() -> bool,
) -> Result<ResultKind, LinkError> {
    match reply.result_member("resultType") {
        // Some serialisers write null for what is absent.
        None | Some("null" | "\"complete\"") => Ok(ResultKind::Complete),
        Some("\"input_required\"") => Ok(ResultKind::InputRequired),
        // An unrequested task is run to completion for its caller (BRIDGING §3.8). Spec: SPEC K-10, K-19
        Some("\"task\"") if matches!(method, "tools/call" | "tasks/get") => {
            if is_task(reply) {
                return Ok(ResultKind::Complete);
            }
            let what = "a task needs an id and a status that exists (SPEC K-11)";
            Err(LinkError::Invalid(what.to_owned()))
        }
        // Extensions may define further result types (MCP 2026-07-28, basic, "ResultType").
        Some(_) if extended() => Ok(ResultKind::Complete),
        Some(other) => {
            let other: String = other.chars().take(64).collect();
            Err(LinkError::Invalid(format!("unknown resultType {other}")))
        }
    }
}

fn is_task(reply: &Message) -> bool {
    reply.result().and_then(UpstreamTask::read).is_some()
}

/// Answers of a modern client that belong to no question of this call, or to a question of a task: passed on, as only
/// the upstream can judge them.
fn unprompted(outgoing: &OutgoingCall<'_>) -> RetryInputs {
    let of_call = || outgoing.call.message.param("inputResponses");
    let given = match outgoing.method() {
        // The client or the relay runs the task: the answers are the content of this request.
        "tasks/update" => outgoing.request.param("inputResponses").or_else(of_call),
        method if outgoing.call.revision.era() == Era::Modern && methods::may_ask(method) => {
            of_call()
        }
        _ => None,
    };
    RetryInputs {
        responses: given
            .filter(|given| given.starts_with('{'))
            .map(str::to_owned),
        state: None,
    }
}

/// Inputs of a client's retry, for the first request. State and answers are the upstream's own.
fn resumed(resumption: &ResumedInput) -> RetryInputs {
    let text = |bytes: &Bytes| String::from_utf8_lossy(bytes).into_owned();
    let answers = &resumption.answers;
    let members = answers.iter().map(|(key, answer)| (key, text(answer)));
    RetryInputs {
        responses: (!answers.is_empty()).then(|| json::object(members)),
        state: resumption.carry.state.as_ref().map(text),
    }
}

/// Digest of the method and its subject, each preceded by its length (DESIGN §2).
fn digest(request: &Message) -> [u8; 32] {
    let parts = ["name", "uri", "arguments"].map(|name| request.param(name).unwrap_or_default());
    digest_of(std::iter::once(request.method().unwrap_or_default()).chain(parts))
}

/// The error for roots that are not `file:` URIs. Spec: SPEC C-71
fn no_files() -> Reply {
    let text = r#"{"code":-32602,"message":"params.inputResponses: roots must be file: URIs"}"#;
    Reply::Error(Bytes::from_static(text.as_bytes()))
}

fn stale() -> Reply {
    let text = r#"{"code":-32602,"message":"the interaction is not known here, call again"}"#;
    Reply::Error(Bytes::from_static(text.as_bytes()))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    // Serialisers write null for what is absent. SPEC M-40
    #[rstest]
    #[case(r"{}", true)]
    #[case(r#"{"resultType":null}"#, true)]
    #[case(r#"{"resultType":"complete"}"#, true)]
    #[case(r#"{"resultType":"null"}"#, false)]
    #[case(r#"{"resultType":7}"#, false)]
    fn result_without_a_type_is_complete(#[case] result: &str, #[case] is: bool) {
        let reply = format!(r#"{{"jsonrpc":"2.0","id":1,"result":{result}}}"#);
        let reply = Message::parse(reply.into(), json::MAX_DEPTH).unwrap();
        let kind = kind(&reply, "tools/call", || false);
        assert_eq!(matches!(kind, Ok(ResultKind::Complete)), is, "{kind:?}");
    }

    // A task that no client could follow is invalid. SPEC M-40, K-10, K-11
    #[rstest]
    #[case("tools/call", r#"{"taskId":"a","status":"working"}"#, true)]
    #[case("tasks/get", r#"{"taskId":"a","status":"completed"}"#, true)]
    #[case("tools/call", r#"{"status":"working"}"#, false)]
    #[case("tools/call", r#"{"taskId":7,"status":"working"}"#, false)]
    #[case("tools/call", r#"{"taskId":"a"}"#, false)]
    #[case("tools/call", r#"{"taskId":"a","status":"dancing"}"#, false)]
    #[case("prompts/get", r#"{"taskId":"a","status":"working"}"#, false)]
    fn a_task_has_an_id_and_a_status(#[case] method: &str, #[case] task: &str, #[case] is: bool) {
        let result = task.replacen('{', r#"{"resultType":"task","#, 1);
        let reply = format!(r#"{{"jsonrpc":"2.0","id":1,"result":{result}}}"#);
        let reply = Message::parse(reply.into(), json::MAX_DEPTH).unwrap();
        let kind = kind(&reply, method, || false);
        assert_eq!(matches!(kind, Ok(ResultKind::Complete)), is, "{kind:?}");
    }
}
