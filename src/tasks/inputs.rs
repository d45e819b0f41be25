//! Questions of a task of the extension, put to the client of the call that waits for the task.
//! Spec: SPEC K-14, M-62; BRIDGING §3.2, §3.8.

use std::collections::HashSet;
use std::time::Duration;

use bytes::Bytes;

use crate::call::{Capabilities, DownstreamLink, InputOutcome, InputRequest, InputRequests};
use crate::outbound::EndpointView;
use crate::protocol::input_request_rules;
use crate::protocol::json::{self, ObjectWriter};
use crate::translate::input_responses::{PutQuestion, input_responses};
use crate::translate::project::RevisionProjection;
use crate::translate::task::state::UpstreamTask;

/// Questions that one task may put.
const MAX_QUESTIONS: usize = 64;

/// The keys of the questions that were put. Each question is put once, even if the task shows it again.
#[derive(Debug, Default)]
pub(super) struct AskedInputs(HashSet<String>);

impl AskedInputs {
    /// Forgets questions that were withdrawn: they are put again if the task shows them again.
    pub(super) fn withdraw(&mut self, keys: &[String]) {
        self.0.retain(|known| !keys.contains(known));
    }

    /// The questions that were not put yet.
    ///
    /// # Errors
    /// A sentence about why they cannot be answered.
    pub(super) fn fresh(
        &mut self,
        state: &UpstreamTask<'_>,
        link: &dyn DownstreamLink,
    ) -> Result<Vec<(String, InputRequest)>, String> {
        let requests = state.member("inputRequests").unwrap_or("{}");
        let members = json::members(requests).map_err(|error| format!("inputRequests: {error}"))?;
        let mut fresh = Vec::new();
        for (key, text) in members {
            if self.0.contains(&*key) {
                continue;
            }
            if self.0.len() >= MAX_QUESTIONS {
                return Err("it keeps asking for more".to_owned());
            }
            let question = question(text).ok_or("a question without a method")?;
            let capabilities = link.capabilities();
            if let Some(missing) = capabilities.missing(&question.method, question.params_text()) {
                let missing: String = missing.chars().take(64).collect();
                return Err(format!(
                    "it asks for {missing}, which this client did not offer"
                ));
            }
            if let Some(flaw) = input_request_rules::flaw(&question.method, question.params_text())
            {
                return Err(format!("of what it asks, {flaw}"));
            }
            let question = capabilities.fitted(question);
            self.0.insert(key.clone().into_owned());
            fresh.push((key.into_owned(), question));
        }
        Ok(fresh)
    }
}

/// Asks the client, with the timeout `limit`; returns the JSON text of `inputResponses`.
///
/// # Errors
/// A sentence about why there are no answers.
pub(super) async fn ask(
    link: &dyn DownstreamLink,
    entries: Vec<(String, InputRequest)>,
    limit: Duration,
) -> Result<String, String> {
    let methods: Vec<(String, String)> = entries
        .iter()
        .map(|(key, question)| (key.clone(), question.method.clone()))
        .collect();
    let round = InputRequests {
        entries,
        limit: Some(limit),
        carry: None,
    };
    let answers = match link.ask(round).await {
        InputOutcome::Answered(answers) => answers,
        InputOutcome::CannotAsk(missing) => return Err(missing),
        InputOutcome::Unanswered => return Err("the client did not answer".to_owned()),
        InputOutcome::Suspended(_) => {
            return Err("the client cannot be asked in mid-call".to_owned());
        }
    };
    let asked = methods.iter().map(|(key, method)| PutQuestion {
        key,
        method,
        what: method.clone(),
    });
    input_responses(asked, &answers)
}

/// The open questions of a task (JSON text of `inputRequests`) as a client with these capabilities is asked them, where
/// that differs: a merged endpoint names the upstream that asks and shares no context of other servers. `projection` is
/// between upstream and client. Spec: BRIDGING §4.3; SPEC C-70, C-86.
pub(super) fn shown(
    requests: &str,
    (view, projection): (&EndpointView, RevisionProjection),
    client: &Capabilities,
) -> Option<String> {
    let mut is_changed = false;
    let mut out = ObjectWriter::default();
    for (key, request) in json::members(requests).ok()? {
        let changed = changed_question(request, (view, projection), client);
        is_changed |= changed.is_some();
        out.member(&key, changed.as_deref().unwrap_or(request));
    }
    is_changed.then(|| out.finish())
}

