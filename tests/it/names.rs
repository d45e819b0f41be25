//! Names and URIs on a merged endpoint: nothing collides, everything listed leads home, a pure
//! endpoint changes nothing. Spec: BRIDGING §4.
//!
//! Two copies of `tests/servers/names.py`, which has every spelling that is hard to keep apart.

use std::collections::HashSet;

use serde_json::{Value, json};

use crate::harness::session::text_of;
use crate::harness::{Gateway, Session, Setup, eventually, peers};
use crate::modern::Modern;

async fn gateway() -> Gateway {
    let script = peers::script("servers/names.py");
    let setup = Setup::open().stdio("a", "python3", &[&script, "a"], "");
    setup
        .stdio("b", "python3", &[&script, "b"], "")
        .start()
        .await
}

/// The name that reached a server: the server's tag, and the name.
fn heard(result: &Value) -> (String, String) {
    let said: Value = serde_json::from_str(text_of(result)).unwrap();
    let text = |key: &str| said[key].as_str().unwrap().to_owned();
    (text("server"), text("name"))
}

async fn pure_names(gw: &Gateway, upstream: &str) -> Vec<String> {
    gw.anonymous()
        .open(&format!("/mcp/{upstream}"))
        .await
        .tools()
        .await
}

#[tokio::test]
async fn every_listed_tool_leads_to_the_one_it_names() {
    let gw = gateway().await;
    let user = gw.anonymous().open("/mcp").await;
    let listed = user.tools().await;
    assert_eq!(
        listed.iter().collect::<HashSet<_>>().len(),
        listed.len(),
        "{listed:?}"
    );
    assert!(
        listed.iter().all(|name| name.chars().count() <= 64),
        "{listed:?}"
    );
    let mut reached = HashSet::new();
    for name in listed.iter().filter(|name| !name.ends_with("__links")) {
        let (server, original) = heard(&user.call(name, json!({})).await.expect("a result"));
        assert!(
            name.starts_with(&format!("{server}__")),
            "{name} reached {server}"
        );
        assert!(
            reached.insert((server, original)),
            "{name} is a second way to the same tool"
        );
    }
    for upstream in ["a", "b"] {
        for name in pure_names(&gw, upstream)
            .await
            .into_iter()
            .filter(|name| name != "links")
        {
            assert!(
                reached.contains(&(upstream.to_owned(), name.clone())),
                "{upstream} {name}"
            );
        }
    }
    gw.stop().await;
}

#[tokio::test]
async fn a_prefix_is_split_at_its_first_separator() {
    let gw = gateway().await;
    let user = gw.anonymous().open("/mcp").await;
    for (called, server, name) in [
        ("a__b__plain", "a", "b__plain"),
        ("b__a__plain", "b", "a__plain"),
        ("a____leading", "a", "__leading"),
        (
            "a__with__double__underscore",
            "a",
            "with__double__underscore",
        ),
    ] {
        let result = user.call(called, json!({})).await.expect("a result");
        assert_eq!(
            heard(&result),
            (server.to_owned(), name.to_owned()),
            "{called}"
        );
    }
    // `a__plain` means a's `plain`, not the tool that b and a themselves call `a__plain`.
    let result = user.call("a__plain", json!({})).await.expect("a result");
    assert_eq!(heard(&result), ("a".to_owned(), "plain".to_owned()));
    gw.stop().await;
}

#[tokio::test]
async fn every_listed_prompt_leads_to_the_one_it_names() {
    let gw = gateway().await;
    let user = gw.anonymous().open("/mcp").await;
    for name in user.names("prompts/list", "prompts", "name").await {
        let prompt = user
            .request("prompts/get", json!({ "name": name }))
            .await
            .expect("a prompt");
        let text = prompt["messages"][0]["content"]["text"].as_str().unwrap();
        let (server, original) = text.split_once(" has ").unwrap();
        assert!(name.starts_with(&format!("{server}__")), "{name}: {text}");
        let embedded = &prompt["messages"][1]["content"]["resource"]["uri"];
        assert_eq!(*embedded, format!("{server}+file:///etc/hosts"));
        let reference = json!({"type": "ref/prompt", "name": name});
        let params = json!({"ref": reference, "argument": {"name": "x", "value": ""}});
        let completion = user
            .request("completion/complete", params)
            .await
            .expect("values");
        assert_eq!(
            completion["completion"]["values"],
            json!([server, original])
        );
    }
    gw.stop().await;
}

