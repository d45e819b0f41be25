//! The modern era on a connection that carries everything: a pipe or a socket.

#![expect(
    clippy::indexing_slicing,
    reason = "a JSON value that has no such member gives null"
)]

use std::pin::Pin;
use std::sync::Arc;

use serde_json::Value;

use super::{Scripted, check, is_modern, scripted, serve};
use crate::options::Era;
use crate::outlet::Outlet;
use crate::stream::Event;
use crate::world::World;

/// Future that answers one request.
type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Handles a message of the modern era, or a scripted probe; `false` for other messages. Requests are keyed by `scope`,
/// the connection, and their id.
pub(crate) fn piped(
    world: &Arc<World>,
    scope: &str,
    outlet: &Outlet,
    text: &str,
    spawn: impl FnOnce(Work),
) -> bool {
    if world.options.era == Era::Legacy && world.options.probe.is_none() {
        return false;
    }
    let message: Value = serde_json::from_str(text).unwrap_or_default();
    match scripted(world, &message) {
        Some(Scripted::Answer(_, body)) => {
            outlet.message(body);
            return true;
        }
        Some(Scripted::Silence) => return true,
        Some(Scripted::Exit) => std::process::exit(4),
        Some(Scripted::Cut) => {
            outlet.event(Event::Cut);
            return true;
        }
        None => {}
    }
    let key = |id: &Value| format!("{scope}{id}");
    if let Some(refusal) = super::of_the_other_era(world, &message) {
        outlet.message(refusal);
        return true;
    }
    if message["method"] == "notifications/cancelled" {
        let params = &message["params"];
        let known = world.modern.cancel(&key(&params["requestId"]));
        if known || world.options.era == Era::Modern {
            world.record_cancel(params, known);
        }
        return known;
    }
    if !is_modern(&world.options, &message) {
        return false;
    }
    if message.get("id").is_none() || message.get("method").is_none() {
        return true;
    }
    if let Err((_, body)) = check(&message, None) {
        outlet.message(body);
    } else {
        let (world, key) = (Arc::clone(world), key(&message["id"]));
        spawn(Box::pin(serve(
            world,
            key,
            message,
            Vec::new(),
            outlet.clone(),
        )));
    }
    true
}
