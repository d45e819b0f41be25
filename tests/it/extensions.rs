//! Extensions of the protocol, declared and carried in both eras. Spec: SPEC §12; BRIDGING §5.1, §6.

use aws_lc_rs::digest::{SHA256, digest};
use rstest::rstest;
use serde_json::{Value, json};

use crate::harness::session::{Exchange, Reply, text_of};
use crate::harness::upstream::HttpStub;
use crate::harness::{Gateway, Session, Setup};
use crate::modern::Modern;

const VENDOR: &str = "com.example/vendor";
const SKILLS: &str = "io.modelcontextprotocol/skills";
const UI: &str = "io.modelcontextprotocol/ui";
const REFUNDS: &str = "skill://shop/refunds/SKILL.md";
/// Of a merged endpoint.
const SHOWN: &str = "skill://one/shop/refunds/SKILL.md";

/// A client of either era.
enum Client {
    Legacy(Box<Session>),
    Modern(Box<Modern>),
}

impl Client {
    async fn start(&self, method: &str, params: Value) -> Exchange {
        match self {
            Self::Legacy(session) => session.start(method, params).await.1,
            Self::Modern(modern) => modern.start(method, params).await,
        }
    }

    async fn request(&self, method: &str, params: Value) -> Reply {
        self.start(method, params).await.finish().await.1
    }

    /// Calls a tool; the methods of what came before its reply, and the reply.
    async fn call(&self, tool: &str) -> (Vec<Value>, Reply) {
        let params = json!({"name": tool, "arguments": {}});
        let (before, reply) = self.start("tools/call", params).await.finish().await;
        let methods = before.into_iter().map(|mut notice| notice["method"].take());
        (methods.collect(), reply)
    }

    /// The extensions that the endpoint declares.
    async fn declared(&self) -> Value {
        match self {
            Self::Legacy(session) => session.hello["capabilities"]["extensions"].clone(),
            Self::Modern(modern) => {
                let found = modern.send("server/discover", json!({})).await.unwrap();
                found["capabilities"]["extensions"].clone()
            }
        }
    }

    /// The extensions that the gateway declared to the upstream.
    async fn told(&self, era: &str, prefix: &str) -> Value {
        let (tool, pointer) = match era {
            "legacy" => ("session_info", "/client/capabilities/extensions"),
            _ => (
                "seen_meta",
                "/io.modelcontextprotocol~1clientCapabilities/extensions",
            ),
        };
        let (_, reply) = self.call(&format!("{prefix}{tool}")).await;
        let text: Value = serde_json::from_str(text_of(&reply.unwrap())).unwrap();
        text.pointer(pointer).cloned().unwrap_or_default()
    }
}

/// An upstream `one` that declares extensions, and `two`, which has none.
struct World {
    gw: Gateway,
    _stub: Option<HttpStub>,
}

impl World {
    async fn start(era: &str, carrier: &str, extensions: &Value) -> Self {
        let extensions = extensions.to_string();
        let args = ["--era", era, "--extensions", extensions.as_str()];
        let (setup, stub) = if carrier == "http" {
            let stub = HttpStub::start(&args).await;
            (Setup::open().http("one", &stub, ""), Some(stub))
        } else {
            (Setup::open().stub("one", &args), None)
        };
        let gw = setup.stub("two", &["--tools", "1"]).start().await;
        Self { gw, _stub: stub }
    }

    async fn client(&self, era: &str, path: &str, extensions: &Value) -> Client {
        let capabilities = json!({ "extensions": extensions });
        let actor = self.gw.anonymous();
        if era == "legacy" {
            let session = actor.open_as(path, "2025-11-25", capabilities).await;
            Client::Legacy(Box::new(session))
        } else {
            Client::Modern(Box::new(Modern::with(actor, path, capabilities)))
        }
    }

    async fn dropped(&self, sender: &str) -> f64 {
        self.gw
            .metric("drawbridge_notices_unknown_total", sender)
            .await
    }
}

fn vendor() -> Value {
    json!({VENDOR: {"level": 2}})
}

fn skills() -> Value {
    json!({SKILLS: {"directoryRead": true}})
}

