//! `subscriptions/listen` streams, and the notices that each stream gets.

use std::collections::BTreeMap;
use std::sync::Mutex;

use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::outlet::Outlet;
use crate::rpc::{notification, result_reply};
use crate::world::{World, locked};

const SUBSCRIPTION_ID: &str = "io.modelcontextprotocol/subscriptionId";

/// The open listens, and when those are let in that have to wait.
#[derive(Debug, Default)]
pub(crate) struct Listens(Mutex<Inner>, CancellationToken);

#[derive(Debug, Default)]
struct Inner {
    next: u64,
    open: BTreeMap<u64, Listen>,
}

#[derive(Debug)]
struct Listen {
    id: Value,
    filter: Value,
    outlet: Outlet,
    end: CancellationToken,
}

impl Listens {
    /// Sends a notification to the `subscriptions/listen` streams whose filter asks for its method.
    pub(crate) fn announce(&self, message: &str) {
        let message: Value = serde_json::from_str(message).unwrap_or_default();
        let method = message["method"].as_str().unwrap_or_default();
        for listen in locked(&self.0).open.values() {
            let flag = match method {
                "notifications/tools/list_changed" => "toolsListChanged",
                "notifications/prompts/list_changed" => "promptsListChanged",
                "notifications/resources/list_changed" => "resourcesListChanged",
                _ => "",
            };
            let uris = listen.filter["resourceSubscriptions"].as_array();
            let subscribed = uris.is_some_and(|uris| uris.contains(&message["params"]["uri"]));
            if listen.filter[flag] == true || subscribed {
                let mut message = message.clone();
                message["params"]["_meta"][SUBSCRIPTION_ID] = listen.id.clone();
                listen.outlet.message(message.to_string());
            }
        }
    }

    /// Admits the waiting requests.
    pub(super) fn admit(&self) {
        self.1.cancel();
    }

    /// Waits to be let in.
    pub(super) async fn admitted(&self) {
        self.1.cancelled().await;
    }

    /// Ends all streams with their result.
    pub(crate) fn end(&self) {
        for listen in locked(&self.0).open.values() {
            listen.end.cancel();
        }
    }
}

/// Forgets a listen whose stream is gone.
struct Open<'a>(&'a Listens, u64);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        locked(&self.0.0).open.remove(&self.1);
    }
}

/// Lasts until the client closes the stream or a tool ends it.
pub(super) async fn serve(
    world: &World,
    id: &str,
    params: &Value,
    outlet: &Outlet,
) -> Option<String> {
    let listens = &world.modern.listens;
    if world.options.hold_listens {
        listens.admitted().await;
    }
    let id_value: Value = serde_json::from_str(id).unwrap_or_default();
    let mut filter = params["notifications"].clone();
    if let Some(uris) = filter["resourceSubscriptions"].as_array_mut() {
        uris.retain(|uri| uri.as_str().is_some_and(|uri| uri.starts_with("stub://")));
    }
    let end = CancellationToken::new();
    let number = {
        let mut inner = locked(&listens.0);
        inner.next += 1;
        let (number, listen) = (
            inner.next,
            Listen {
                id: id_value.clone(),
                filter: filter.clone(),
                outlet: outlet.clone(),
                end: end.clone(),
            },
        );
        inner.open.insert(number, listen);
        number
    };
    let _open = Open(listens, number);
    let meta = json!({SUBSCRIPTION_ID: id_value});
    let ack = json!({"notifications": filter, "_meta": meta});
    outlet.message(notification(
        "notifications/subscriptions/acknowledged",
        &ack,
    ));
    end.cancelled().await;
    Some(result_reply(
        id,
        &json!({"resultType": "complete", "_meta": meta}).to_string(),
    ))
}