/// One of them; `None` where it stays.
fn changed_question(
    request: &str,
    (view, projection): (&EndpointView, RevisionProjection),
    client: &Capabilities,
) -> Option<String> {
    let asked = question(request)?;
    let before = asked.params.clone();
    let shown = view.question(projection, client.fitted(asked)).ok()?;
    if shown.params == before {
        return None;
    }
    let members = json::members(request).ok()?;
    let members = members.into_iter().filter_map(|(name, value)| {
        if name != "params" {
            return Some((name, value));
        }
        shown.params.is_some().then(|| (name, shown.params_text()))
    });
    Some(json::object(members))
}

fn question(text: &str) -> Option<InputRequest> {
    let method = json::string(json::member(text, "method")?)?.into_owned();
    let params = json::member(text, "params").filter(|text| text.starts_with('{'));
    Some(InputRequest {
        method,
        params: params.map(|text| Bytes::copy_from_slice(text.as_bytes())),
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rstest::rstest;

    use super::*;
    use crate::call::ClientCapabilities;
    use crate::outbound::InternalCall;
    use crate::protocol::Revision;
    use crate::translate::naming::NamePrefix;

    fn fresh(inputs: &mut AskedInputs, offered: &'static str) -> Result<Vec<String>, String> {
        let task = r#"{"taskId":"a","status":"input_required","inputRequests":{"q":{"method":"elicitation/create","params":{"message":"?"}}}}"#;
        let offered = ClientCapabilities::read(Bytes::from_static(offered.as_bytes()));
        let link = InternalCall::declaring(offered);
        let found = inputs.fresh(&UpstreamTask::read(task).unwrap(), &*link)?;
        Ok(found.into_iter().map(|(key, _)| key).collect())
    }

    // SPEC K-14.
    #[test]
    fn a_question_is_put_once_however_often_it_is_shown() {
        let mut inputs = AskedInputs::default();
        let offered = r#"{"elicitation":{}}"#;
        assert_eq!(fresh(&mut inputs, offered).unwrap(), ["q"]);
        assert!(fresh(&mut inputs, offered).unwrap().is_empty());
    }

    // SPEC M-62.
    #[test]
    fn what_the_client_did_not_offer_is_not_asked() {
        let refused = fresh(&mut AskedInputs::default(), "{}").unwrap_err();
        assert!(refused.contains("elicitation/create"), "{refused}");
    }

    // SPEC C-81.
    #[test]
    fn a_form_of_several_levels_is_not_asked() {
        let form = r#"{"requestedSchema":{"properties":{"a":{"type":"object"}}}}"#;
        let task = format!(
            r#"{{"taskId":"a","status":"input_required","inputRequests":{{"q":{{"method":"elicitation/create","params":{form}}}}}}}"#
        );
        let offered = ClientCapabilities::read(Bytes::from_static(br#"{"elicitation":{}}"#));
        let link = InternalCall::declaring(offered);
        let refused = AskedInputs::default().fresh(&UpstreamTask::read(&task).unwrap(), &*link);
        assert!(refused.unwrap_err().contains("flat"));
    }

    fn of(request: &str, view: &EndpointView, declares: &'static str) -> Option<String> {
        let client = ClientCapabilities::read(Bytes::from_static(declares.as_bytes()));
        let revision = Revision::V2026_07_28;
        let projection = RevisionProjection::new(revision, revision);
        let requests = format!(r#"{{"k":{request}}}"#);
        let shown = shown(&requests, (view, projection), &client)?;
        json::member(&shown, "k").map(str::to_owned)
    }

    // BRIDGING §4.3, SPEC C-86: what is not named stays.
    #[rstest]
    #[case(
        r#"{"method":"elicitation/create","params":{"message":"m","x":1},"y":2}"#,
        r#"{"method":"elicitation/create","params":{"message":"[up] m","x":1},"y":2}"#
    )]
    #[case(
        r#"{"method":"sampling/createMessage","params":{"includeContext":"allServers"}}"#,
        r#"{"method":"sampling/createMessage","params":{"includeContext":"none"}}"#
    )]
    fn merged_endpoint_says_who_asks_and_shares_no_context(
        #[case] asked: &str,
        #[case] expected: &str,
    ) {
        let merged = EndpointView::Merged(Arc::new(NamePrefix::new("up".into())));
        let all = r#"{"elicitation":{},"sampling":{"context":{}}}"#;
        assert_eq!(of(asked, &merged, all).as_deref(), Some(expected));
        assert_eq!(of(asked, &EndpointView::Pure, all), None);
    }

    // SPEC C-70.
    #[test]
    fn client_that_offers_no_context_is_asked_for_none() {
        let asked =
            r#"{"method":"sampling/createMessage","params":{"includeContext":"thisServer"}}"#;
        let shown = of(asked, &EndpointView::Pure, r#"{"sampling":{}}"#).unwrap();
        assert_eq!(shown, asked.replace("thisServer", "none"));
    }
}
