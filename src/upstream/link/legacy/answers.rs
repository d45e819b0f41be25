//! Answers to questions of an upstream. Spec: BRIDGING §2.3, §3.1, §6.

use bytes::Bytes;

use crate::call::Reply;
use crate::protocol::rpc;

/// The answer when no client can be asked, for the reason `why`: an elicitation is cancelled, any other question is not
/// supported (BRIDGING §2.3, §6).
pub(super) fn out_of_reach(method: &str, why: &str) -> Result<Bytes, Bytes> {
    match method {
        "elicitation/create" => unanswered(method),
        _ => Err(error(-32601, &format!("the client cannot be asked: {why}"))),
    }
}

/// The answer when the asking call is over.
pub(super) fn its_call_is_over() -> Result<Bytes, Bytes> {
    Err(error(-32603, "the call is over"))
}

/// The answer when the client does not reply: an elicitation is cancelled, any other question has an error form
/// (BRIDGING §3.1, 10).
pub(super) fn unanswered(method: &str) -> Result<Bytes, Bytes> {
    match method {
        "elicitation/create" => Ok(Bytes::from_static(br#"{"action":"cancel"}"#)),
        "sampling/createMessage" => Err(error(-1, "the user did not answer")),
        _ => Err(error(-32603, "the client did not answer")),
    }
}

/// JSON text of the error for a client that does not take such questions.
pub(super) fn refusal(missing: &str) -> Bytes {
    error(-32601, &format!("the client does not support {missing}"))
}

/// JSON text of an error.
pub(super) fn error(code: i64, message: &str) -> Bytes {
    rpc::error(code, message, None).into()
}

/// The response to the question `id` (JSON text): a result, or an error.
pub(super) fn response(id: &str, answer: &Result<Bytes, Bytes>) -> Bytes {
    let reply = answer.clone().map_or_else(Reply::Error, Reply::Result);
    reply.into_response(id)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::protocol::json;

    fn code(answer: &Result<Bytes, Bytes>) -> Option<i64> {
        let error = std::str::from_utf8(answer.as_ref().err()?).unwrap();
        json::member(error, "code")?.parse().ok()
    }

    // BRIDGING §2.3, §3.1, 10: a client that was not asked has not refused.
    #[rstest]
    #[case("elicitation/create", None, None)]
    #[case("sampling/createMessage", Some(-1), Some(-32601))]
    #[case("roots/list", Some(-32603), Some(-32601))]
    fn nobody_there_is_told_from_nobody_answering(
        #[case] method: &str,
        #[case] silent: Option<i64>,
        #[case] absent: Option<i64>,
    ) {
        assert_eq!(code(&unanswered(method)), silent);
        assert_eq!(code(&out_of_reach(method, "it")), absent);
    }
}
