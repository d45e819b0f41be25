//! A tool as another revision lists it. Spec: BRIDGING §3.9.

use std::borrow::Cow;

use super::Projection;
use super::object::{Fate, object};
use super::schema;
use crate::protocol::json::JsonError;

/// One item of a list of tools.
pub(super) fn tool(projection: Projection, item: &str) -> Result<Cow<'_, str>, JsonError> {
    let to = projection.to;
    object(item, |name, value| {
        Ok(match name {
            // How a tool may be run as a task; of one revision only (SPEC K-15).
            "execution" if !to.has_tasks_capability() => Fate::Drop,
            "outputSchema" if !to.has_structured_content() => Fate::Drop,
            "outputSchema" if projection.is_down() && schema::needs_wrapping(value) => {
                Fate::Put(schema::wrapped_schema(value)?.into())
            }
            _ => Fate::Keep,
        })
    })
}
