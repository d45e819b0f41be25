//! Calls cancelled before the upstream reports that they became tasks. Spec: SPEC C-10, C-11; BRIDGING §3.8.

use std::path::Path;

use rstest::rstest;
use serde_json::{Value, json};

use crate::harness::{Gateway, Setup, eventually};
use crate::modern::Modern;

/// A child of either era whose tool begins a task only when the call is cancelled. The files `called` and `cancelled`
/// in `dir` record the call, and how the task was cancelled.
fn child(dir: &Path) -> String {
    const TASK: &str = r#""taskId":"late-1","status":"working","createdAt":"2026-07-28T00:00:00Z","lastUpdatedAt":"2026-07-28T00:00:00Z""#;
    let dir = dir.display();
    format!(
        r#"say() {{ printf '%s\n' '{{"jsonrpc":"2.0","id":'"$1,$2}}"; }}
        while read -r line; do
            id=$(printf '%s' "$line" | sed 's/.*"id":\([0-9]*\).*/\1/')
            case "$line" in
            *'"initialize"'*) era=legacy; say $id '"result":{{"protocolVersion":"2025-11-25","capabilities":{{"tools":{{}},"tasks":{{"cancel":{{}},"requests":{{"tools":{{"call":{{}}}}}}}}}},"serverInfo":{{"name":"late","version":"1"}}}}' ;;
            *server/discover*) era=modern; say $id '"result":{{"supportedVersions":["2026-07-28"],"capabilities":{{"tools":{{}},"extensions":{{"io.modelcontextprotocol/tasks":{{}}}}}}}}' ;;
            *'"tools/list"'*) say $id '"result":{{"tools":[{{"name":"late","inputSchema":{{"type":"object"}},"execution":{{"taskSupport":"required"}}}}]}}' ;;
            *'"tools/call"'*)
                case "$era $line" in
                legacy*'"task":'* | modern*io.modelcontextprotocol/tasks*) call=$id; : > {dir}/called ;;
                *) say $id '"error":{{"code":-32021,"message":"no","data":{{"requiredCapabilities":{{"extensions":{{"io.modelcontextprotocol/tasks":{{}}}}}}}}}}' ;;
                esac ;;
            *notifications/cancelled*)
                if [ $era = legacy ]; then say $call '"result":{{"task":{{{TASK},"ttl":60000}}}}'
                else say $call '"result":{{"resultType":"task",{TASK},"ttlMs":60000}}'; fi ;;
            *'"tasks/cancel"'*) printf '%s' "$line" > {dir}/cancel; mv {dir}/cancel {dir}/cancelled; say $id '"result":{{}}' ;;
            esac
        done"#
    )
}

async fn until(dir: &Path, what: &str) -> String {
    eventually(what, async || std::fs::read_to_string(dir.join(what)).ok()).await
}

/// The request that cancelled the task.
async fn cancelled(dir: &Path) -> Value {
    let line: Value = serde_json::from_str(&until(dir, "cancelled").await).unwrap();
    assert_eq!(line["params"]["taskId"], "late-1", "{line}");
    line
}

async fn behind(child: &str, era: &str) -> Gateway {
    let keys = format!("era = {era:?}");
    let setup = Setup::open().stdio("late", "sh", &["-c", child], &keys);
    setup.start().await
}

// With `task` the call is the client's own task, which is created too late for the client to learn its id.
#[rstest]
#[case::held("legacy", json!({}))]
#[case::held("modern", json!({}))]
#[case::carried("legacy", json!({"task": {}}))]
#[tokio::test]
async fn the_late_task_of_a_call_that_was_cancelled_is_cancelled(
    #[case] era: &str,
    #[case] params: Value,
) {
    let dir = tempfile::tempdir().unwrap();
    let gw = behind(&child(dir.path()), era).await;
    let user = gw.anonymous().open("/mcp/late").await;
    let mut params = params;
    params["name"] = "late".into();
    params["arguments"] = json!({});
    params["_meta"] = json!({"progressToken": "mine"});
    let (id, call) = user.start("tools/call", params).await;
    until(dir.path(), "called").await;
    let reason = json!({"requestId": id, "reason": "enough"});
    user.notify("notifications/cancelled", reason).await;
    let line = cancelled(dir.path()).await;
    assert!(line["params"]["_meta"].get("progressToken").is_none());
    let garbage = gw.metric("drawbridge_upstream_garbage_total", "late").await;
    assert!(garbage < 0.5, "{garbage}");
    drop(call);
    gw.stop().await;
}

#[rstest]
#[tokio::test]
async fn the_late_task_of_a_client_that_went_away_is_cancelled(
    #[values("legacy", "modern")] era: &str,
    #[values(json!({}), json!({"io.modelcontextprotocol/tasks": {}}))] extensions: Value,
) {
    let dir = tempfile::tempdir().unwrap();
    let gw = behind(&child(dir.path()), era).await;
    let capabilities = json!({"extensions": extensions});
    let user = Modern::with(gw.anonymous(), "/mcp/late", capabilities);
    tokio::select! {
        reply = user.call("late", json!({})) => panic!("{reply:?}"),
        _ = until(dir.path(), "called") => {}
    }
    cancelled(dir.path()).await;
    gw.stop().await;
}

#[tokio::test]
async fn the_late_task_under_a_hosted_one_is_cancelled_with_that() {
    let dir = tempfile::tempdir().unwrap();
    let gw = behind(&child(dir.path()), "modern").await;
    let user = gw.anonymous().open("/mcp/late").await;
    let params = json!({"name": "late", "arguments": {}, "task": {}});
    let begun = user.request("tools/call", params).await.unwrap();
    until(dir.path(), "called").await;
    let task = json!({"taskId": begun["task"]["taskId"]});
    let ended = user.request("tasks/cancel", task).await.unwrap();
    assert_eq!(ended["status"], "cancelled", "{ended}");
    cancelled(dir.path()).await;
    gw.stop().await;
}
