//! Lists, calls, reads, prompts, completions, and unknown names.

use serde_json::{Value, json};

use super::{Outcome, Place};
use crate::harness::session::{Reply, text_of};
use crate::matrix::cells::{Shape, TWIN};

/// Method, member, key, and an item of the stub.
const LISTS: [(&str, &str, &str, &str); 4] = [
    ("tools/list", "tools", "name", "echo"),
    ("prompts/list", "prompts", "name", "greet"),
    ("resources/list", "resources", "uri", "stub://static/5"),
    (
        "resources/templates/list",
        "resourceTemplates",
        "uriTemplate",
        "stub://item/{id}",
    ),
];

/// Outcome of a request that must fail: an error, or a tool's error.
pub(super) fn failure(reply: &Reply) -> Outcome {
    match reply {
        Err(error) => Outcome::Error(error["code"].as_i64().expect("a code")),
        Ok(result) if result["isError"] == true => Outcome::ToolError,
        Ok(_) => Outcome::Works,
    }
}

/// The result of a reply that must succeed.
fn result(reply: Reply) -> Result<Value, Outcome> {
    match failure(&reply) {
        Outcome::Works => Ok(reply.unwrap()),
        failure => Err(failure),
    }
}

/// The claim that a result bears out.
fn works(reply: Reply, claim: impl FnOnce(&Value) -> bool) -> Outcome {
    match result(reply) {
        Ok(result) => {
            assert!(claim(&result), "{result}");
            Outcome::Works
        }
        Err(failure) => failure,
    }
}

pub(super) async fn lists(place: &Place) -> Outcome {
    for (method, member, key, item) in LISTS {
        let pages = place.client.pages(method).await;
        let items = pages
            .iter()
            .flat_map(|page| page[member].as_array().unwrap());
        let names: Vec<&str> = items.map(|item| item[key].as_str().unwrap()).collect();
        let mut expected = vec![spelled(place, key, item)];
        if place.cell.shape == Shape::Merged {
            let theirs = spelled(place, key, item).replace(&place.cell.upstream_name(), TWIN);
            expected.push(theirs);
        }
        for name in expected {
            let count = names.iter().filter(|known| **known == name).count();
            assert_eq!(count, 1, "{name} in {names:?}");
        }
    }
    Outcome::Works
}

fn spelled(place: &Place, key: &str, item: &str) -> String {
    match key {
        "name" => place.cell.name(item),
        _ => place.cell.uri(item),
    }
}

pub(super) async fn pages(place: &Place) -> Outcome {
    let pages = place.client.pages("tools/list").await;
    let tools = pages
        .iter()
        .flat_map(|page| page["tools"].as_array().unwrap());
    let first = place.cell.name("");
    let own = tools.filter(|tool| tool["name"].as_str().unwrap().starts_with(&first));
    let mut names: Vec<&str> = own.map(|tool| tool["name"].as_str().unwrap()).collect();
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert!(count > 30 && names.len() == count, "{count} in {names:?}");
    // A merged endpoint reads all pages and shows one.
    assert_eq!(pages.len() == 1, place.cell.shape == Shape::Merged);
    Outcome::Works
}

pub(super) async fn call(place: &Place) -> Outcome {
    let Place { client, cell, .. } = place;
    let echoed = client
        .call(&cell.name("echo"), json!({"text": "ä\u{1f600}"}))
        .await;
    match works(echoed, |result| text_of(result).contains("ä\u{1f600}")) {
        Outcome::Works => {}
        failure => return failure,
    }
    // Check that the upstream speaks the cell's revision.
    if cell.upstream.is_modern() {
        let meta = client.call(&cell.name("seen_meta"), json!({})).await;
        return works(meta, |result| {
            text_of(result).contains(cell.upstream.wire())
        });
    }
    let info = client.call(&cell.name("session_info"), json!({})).await;
    works(info, |result| {
        let info: Value = serde_json::from_str(text_of(result)).unwrap();
        info["revision"] == cell.upstream.wire()
    })
}

pub(super) async fn read(place: &Place) -> Outcome {
    let uri = place.cell.uri("stub://static/2");
    let reply = place
        .client
        .request("resources/read", json!({ "uri": uri }))
        .await;
    works(reply, |result| {
        let content = &result["contents"][0];
        content["uri"] == uri && content["text"] == "static text 2"
    })
}

pub(super) async fn prompt(place: &Place) -> Outcome {
    let params = json!({"name": place.cell.name("greet"), "arguments": {"name": "Ada"}});
    let reply = place.client.request("prompts/get", params).await;
    works(reply, |result| {
        result["messages"][0]["content"]["text"] == "Say hello to Ada"
    })
}

pub(super) async fn complete(place: &Place) -> Outcome {
    let about = json!({"type": "ref/prompt", "name": place.cell.name("greet")});
    let params = json!({"ref": about, "argument": {"name": "name", "value": "al"}});
    let reply = place.client.request("completion/complete", params).await;
    works(reply, |result| {
        result["completion"]["values"] == json!(["alice"])
    })
}

pub(super) async fn no_resource(place: &Place) -> Outcome {
    let params = json!({"uri": place.cell.uri("stub://nowhere/1")});
    failure(&place.client.request("resources/read", params).await)
}

pub(super) async fn no_tool(place: &Place) -> Outcome {
    failure(
        &place
            .client
            .call(&place.cell.name("no_such_tool"), json!({}))
            .await,
    )
}

pub(super) async fn no_method(place: &Place) -> Outcome {
    failure(&place.client.request("tools/invent", json!({})).await)
}