async fn uris(user: &Session) -> Vec<String> {
    user.names("resources/list", "resources", "uri").await
}

#[tokio::test]
async fn every_listed_uri_is_read_where_it_comes_from() {
    let gw = gateway().await;
    let user = gw.anonymous().open("/mcp").await;
    let listed = uris(&user).await;
    assert_eq!(
        listed.iter().collect::<HashSet<_>>().len(),
        listed.len(),
        "{listed:?}"
    );
    let mut reached = HashSet::new();
    for uri in &listed {
        let read = user
            .request("resources/read", json!({ "uri": uri }))
            .await
            .expect("contents");
        assert_eq!(
            read["contents"][0]["uri"], *uri,
            "comes back as it was asked for"
        );
        let text = read["contents"][0]["text"].as_str().unwrap();
        let (server, original) = text.split_once(" has ").unwrap();
        reached.insert((server.to_owned(), original.to_owned()));
    }
    for upstream in ["a", "b"] {
        let pure = gw.anonymous().open(&format!("/mcp/{upstream}")).await;
        for uri in uris(&pure).await {
            assert!(
                reached.contains(&(upstream.to_owned(), uri.clone())),
                "{upstream} {uri}"
            );
        }
    }
    gw.stop().await;
}

#[tokio::test]
async fn uris_are_spelled_by_the_rules() {
    let gw = gateway().await;
    let user = gw.anonymous().open("/mcp").await;
    let listed = uris(&user).await;
    for expected in [
        "a+file:///etc/hosts",
        "b+urn:isbn:0451450523",
        "a+b+db://table/rows",
        "b+a+db://table/rows",
        "a+memo:///%C3%A9/%2Fencoded",
        "ui://a/widget/index.html",
        "skill://b/pdf/SKILL.md",
        "https://a.example/page",
        "https://b.example/page",
    ] {
        assert!(
            listed.contains(&expected.to_owned()),
            "{expected} in {listed:#?}"
        );
    }
    let templates = user
        .names(
            "resources/templates/list",
            "resourceTemplates",
            "uriTemplate",
        )
        .await;
    for expected in [
        "a+db://{table}/rows{?limit}",
        "b+{scheme}://anything",
        "ui://a/widget/{name}",
        "https://a.example/items/{id}",
    ] {
        assert!(
            templates.contains(&expected.to_owned()),
            "{expected} in {templates:#?}"
        );
    }
    gw.stop().await;
}

#[tokio::test]
async fn uris_inside_results_can_be_read_and_texts_are_left_alone() {
    let gw = gateway().await;
    let user = gw.anonymous().open("/mcp").await;
    let listed = uris(&user).await;
    let result = user.call("a__links", json!({})).await.expect("a result");
    let blocks = result["content"].as_array().unwrap();
    assert_eq!(blocks[0]["text"], "see file:///etc/hosts");
    for block in &blocks[1..] {
        let uri = block
            .get("uri")
            .unwrap_or(&block["resource"]["uri"])
            .as_str()
            .unwrap();
        assert!(listed.contains(&uri.to_owned()), "{uri} in {listed:#?}");
        assert!(!uri.starts_with("b+") && !uri.contains("//b/"), "{uri}");
    }
    gw.stop().await;
}

