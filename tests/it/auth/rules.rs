//! Rules for single tools, and their audit records.

use serde_json::{Value, json};

use super::{Guarded, parameter};
use crate::harness::{Gateway, Setup, eventually};
use crate::modern::{Modern, VERSION};

/// Audit records so far, without the members that differ from run to run.
async fn audited(gw: &Gateway, count: usize) -> Vec<Value> {
    let records = eventually("audit records", async || {
        let all = gw.log_records().into_iter();
        let mine: Vec<Value> = all.filter(|line| line["target"] == "audit").collect();
        (mine.len() >= count).then_some(mine)
    });
    let mut records = records.await;
    for record in &mut records {
        let record = record.as_object_mut().unwrap();
        for name in ["timestamp", "level", "time", "request_id", "trace_id"] {
            assert!(
                record.remove(name).is_some(),
                "{name} is missing in {record:?}"
            );
        }
    }
    records
}

// SPEC, O-04
#[tokio::test]
async fn a_call_that_lacks_a_scope_is_403_audited_and_reaches_nothing() {
    let rule = "[[auth.tool_scopes]]\ntools = [\"ec*\"]\nscopes = [\"mcp:admin\"]\n";
    let world = Guarded::start_with(Setup::secured().toml(rule)).await;
    let alice = world.gw.principal("alice").open("/mcp/stub").await;
    assert!(
        alice.tools().await.contains(&"echo".to_owned()),
        "it stays listed"
    );
    let before = world.received().await;
    let call = json!({
        "jsonrpc": "2.0", "id": 9, "method": "tools/call",
        "params": {"name": "echo", "arguments": {"password": "hunter2"}},
    });
    let answer = alice.post(&call).await;
    assert_eq!(answer.status(), 403);
    assert_eq!(
        parameter(&answer, "error").as_deref(),
        Some("insufficient_scope")
    );
    let scope = parameter(&answer, "scope");
    assert_eq!(scope.as_deref(), Some("mcp:tools mcp:admin"));
    // SPEC M-15
    let refusal = answer.json().await;
    assert_eq!(refusal["id"], 9);
    assert_eq!(refusal["error"]["code"], -32602);
    assert_eq!(world.received().await, before);
    alice
        .call("sleep", json!({"ms": 1}))
        .await
        .expect("no rule concerns it");

    let issuer = &world.gw.issuer().name;
    let record = |method: &str, name: Option<&str>, outcome: &str, rule: Option<&str>| {
        let mut record = json!({
            "target": "audit", "issuer": issuer, "subject": "alice", "client": "test-client",
            "endpoint": "stub", "upstream": "stub", "method": method, "outcome": outcome,
        });
        for (key, value) in [("name", name), ("rule", rule)] {
            if let Some(value) = value {
                record[key] = value.into();
            }
        }
        record
    };
    let calls: Vec<Value> = audited(&world.gw, 3).await;
    assert_eq!(
        calls,
        [
            record("tools/list", None, "ok", None),
            record(
                "tools/call",
                Some("echo"),
                "denied",
                Some("auth.tool_scopes[0]")
            ),
            record("tools/call", Some("sleep"), "ok", None),
        ]
    );
    assert!(!world.gw.log().join("\n").contains("hunter2"));
    world.stop().await;
}

// SPEC A-11
#[tokio::test]
async fn scope_is_needed_for_every_spelling_of_a_tool() {
    let rule = "[[auth.tool_scopes]]\ntools = [\"ec*\"]\nscopes = [\"mcp:admin\"]\n";
    let world = Guarded::start_with(Setup::secured().toml(rule)).await;
    let alice = world.gw.principal("alice").open("/mcp/stub").await;
    let call = |name: &str| {
        let params = json!({"name": name, "arguments": {}});
        json!({"jsonrpc": "2.0", "id": 9, "method": "tools/call", "params": params})
    };
    let before = world.received().await;
    for name in ["ECHO", " echo", "Echo\n", "\u{feff}echo"] {
        assert_eq!(alice.post(&call(name)).await.status(), 403, "{name:?}");
    }
    assert_eq!(world.received().await, before);
    // An unlisted tool without a rule is forwarded: the server decides.
    let unlisted = alice.post(&call("unlisted")).await;
    assert_eq!(unlisted.error().await["message"], "Unknown tool: unlisted");
    world.stop().await;
}