// SPEC N-01.
#[rstest]
#[tokio::test]
async fn a_pure_endpoint_carries_an_extension_that_it_does_not_know(
    #[values("legacy", "modern")] front: &str,
    #[values("legacy", "modern")] back: &str,
    #[values("stdio", "http")] carrier: &str,
) {
    let world = World::start(back, carrier, &vendor()).await;
    let client = world.client(front, "/mcp/one", &vendor()).await;
    assert_eq!(client.declared().await, vendor());
    assert_eq!(client.told(back, "").await, vendor());
    let params = json!({"cursor": "mine", "uri": "stub://static/1"});
    let echoed = client.request("vendor/echo", params).await.unwrap();
    assert_eq!(echoed["params"]["cursor"], "mine");
    assert_eq!(echoed["params"]["uri"], "stub://static/1");
    assert_eq!(echoed["nextCursor"], "theirs");
    if back == "modern" {
        let meta = &echoed["params"]["_meta"];
        let declared = &meta["io.modelcontextprotocol/clientCapabilities"];
        assert_eq!(declared["extensions"], vendor());
    }
    let notice = "notifications/vendor/changed";
    let lost = match (&client, back, carrier) {
        // Over stdio the notice of a modern upstream names no call, so it is dropped, and that of a legacy upstream
        // goes to a legacy client's GET stream. Elsewhere it comes on the stream of the call that runs.
        (_, "modern", "stdio") => {
            client.call("vendor_notice").await.1.unwrap();
            1.0
        }
        (Client::Legacy(session), _, "stdio") => {
            let mut stream = session.listen().await;
            client.call("vendor_notice").await.1.unwrap();
            stream.until(notice).await;
            0.0
        }
        _ => {
            let (before, reply) = client.call("vendor_notice").await;
            assert_eq!(before, [notice]);
            reply.unwrap();
            0.0
        }
    };
    let dropped = world.dropped("upstream").await;
    assert!((dropped - lost).abs() < 0.5, "{dropped}");
    world.gw.stop().await;
}

// SPEC N-01; BRIDGING §2.2.
#[rstest]
#[tokio::test]
async fn what_a_modern_client_does_not_declare_does_not_reach_it(
    #[values("legacy", "modern")] back: &str,
) {
    let world = World::start(back, "http", &vendor()).await;
    let client = world.client("modern", "/mcp/one", &json!({})).await;
    let refused = client.request("vendor/echo", json!({})).await.unwrap_err();
    assert_eq!(refused["code"], -32601);
    let (before, reply) = client.call("vendor_notice").await;
    reply.unwrap();
    assert!(before.is_empty(), "{before:?}");
    assert!((world.dropped("upstream").await - 1.0).abs() < 0.5);
    let declaring = world.client("modern", "/mcp/one", &vendor()).await;
    let unknown = declaring.request("vendor/nothing", json!({})).await;
    assert_eq!(unknown.unwrap_err()["code"], -32601);
    world.gw.stop().await;
}

// SPEC N-01; BRIDGING §6.
#[rstest]
#[tokio::test]
async fn a_merged_endpoint_hides_what_it_cannot_route(
    #[values("legacy", "modern")] front: &str,
    #[values("legacy", "modern")] back: &str,
) {
    let both = json!({VENDOR: {}, UI: {"mimeTypes": ["text/html;profile=mcp-app"]}});
    let ui = json!({UI: {"mimeTypes": ["text/html;profile=mcp-app"]}});
    let world = World::start(back, "http", &both).await;
    let client = world.client(front, "/mcp", &both).await;
    assert_eq!(client.declared().await, ui);
    assert_eq!(client.told(back, "one__").await, ui);
    let refused = client.request("vendor/echo", json!({})).await.unwrap_err();
    assert_eq!(refused["code"], -32601);
    let (before, reply) = client.call("one__vendor_notice").await;
    reply.unwrap();
    assert!(before.is_empty(), "{before:?}");
    assert!((world.dropped("upstream").await - 1.0).abs() < 0.5);
    world.gw.stop().await;
}

// BRIDGING §2.4.
#[tokio::test]
async fn an_unknown_notification_of_a_client_reaches_a_pure_legacy_upstream_alone() {
    let world = World::start("legacy", "stdio", &vendor()).await;
    let heard = async |client: &Session, stats: &str| {
        client.notify("notifications/vendor/mine", json!({})).await;
        let stats: Value = serde_json::from_str(&client.text(stats, json!({})).await).unwrap();
        stats["counts"]["notifications/vendor/mine"].as_u64()
    };
    let pure = world.gw.anonymous().open("/mcp/one").await;
    pure.text("pid", json!({})).await;
    assert_eq!(heard(&pure, "stats").await, Some(1));
    let merged = world.gw.anonymous().open("/mcp").await;
    merged.text("one__pid", json!({})).await;
    assert_eq!(heard(&merged, "one__stats").await, None);
    assert!((world.dropped("client").await - 1.0).abs() < 0.5);
    let modern = Modern::with(world.gw.anonymous(), "/mcp/one", json!({}));
    let notice = json!({"jsonrpc": "2.0", "method": "notifications/vendor/mine"});
    assert_eq!(modern.post(&notice).await.status(), 202);
    assert!((world.dropped("client").await - 2.0).abs() < 0.5);
    world.gw.stop().await;
}

