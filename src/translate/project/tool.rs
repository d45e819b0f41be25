//! A tool as another revision lists it. Spec: BRIDGING §3.9.

use std::borrow::Cow;

use super::RevisionProjection;
use super::object::{MemberFate, object};
use super::schema;
use crate::protocol::json::{self, JsonError};
use crate::protocol::param_headers::{ParamHeaders, may_annotate};

/// How a tool is shown that may be called as a task and need not be.
const OPTIONAL: &str = r#"{"taskSupport":"optional"}"#;

/// One item of a list of tools.
pub(super) fn tool(projection: RevisionProjection, item: &str) -> Result<Cow<'_, str>, JsonError> {
    let to = projection.to;
    let shown = object(item, |name, value| {
        Ok(match name {
            // `execution` is defined only for revisions with tasks (BRIDGING §3.8). `required` becomes
            // `optional`: the gateway runs the task for plain calls, and some clients skip required ones.
            "execution" if projection.is_identity() && to.has_tasks_capability() => {
                match json::member(value, "taskSupport") {
                    Some("\"required\"") => MemberFate::Put(OPTIONAL.into()),
                    _ => MemberFate::Keep,
                }
            }
            "execution" => MemberFate::Drop,
            "outputSchema" if !to.has_structured_content() => MemberFate::Drop,
            "outputSchema" if projection.is_down() && schema::needs_wrapping(value) => {
                MemberFate::Put(schema::wrapped_schema(value)?.into())
            }
            _ => MemberFate::Keep,
        })
    })?;
    if !(projection.hosts_tasks && to.has_tasks_capability() && shown.starts_with('{')) {
        return Ok(shown);
    }
    let members = json::members(&shown)?;
    let members = members.iter().map(|(name, value)| (&**name, *value));
    Ok(json::object(members.chain([("execution", OPTIONAL)])).into())
}

/// Whether a client of the other revision would have to leave the tool out: the annotations that
/// ask for headers mean nothing to a legacy upstream, and are invalid (SPEC M-31).
pub(super) fn is_left_out(projection: RevisionProjection, item: &str) -> bool {
    let schema = || json::member(item, "inputSchema");
    projection.is_up()
        && may_annotate(item)
        && schema().is_some_and(|schema| ParamHeaders::read(schema).is_err())
}
