//! Request ids: the id in the caller's answer equals the id in the gateway's log.

use http::StatusCode;
use serde_json::{Value, json};

use crate::harness::gateway::Gateway;
use crate::harness::http::initialize;
use crate::harness::socket::Socket;
use crate::harness::{Setup, eventually};

const PROXY: &str = "trusted_proxies = [\"127.0.0.0/8\"]";

/// The record with this target and request id.
async fn record(gw: &Gateway, target: &str, id: &str) -> Value {
    eventually("a line with the request's id", async || {
        let is_it = |line: &Value| line["target"] == target && line["request_id"] == id;
        gw.log_records().into_iter().find(is_it)
    })
    .await
}

fn request(tool: &str) -> Value {
    json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": tool, "arguments": {}}})
}

#[tokio::test]
async fn a_call_has_one_id_in_its_answer_and_lines() {
    let gw = Setup::open().stub("stub", &[]).start().await;
    let user = gw.anonymous().open("/mcp/stub").await;
    let answer = user.post(&request("echo")).await;
    let id = answer.header("x-request-id").expect("an id").to_owned();
    assert_eq!(id.len(), 16, "{id}");
    assert_eq!(record(&gw, "access", &id).await["name"], "echo");
    assert_eq!(record(&gw, "audit", &id).await["outcome"], "ok");
    let other = user.post(&request("echo")).await;
    assert_ne!(other.header("x-request-id"), Some(&*id));
    gw.stop().await;
}

#[tokio::test]
async fn an_error_of_ours_names_its_request() {
    let gw = Setup::open().stub("stub", &[]).start().await;
    let user = gw.anonymous().open("/mcp/stub").await;
    // An error without other data has the id all the same.
    let again = initialize(8, "2025-11-25", &json!({}));
    let answer = user.post(&again).await;
    let id = answer.header("x-request-id").expect("an id").to_owned();
    let message = answer.message().await;
    assert_eq!(
        message["error"]["data"],
        json!({"requestId": id}),
        "{message}"
    );
    // The id of a request without a session, too.
    let answer = gw
        .anonymous()
        .post("/mcp/stub", &[], &request("echo"))
        .await;
    let id = answer.header("x-request-id").expect("an id").to_owned();
    let message = answer.json().await;
    assert_eq!(
        message["error"]["data"]["requestId"],
        json!(id),
        "{message}"
    );
    gw.stop().await;
}

#[tokio::test]
async fn a_refused_token_has_an_id_in_its_line() {
    let gw = Setup::secured().stub("stub", &[]).start().await;
    let answer = gw
        .bearer("no-token")
        .post("/mcp/stub", &[], &request("echo"))
        .await;
    let answer = answer.expect(StatusCode::UNAUTHORIZED).await;
    let id = answer.header("x-request-id").expect("an id");
    assert_eq!(record(&gw, "access", id).await["status"], 401);
    gw.stop().await;
}

#[tokio::test]
async fn only_a_trusted_proxy_chooses_the_id() {
    let asked = ("x-request-id", "7b1c-42.A_z");
    for (lines, expected) in [(PROXY, true), ("", false)] {
        let gw = Setup::open().server(lines).stub("stub", &[]).start().await;
        let answer = gw.anonymous().get("/nothing", &[asked]).await;
        let id = answer.header("x-request-id").expect("an id");
        assert_eq!(id == asked.1, expected, "{id}");
        assert_eq!(record(&gw, "access", id).await["status"], 404);
        let bad = gw
            .anonymous()
            .get("/nothing", &[("x-request-id", "a b=c")])
            .await;
        assert_eq!(bad.header("x-request-id").expect("an id").len(), 16);
        gw.stop().await;
    }
}

#[tokio::test]
async fn pages_may_read_the_id() {
    let gw = Setup::open().stub("stub", &[]).start().await;
    let page = [("origin", "http://localhost:6274")];
    let answer = gw
        .anonymous()
        .post("/mcp/stub", &page, &request("echo"))
        .await;
    let exposed = answer.header("access-control-expose-headers").unwrap();
    assert!(exposed.contains("x-request-id"), "{exposed}");
    gw.stop().await;
}

#[tokio::test]
async fn each_message_of_a_socket_has_an_id() {
    let setup = Setup::open().server("[server.websocket]\nenabled = true");
    let gw = setup.stub("stub", &[]).start().await;
    let mut socket = Socket::open(&gw.url, "/ws/stub", None).await;
    let mut ids = Vec::new();
    for _ in 0..2 {
        socket.tell(&initialize(8, "2025-11-25", &json!({}))).await;
        let (_, reply) = socket.reply(8).await;
        let error = reply.expect_err("the session is initialized already");
        let id = error["data"]["requestId"]
            .as_str()
            .expect("an id")
            .to_owned();
        assert_eq!(record(&gw, "access", &id).await["rpc_method"], "initialize");
        ids.push(id);
    }
    assert_ne!(ids[0], ids[1]);
    gw.stop().await;
}