// MCP 2026-07-28, basic, "ResultType": extensions may add kinds of results.
#[rstest]
#[case("/mcp/one", true, true)]
#[case("/mcp/one", false, false)]
#[case("/mcp", true, false)]
#[tokio::test]
async fn a_result_of_a_new_kind_needs_a_shared_extension(
    #[case] path: &str,
    #[case] declares: bool,
    #[case] passes: bool,
) {
    let world = World::start("modern", "http", &vendor()).await;
    let extensions = if declares { vendor() } else { json!({}) };
    let client = world.client("modern", path, &extensions).await;
    let (_, reply) = client.call("vendor_result").await;
    let kind = reply.unwrap_or_default()["resultType"].take();
    assert_eq!(kind == "vendor", passes, "{kind}");
    world.gw.stop().await;
}

/// Reads a file of a skill and compares it with its entry.
async fn verify(client: &Client, entry: &Value) {
    let read = json!({"uri": entry["uri"]});
    let read = client.request("resources/read", read).await.unwrap();
    assert_eq!(read["contents"][0]["uri"], entry["uri"]);
    let text = read["contents"][0]["text"].as_str().unwrap();
    assert_eq!(entry["size"], text.len());
    let hash = digest(&SHA256, text.as_bytes());
    let hex = hash.as_ref().iter().map(|b| format!("{b:02x}"));
    let hex = hex.collect::<Vec<_>>().concat();
    assert_eq!(entry["digest"], format!("sha256:{hex}"));
}

// SPEC N-04, N-05.
#[rstest]
#[tokio::test]
async fn skills_are_listed_read_and_verified(
    #[values("legacy", "modern")] front: &str,
    #[values("legacy", "modern")] back: &str,
    #[values("/mcp", "/mcp/one")] path: &str,
) {
    let world = World::start(back, "http", &skills()).await;
    let client = world.client(front, path, &json!({})).await;
    assert_eq!(client.declared().await, skills());
    let shown = if path == "/mcp" { SHOWN } else { REFUNDS };
    let root = shown.strip_suffix("/SKILL.md").unwrap();

    let mut page = client.request("skills/list", json!({})).await.unwrap();
    let mut listed = page["skills"].as_array().unwrap().clone();
    if let Some(cursor) = page.get("nextCursor") {
        assert_ne!(cursor, "second", "the upstream's cursor is sealed");
        let next = json!({ "cursor": cursor });
        page = client.request("skills/list", next).await.unwrap();
        listed.extend(page["skills"].as_array().unwrap().clone());
    }
    assert_eq!(page.get("cacheScope").is_some(), front == "modern");
    assert_eq!(listed.len(), 2);
    assert_eq!(listed[0]["uri"], shown);
    assert_eq!(listed[0]["frontmatter"]["name"], "refunds");
    assert_eq!(listed[1]["resources"], "dynamic");
    for file in listed[0]["resources"].as_array().unwrap() {
        verify(&client, file).await;
    }

    let one = json!({ "uri": shown });
    let got = client.request("skills/get", one).await.unwrap();
    assert_eq!(got["skill"], listed[0]);
    let unknown = json!({"uri": format!("{root}/none/SKILL.md")});
    let unknown = client.request("skills/get", unknown).await.unwrap_err();
    assert_eq!(unknown["code"], -32602);

    // Some clients send `null` when they have no cursor.
    let mut asked = json!({ "uri": root, "cursor": null });
    let mut children = Vec::new();
    loop {
        let page = client
            .request("resources/directory/read", asked.clone())
            .await;
        let page = page.unwrap();
        children.extend(page["resources"].as_array().unwrap().clone());
        let Some(cursor) = page.get("nextCursor") else {
            break;
        };
        asked["cursor"] = cursor.clone();
    }
    assert_eq!(children[0]["uri"], shown);
    assert_eq!(children[1]["uri"], format!("{root}/examples"));
    world.gw.stop().await;
}

