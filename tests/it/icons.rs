//! Icons that no client may load are not shown. Spec: SPEC C-96; MCP 2025-11-25, "Icons".

use serde_json::{Value, json};

use crate::harness::{Gateway, Setup};
use crate::modern::Modern;

const GOOD: &str = "https://icons.example/i.png";
const INFO: &str = "io.modelcontextprotocol/serverInfo";
const LISTS: [(&str, &str); 4] = [
    ("tools/list", "tools"),
    ("prompts/list", "prompts"),
    ("resources/list", "resources"),
    ("resources/templates/list", "resourceTemplates"),
];

/// A gateway before servers of both eras, whose icons lie at `sources`.
async fn gateway(sources: &[&str]) -> Gateway {
    let icons: Vec<&str> = sources.iter().flat_map(|src| ["--icon", src]).collect();
    let args = |more: &[&'static str]| [more, icons.as_slice()].concat();
    Setup::open()
        .toml("[lists]\nfresh = \"1h\"\n")
        .stub("older", &args(&[]))
        .stub("newer", &args(&["--era", "modern"]))
        .start()
        .await
}

/// Icons of the members of a list.
fn icons_of(list: &Value, member: &str) -> Vec<Value> {
    let items = list[member].as_array().unwrap();
    assert!(!items.is_empty(), "{list}");
    items.iter().map(|item| item["icons"].clone()).collect()
}

/// Every `icons` that clients of both eras are shown, at every endpoint.
async fn shown(gw: &Gateway) -> Vec<Value> {
    let mut shown = Vec::new();
    for path in ["/mcp/older", "/mcp/newer", "/mcp"] {
        let legacy = gw.anonymous().open(path).await;
        let modern = Modern::new(gw.anonymous(), path);
        let found = modern.send("server/discover", json!({})).await.unwrap();
        if path != "/mcp" {
            shown.push(legacy.hello["serverInfo"]["icons"].clone());
            shown.push(found["_meta"][INFO]["icons"].clone());
        }
        for (method, member) in LISTS {
            // From the upstream, and from the cache.
            for _ in 0..2 {
                let list = legacy.request(method, json!({})).await.unwrap();
                shown.extend(icons_of(&list, member));
                let list = modern.send(method, json!({})).await.unwrap();
                shown.extend(icons_of(&list, member));
                if path != "/mcp" {
                    shown.push(list["_meta"][INFO]["icons"].clone());
                }
            }
        }
    }
    shown
}

#[tokio::test]
async fn icons_from_elsewhere_than_the_web_are_left_out() {
    let gw = gateway(&["javascript:alert(1)", GOOD, " FILE:///etc/passwd"]).await;
    let only = json!([{"src": GOOD}]);
    for icons in shown(&gw).await {
        assert_eq!(icons, only);
    }
    gw.stop().await;
}

#[tokio::test]
async fn who_has_no_other_icons_shows_none() {
    let gw = gateway(&["ws://icons.example/"]).await;
    for icons in shown(&gw).await {
        assert_eq!(icons, Value::Null);
    }
    gw.stop().await;
}

// Spec: SPEC N-04.
#[tokio::test]
async fn what_a_directory_holds_shows_none_either() {
    let extensions = json!({"io.modelcontextprotocol/skills": {"directoryRead": true}}).to_string();
    let args = [
        "--extensions",
        &extensions,
        "--icon",
        "ftp://icons.example/",
    ];
    let setup = Setup::open().stub("stub", &args).stub("other", &[]);
    let gw = setup.start().await;
    for (path, uri) in [
        ("/mcp/stub", "skill://shop/refunds"),
        ("/mcp", "skill://stub/shop/refunds"),
    ] {
        let user = gw.anonymous().open(path).await;
        let asked = user.request("resources/directory/read", json!({"uri": uri}));
        let held = asked.await.unwrap();
        assert_eq!(icons_of(&held, "resources"), [Value::Null]);
    }
    gw.stop().await;
}
