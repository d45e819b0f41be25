//! Tools that change or show the state of the session, and announce the change.

use serde_json::json;

use super::Call;
use crate::rpc::{Outcome, notification};

pub(super) fn run(call: &Call) -> Outcome {
    match call.name.as_str() {
        "change_tools" => change(call, "tools"),
        "change_prompts" => change(call, "prompts"),
        "change_resources" => change(call, "resources"),
        "touch_resource" => touch(call),
        "log" => log(call),
        "slow_list" => {
            let delay = call.millis("ms");
            call.session.with(|inner| inner.list_delay = delay);
            Outcome::text("slow from now on")
        }
        "state_set" => {
            let pair = (call.text("key"), call.text("value"));
            let (Some(key), Some(value)) = pair else {
                return Outcome::Error(-32602, "key and value are needed".to_owned());
            };
            call.session
                .with(|inner| inner.values.insert(key.to_owned(), value.to_owned()));
            Outcome::text("set")
        }
        "state_get" => {
            let key = call.text("key").unwrap_or_default();
            let value = call.session.with(|inner| inner.values.get(key).cloned());
            Outcome::text(value.as_deref().unwrap_or("(unset)"))
        }
        _ => Outcome::text("extra"),
    }
}

fn change(call: &Call, list: &'static str) -> Outcome {
    let shown = call.session.with(|inner| {
        let added = inner.changed.insert(list);
        if !added {
            inner.changed.remove(list);
        }
        added
    });
    let method = format!("notifications/{list}/list_changed");
    call.session
        .general
        .message(notification(&method, &json!({})));
    Outcome::text(if shown { "added" } else { "removed" })
}

/// Announces changes that did not happen, evenly spread.
pub(super) async fn announce(call: &Call) -> Outcome {
    let outlet = match call.text("via") {
        Some("call") => &call.outlet,
        _ => &call.session.general,
    };
    let (method, params) = if let Some(uri) = call.text("uri") {
        (
            "notifications/resources/updated".to_owned(),
            json!({"uri": uri}),
        )
    } else {
        let list = call.text("list").unwrap_or("tools");
        (format!("notifications/{list}/list_changed"), json!({}))
    };
    let number = u32::try_from(call.number("n").unwrap_or(1)).unwrap_or(1);
    let gap = call.millis("ms") / number.max(1);
    for _ in 0..number {
        outlet.message(notification(&method, &params));
        if !gap.is_zero() {
            tokio::time::sleep(gap).await;
        }
    }
    Outcome::text("announced")
}

fn touch(call: &Call) -> Outcome {
    let uri = call.text("uri").unwrap_or_default();
    let subscribed = call.session.with(|inner| inner.subscriptions.contains(uri));
    if subscribed {
        let params = json!({"uri": uri});
        call.session
            .general
            .message(notification("notifications/resources/updated", &params));
    }
    Outcome::text(if subscribed {
        "announced"
    } else {
        "not subscribed"
    })
}

fn log(call: &Call) -> Outcome {
    let level = call.text("level").unwrap_or("info");
    if !call.session.logs(level) {
        return Outcome::text("not logged");
    }
    let outlet = match call.text("via") {
        Some("get") => &call.session.general,
        _ => &call.outlet,
    };
    let first = call.number("first").unwrap_or(1);
    for number in first..first.saturating_add(call.number("n").unwrap_or(1)) {
        let params = json!({"level": level, "logger": "stub", "data": format!("entry {number}")});
        outlet.message(notification("notifications/message", &params));
    }
    Outcome::text("logged")
}