// SPEC N-01, N-06; BRIDGING §4.1, §5.1.
#[tokio::test]
async fn skills_of_several_upstreams_are_kept_apart() {
    let all = skills().to_string();
    let few = json!({SKILLS: {}}).to_string();
    let gw = Setup::open()
        .stub("one", &["--extensions", &all])
        .stub("two", &["--extensions", &few])
        .stub("three", &[])
        .start()
        .await;
    let user = gw.anonymous().open("/mcp").await;
    let uris = user.names("skills/list", "skills", "uri").await;
    for up in ["one", "two"] {
        let shown = format!("skill://{up}/shop/refunds/SKILL.md");
        assert!(uris.contains(&shown), "{uris:?}");
        let got = user.request("skills/get", json!({ "uri": shown })).await;
        assert_eq!(got.unwrap()["skill"]["uri"], shown);
        let daily = format!("{up}+github://owner/daily/SKILL.md");
        assert!(uris.contains(&daily), "{uris:?}");
    }
    let refused = async |method: &str, uri: &str| {
        let reply = user.request(method, json!({ "uri": uri })).await;
        reply.unwrap_err()["code"].as_i64()
    };
    let directory = "resources/directory/read";
    assert_eq!(
        refused(directory, "skill://two/shop/refunds").await,
        Some(-32602)
    );
    assert_eq!(
        refused("skills/get", "skill://three/x/SKILL.md").await,
        Some(-32602)
    );
    // Two servers have the skill of this name: neither is guessed.
    assert_eq!(refused("skills/get", REFUNDS).await, Some(-32602));
    gw.stop().await;
}

// BRIDGING §4.1 ("unmapped URI sent by a client").
#[tokio::test]
async fn a_skill_is_found_under_the_uri_that_its_own_server_uses() {
    let world = World::start("modern", "http", &skills()).await;
    let client = world.client("modern", "/mcp", &json!({})).await;
    let bare = json!({ "uri": REFUNDS });
    let got = client.request("skills/get", bare.clone()).await.unwrap();
    assert_eq!(got["skill"]["uri"], SHOWN);
    let read = client.request("resources/read", bare).await.unwrap();
    assert_eq!(read["contents"][0]["uri"], SHOWN);
    world.gw.stop().await;
}

// SPEC N-01.
#[rstest]
#[tokio::test]
async fn without_skills_their_methods_do_not_exist(
    #[values("legacy", "modern")] front: &str,
    #[values("/mcp", "/mcp/one")] path: &str,
) {
    let world = World::start("legacy", "stdio", &vendor()).await;
    let client = world.client(front, path, &vendor()).await;
    for method in ["skills/list", "skills/get", "resources/directory/read"] {
        let refused = client.request(method, json!({ "uri": SHOWN })).await;
        assert_eq!(refused.unwrap_err()["code"], -32601, "{method}");
    }
    world.gw.stop().await;
}

// SPEC N-02, N-03.
#[rstest]
#[tokio::test]
async fn a_user_interface_is_found_and_comes_as_it_is(
    #[values("legacy", "modern")] front: &str,
    #[values("legacy", "modern")] back: &str,
    #[values("/mcp", "/mcp/one")] path: &str,
) {
    let ui = json!({UI: {"mimeTypes": ["text/html;profile=mcp-app"]}});
    let world = World::start(back, "http", &ui).await;
    let client = world.client(front, path, &ui).await;
    assert_eq!(client.declared().await, ui);
    let listed = client.request("tools/list", json!({})).await.unwrap();
    let tools = listed["tools"].as_array().unwrap();
    let tool = tools
        .iter()
        .find(|tool| tool["_meta"]["ui"].is_object())
        .expect("a tool with an interface");
    let uri = &tool["_meta"]["ui"]["resourceUri"];
    let expected = if path == "/mcp" {
        "ui://one/dashboard"
    } else {
        "ui://dashboard"
    };
    assert_eq!(uri, expected);
    assert_eq!(&tool["_meta"]["ui/resourceUri"], uri);
    assert_eq!(tool["_meta"]["ui"]["visibility"], json!(["app"]));
    let read = client
        .request("resources/read", json!({ "uri": uri }))
        .await;
    let content = &read.unwrap()["contents"][0];
    assert_eq!(&content["uri"], uri);
    assert_eq!(content["mimeType"], "text/html;profile=mcp-app");
    assert_eq!(content["text"], "<!DOCTYPE html><p>ui://dashboard</p>");
    // The page calls tools by the names that its own server knows.
    let (_, reply) = client.call("dashboard").await;
    assert_eq!(text_of(&reply.unwrap()), "shown");
    world.gw.stop().await;
}