// SPEC O-04
#[tokio::test]
async fn what_several_upstreams_answer_is_audited_for_each_of_them() {
    let gone = "[upstreams.gone]\nurl = \"http://127.0.0.1:9/mcp\"\n";
    let merged = "[mcp]\nupstreams = [\"stub\", \"gone\"]\nconnect_wait = \"500ms\"\n";
    let world = Guarded::start_with(Setup::secured().toml(merged).toml(gone)).await;
    let alice = world.gw.principal("alice").open("/mcp").await;
    alice.tools().await;
    alice
        .request("logging/setLevel", json!({"level": "error"}))
        .await
        .expect("a known level");
    let issuer = &world.gw.issuer().name;
    let record = |upstream: &str, method: &str, outcome: &str| {
        json!({
            "target": "audit", "issuer": issuer, "subject": "alice", "client": "test-client",
            "endpoint": "mcp", "upstream": upstream, "method": method, "outcome": outcome,
        })
    };
    let mut records = audited(&world.gw, 3).await;
    records.sort_by_key(|record| record["upstream"].as_str().map(str::to_owned));
    let expected = [
        record("gone", "tools/list", "failed"),
        record("stub", "tools/list", "ok"),
        record("stub", "logging/setLevel", "ok"),
    ];
    assert_eq!(records, expected);
    world.stop().await;
}

#[tokio::test]
async fn a_tool_that_an_endpoint_does_not_select_is_not_there() {
    let endpoint =
        "[endpoints.few]\nupstreams = [\"stub\"]\ntools = [\"stub:ec*\", \"stub:st*_get\"]\n";
    let world = Guarded::start_with(Setup::secured().toml(endpoint)).await;
    let alice = world.gw.principal("alice").open("/mcp/few").await;
    assert_eq!(alice.tools().await, ["echo", "state_get"]);
    let before = world.received().await;
    let refused = alice.call("sleep", json!({"ms": 1})).await;
    let error = refused.expect_err("hidden");
    assert_eq!(error["code"], -32602);
    assert_eq!(world.received().await, before);
    alice.text("echo", json!({"text": "hi"})).await;
    world.stop().await;
}

// SPEC M-37: authorization uses the message's own name and arguments, never the headers that repeat them.
#[tokio::test]
async fn rule_for_a_tool_looks_at_the_message_and_not_at_its_headers() {
    let rule = "[[auth.tool_scopes]]\ntools = [\"echo\"]\nscopes = [\"mcp:admin\"]\n";
    let world = Guarded::start_with(Setup::secured().toml(rule)).await;
    let alice = world.gw.principal("alice").open("/mcp/stub").await;
    let before = world.received().await;
    let call = |id: i64, tool: &str| {
        json!({"jsonrpc": "2.0", "id": id, "method": "tools/call",
               "params": {"name": tool, "arguments": {"ms": 1, "tenant": "a"}}})
    };
    let send = async |name: &str, message: &Value| {
        let mut headers = alice.headers();
        headers.extend([
            ("mcp-method", "tools/call"),
            ("mcp-name", name),
            ("mcp-param-tenant", "b"),
        ]);
        alice.actor.post("/mcp/stub", &headers, message).await
    };
    // The revisions of sessions do not have their headers compared with the message.
    let denied = send("sleep", &call(20, "echo")).await;
    assert_eq!(denied.status(), 403);
    assert_eq!(world.received().await, before);
    let taken = send("echo", &call(21, "sleep")).await;
    assert_eq!(taken.status(), 200);
    let taken = taken.message().await;
    assert!(taken["result"].is_object(), "{taken}");
    let modern = Modern::new(world.gw.principal("alice"), "/mcp/stub");
    let params = json!({"name": "echo", "arguments": {}});
    let request = modern.request(&json!(1), "tools/call", params);
    let lie = [
        ("mcp-protocol-version", VERSION),
        ("mcp-method", "tools/call"),
        ("mcp-name", "sleep"),
    ];
    let refused = modern.post_as(&lie, &request).await;
    assert_eq!(refused.status(), 400);
    assert_eq!(refused.error().await["code"], -32020);
    world.stop().await;
}
