//! Resources under odd names, and links to them with icons that no client may load.
//! Spec: SPEC C-53, C-96.

use serde_json::{Value, json};

use crate::harness::Setup;
use crate::harness::upstream::HttpStub;
use crate::modern::Modern;

/// A child that lists a resource and a template without schemes, and links to resources with icons.
const ODD: &str = r#"
    say() { printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$id" "$1"; }
    link='{"type":"resource_link","uri":"a:b","name":"n","icons":[{"src":"javascript:alert(1)"},{"src":"https://a.example/i"}]}'
    while read -r line; do
        id=$(printf '%s' "$line" | sed 's/.*"id":\([0-9]*\).*/\1/')
        case "$line" in
        *'"initialize"'*) say '{"protocolVersion":"2025-11-25","capabilities":{"tools":{},"prompts":{},"resources":{}},"serverInfo":{"name":"odd","version":"1"}}' ;;
        *resources/list*) say '{"resources":[{"uri":"odd one","name":"n"}]}' ;;
        *resources/templates/list*) say '{"resourceTemplates":[{"uriTemplate":"notes/{id}","name":"n"}]}' ;;
        *a:blob*) say '{"contents":[{"uri":"a:blob","blob":"AP8Q+/8="}]}' ;;
        *resources/read*) say '{"contents":[{"uri":"a:b","text":"read"}]}' ;;
        *tools/call*) say '{"content":[{"type":"text","text":"t"},'"$link"']}' ;;
        *prompts/get*) say '{"messages":[{"role":"user","content":'"$link"'}]}' ;;
        esac
    done"#;

fn odd() -> Setup {
    let setup = Setup::open();
    setup.stdio("odd", "sh", &["-c", ODD], "era = \"legacy\"")
}

// SPEC C-53.
#[tokio::test]
async fn text_without_a_scheme_is_not_read() {
    let stub = HttpStub::start(&[]).await;
    let setup = Setup::open().http("stub", &stub, "").stub("other", &[]);
    let gw = setup.start().await;
    for path in ["/mcp/stub", "/mcp"] {
        let legacy = gw.anonymous().open(path).await;
        for uri in ["not a uri", "", " ", "/etc/passwd"] {
            let read = legacy.request("resources/read", json!({"uri": uri}));
            assert_eq!(read.await.unwrap_err()["code"], -32602, "{path} {uri:?}");
        }
        let modern = Modern::new(gw.anonymous(), path);
        let read = modern.send("resources/read", json!({"uri": "not a uri"}));
        assert_eq!(read.await.unwrap_err()["code"], -32602, "{path}");
    }
    assert_eq!(stub.counted("resources/read").await, 0);
    // A URI with a scheme is forwarded: the server decides.
    let legacy = gw.anonymous().open("/mcp/stub").await;
    let read = legacy.request("resources/read", json!({"uri": "x-what+1:any thing"}));
    assert_eq!(read.await.unwrap_err()["code"], -32002);
    assert_eq!(stub.counted("resources/read").await, 1);
    gw.stop().await;
}

// SPEC C-53: a server may name its own as it likes.
#[tokio::test]
async fn listed_text_without_a_scheme_is_read() {
    let gw = odd().stub("other", &[]).start().await;
    for (path, known, unknown) in [
        ("/mcp/odd", ["odd one", "notes/7"], "odd two"),
        ("/mcp", ["odd+odd one", "odd+notes/7"], "odd two"),
    ] {
        let user = gw.anonymous().open(path).await;
        for uri in known {
            let read = user.request("resources/read", json!({"uri": uri})).await;
            assert_eq!(read.unwrap()["contents"][0]["text"], "read", "{path} {uri}");
        }
        let read = user
            .request("resources/read", json!({"uri": unknown}))
            .await;
        assert_eq!(read.unwrap_err()["code"], -32602, "{path}");
    }
    gw.stop().await;
}

// SPEC C-53.
#[tokio::test]
async fn binary_contents_pass_byte_for_byte() {
    let gw = odd().stub("other", &[]).start().await;
    let sent = r#""blob":"AP8Q+/8=""#;
    for (path, uri) in [("/mcp/odd", "a:blob"), ("/mcp", "odd+a:blob")] {
        let legacy = gw.anonymous().open(path).await;
        let params = json!({ "uri": uri });
        let request =
            json!({"jsonrpc": "2.0", "id": 1, "method": "resources/read", "params": params});
        assert!(
            legacy.post(&request).await.text().await.contains(sent),
            "{path}"
        );
        let modern = Modern::new(gw.anonymous(), path);
        let request = modern.request(&json!(1), "resources/read", params);
        assert!(
            modern.post(&request).await.text().await.contains(sent),
            "{path}"
        );
    }
    gw.stop().await;
}

// SPEC C-96.
#[tokio::test]
async fn links_in_results_lose_icons_that_no_client_may_load() {
    let gw = odd().stub("other", &[]).start().await;
    let good = json!([{"src": "https://a.example/i"}]);
    for (path, name) in [("/mcp/odd", "t"), ("/mcp", "odd__t")] {
        let legacy = gw.anonymous().open(path).await;
        let modern = Modern::new(gw.anonymous(), path);
        let params = json!({"name": name, "arguments": {}});
        let icons = |content: &Value| content["icons"].clone();
        for called in [
            legacy.request("tools/call", params.clone()).await,
            modern.send("tools/call", params.clone()).await,
        ] {
            let called = called.unwrap();
            assert_eq!(icons(&called["content"][1]), good, "{path}: {called}");
        }
        for got in [
            legacy.request("prompts/get", params.clone()).await,
            modern.send("prompts/get", params.clone()).await,
        ] {
            let got = got.unwrap();
            assert_eq!(icons(&got["messages"][0]["content"]), good, "{path}: {got}");
        }
    }
    gw.stop().await;
}