// A URL can carry secrets, so it is not tried at every upstream. Spec: BRIDGING §4.1.
#[tokio::test]
async fn a_url_of_a_listed_template_is_read_and_followed_where_the_template_comes_from() {
    let setup = Setup::open().stub("left", &[]);
    let gw = setup.stub("right", &["--web-items"]).start().await;
    let user = gw.anonymous().open("/mcp").await;
    let uri = "https://items.example/i/7";
    let read = user.request("resources/read", json!({"uri": uri})).await;
    assert_eq!(read.unwrap()["contents"][0]["text"], "web item 7");
    let followed = user.request("resources/subscribe", json!({"uri": uri}));
    assert_eq!(followed.await, Ok(json!({})));
    let other = json!({"uri": "https://items.example/other"});
    let refused = user.request("resources/read", other).await.unwrap_err();
    assert_eq!(refused["code"], -32002, "{refused}");
    gw.stop().await;
}

#[tokio::test]
async fn an_unknown_uri_reaches_nobody() {
    let gw = gateway().await;
    let user = gw.anonymous().open("/mcp").await;
    user.tools().await;
    for uri in [
        "https://unknown.example/?token=secret",
        "nobody+file:///secret",
        "c+db://secret",
        "not a uri",
        "",
    ] {
        let error = user.request("resources/read", json!({ "uri": uri })).await;
        let code = error.expect_err("an error")["code"].as_i64().unwrap();
        assert!([-32602, -32002].contains(&code), "{uri}: {code}");
    }
    for upstream in ["a", "b"] {
        let seen = user
            .call(&format!("{upstream}__seen"), json!({}))
            .await
            .expect("a result");
        assert!(!seen.to_string().contains("secret"), "{seen}");
    }
    gw.stop().await;
}

#[tokio::test]
async fn a_pure_endpoint_changes_nothing() {
    let gw = gateway().await;
    let user = gw.anonymous().open("/mcp/a").await;
    assert!(pure_names(&gw, "a").await.contains(&"a__plain".to_owned()));
    let result = user.call("a__plain", json!({})).await.expect("a result");
    assert_eq!(heard(&result).1, "a__plain");
    assert!(
        uris(&user)
            .await
            .contains(&"ui://widget/index.html".to_owned())
    );
    let read = user
        .request("resources/read", json!({"uri": "a+db://table/rows"}))
        .await;
    assert_eq!(
        read.expect("contents")["contents"][0]["text"],
        "a has a+db://table/rows"
    );
    assert_eq!(user.hello["serverInfo"]["name"], "a");
    assert_eq!(user.hello["instructions"], "Instructions of a.");
    gw.stop().await;
}

#[tokio::test]
async fn instructions_of_all_are_told_with_their_names() {
    let gw = gateway().await;
    // A new session goes without the words of a server that takes longer than a second to start.
    eventually("both instructions", async || {
        let user = gw.anonymous().open("/mcp").await;
        let told = user.hello["instructions"].as_str().unwrap_or_default();
        let has = |upstream| told.contains(&format!("Instructions of {upstream}."));
        (has("a") && has("b")).then_some(())
    })
    .await;
    gw.stop().await;
}

// BRIDGING §5.2, §5.3.
#[tokio::test]
async fn the_operators_own_name_and_words_come_first() {
    let gw = Setup::open()
        .stub("a", &[])
        .stub("b", &[])
        .toml("[mcp]\ntitle = \"All of Ours\"\ninstructions = \"Ours.\"")
        .start()
        .await;
    let legacy = gw.anonymous().open("/mcp").await;
    let modern = Modern::new(gw.anonymous(), "/mcp");
    let found = modern.send("server/discover", json!({})).await.unwrap();
    let info = [
        &legacy.hello["serverInfo"],
        &found["_meta"]["io.modelcontextprotocol/serverInfo"],
    ];
    for (said, info) in [&legacy.hello, &found].into_iter().zip(info) {
        assert_eq!(info["title"], "All of Ours");
        let instructions = said["instructions"].as_str().unwrap();
        assert!(instructions.starts_with("Ours.\n\n"), "{instructions}");
    }
    let direct = gw.anonymous().open("/mcp/a").await;
    let own = direct.hello["instructions"].as_str().unwrap();
    assert!(!own.contains("Ours."), "{own}");
    gw.stop().await;
}
