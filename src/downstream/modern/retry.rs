//! A retry: the request that continues an earlier one, answered `input_required`.
//! Spec: SPEC M-63, M-64; BRIDGING §3.1 steps 5 to 7, §3.3.

use std::sync::Arc;

use bytes::Bytes;

use super::link::{ModernClientLink, ParkedModernCalls};
use super::refusal::RequestRefusal;
use super::request_state::{RequestBinding, RequestState};
use crate::call::ResumedInput;
use crate::ownership::Ownership;
use crate::protocol::{Message, json};

/// Members of `params` that make a request a retry.
const ANSWERS: &str = "inputResponses";
const STATE: &str = "requestState";

/// The continuation that a request carries.
#[derive(Debug)]
pub(super) enum RetryContinuation {
    /// A first request.
    None,
    /// An upstream that keeps its state in ours.
    Upstream(Arc<ResumedInput>),
    /// A call that is parked here.
    Parked {
        /// The call.
        link: Arc<ModernClientLink>,
        /// The answered round.
        round: u16,
        /// Key → JSON text of the client's result.
        answers: Vec<(String, Bytes)>,
    },
}

/// Reads state and answers of a request; `request_binding` is called only if the request has a state.
///
/// # Errors
/// A state that was not sealed for this request and caller, or has expired: one refusal for all causes.
pub(super) fn read(
    parking: &ParkedModernCalls,
    request_binding: impl FnOnce() -> RequestBinding,
    message: &Message,
) -> Result<RetryContinuation, RequestRefusal> {
    let Some(state) = message.param(STATE).filter(|state| *state != "null") else {
        return Ok(RetryContinuation::None);
    };
    let request_state = json::string(state)
        .and_then(|state| {
            let (sealer, now) = (&parking.sealer, parking.clock.now());
            request_binding().open(sealer, &state, now, parking.owner)
        })
        .ok_or_else(stale)?;
    let answers = answers(message)?;
    match request_state {
        RequestState::Carried(carry) => Ok(RetryContinuation::Upstream(Arc::new(ResumedInput {
            answers,
            carry,
        }))),
        RequestState::Parked { key, round, .. } => Ok(RetryContinuation::Parked {
            link: parking.find(&key).ok_or_else(stale)?,
            round,
            answers,
        }),
    }
}

/// The replica that keeps the parked call which a request goes on with, as its state says.
pub(super) fn owner_of(
    parking: &ParkedModernCalls,
    request_binding: impl FnOnce() -> RequestBinding,
    message: &Message,
) -> Option<Ownership> {
    let state = message.param(STATE).and_then(json::string)?;
    request_binding().owner_of(&parking.sealer, &state, parking.clock.now())
}

/// The request without the members that were only for the gateway; `None` without a state. Answers without a state are
/// for a stateless upstream.
pub(super) fn without_answers(message: &Message) -> Option<Bytes> {
    message.param(STATE)?;
    let edit = message.edit().remove_param(ANSWERS).remove_param(STATE);
    Some(edit.finish())
}

/// The refusal of every state that cannot be opened.
pub(super) fn stale() -> RequestRefusal {
    RequestRefusal::params(
        "requestState has expired or does not belong to this request; nothing is pending, send the \
         request again without it",
    )
}

fn answers(message: &Message) -> Result<Vec<(String, Bytes)>, RequestRefusal> {
    let Some(text) = message.param(ANSWERS).filter(|text| *text != "null") else {
        return Ok(Vec::new());
    };
    let members = json::members(text)
        .map_err(|_| RequestRefusal::params("params.inputResponses must be an object"))?;
    let owned = |(key, value): (std::borrow::Cow<'_, str>, &str)| {
        (key.into_owned(), Bytes::copy_from_slice(value.as_bytes()))
    };
    Ok(members.into_iter().map(owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_made_it_a_retry_is_left_out() {
        let text = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t","inputResponses":{"a":{}},"requestState":"x"}}"#;
        let message = Message::parse(text.into(), 128).unwrap();
        assert_eq!(
            answers(&message).unwrap(),
            [("a".to_owned(), Bytes::from_static(b"{}"))]
        );
        let plain = without_answers(&message).unwrap();
        assert_eq!(
            plain,
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t"}}"#
        );
        assert_eq!(without_answers(&Message::parse(plain, 128).unwrap()), None);
    }
}
