//! `completion/complete`: at most a hundred values reach a client. Spec: SPEC C-30.

use crate::call::Reply;
use crate::outbound::RelayFailure;
use crate::protocol::{Message, json};
use crate::relay::forward::Forward;

/// Values of one completion. Spec: MCP 2025-11-25, server/utilities/completion
const MAX_VALUES: usize = 100;

/// # Errors
/// The upstream did not answer.
pub(super) async fn handle(forward: &Forward<'_>) -> Result<Reply, RelayFailure> {
    let opened = forward.open(forward.audit()).await?;
    let reply = forward.exchange(&opened).await;
    forward.respond(opened, reply.map(bounded))
}

/// The reply to `completion/complete` with no more values than clients have to take.
fn bounded(reply: Reply) -> Reply {
    let Some(result) = reply.result().and_then(cut) else {
        return reply;
    };
    match reply {
        Reply::Relayed(message) => {
            let bytes = message.edit().result(result).finish();
            match Message::parse(bytes, json::MAX_DEPTH) {
                Ok(cut) => Reply::Relayed(cut),
                // It was read before.
                Err(_) => Reply::Relayed(message),
            }
        }
        _ => Reply::Result(result.into()),
    }
}

/// A result without the values beyond the bound; none where it has no more.
fn cut(result: &str) -> Option<String> {
    let completion = json::member(result, "completion")?;
    let values = json::elements(json::member(completion, "values")?).ok()?;
    if values.len() <= MAX_VALUES {
        return None;
    }
    let values = json::array(values.into_iter().take(MAX_VALUES));
    let mut members = json::members(completion).ok()?;
    members.retain(|(name, _)| name != "hasMore");
    members.push(("hasMore".into(), "true"));
    let completion = json::object_replacing(members, "values", &values);
    let members = json::members(result).ok()?;
    Some(json::object_replacing(members, "completion", &completion))
}

#[cfg(test)]
mod tests {
    use super::*;

    // SPEC C-30
    #[test]
    fn a_hundred_values_are_kept_and_more_is_said() {
        let values = |count: usize| json::array((0..count).map(|n| format!("\"v{n}\"")));
        let result = |values: &str, rest: &str| {
            format!(r#"{{"completion":{{"values":{values}{rest}}},"_meta":{{"x":1}}}}"#)
        };
        let many = result(&values(150), r#","total":150,"hasMore":false"#);
        let few = result(&values(100), r#","total":150,"hasMore":true"#);
        assert_eq!(cut(&many), Some(few.clone()));
        assert_eq!(cut(&few), None);
        assert_eq!(cut(r#"{"content":[]}"#), None);
    }
}
