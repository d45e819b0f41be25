//! Notifications toward the client, and requests toward the upstream. Spec: BRIDGING §3.9.

use serde_json::{Value, json};

use super::super::*;
use super::{R1, R2, R3, R4, R5};

fn notice(kind: NoticeKind, method: &str, params: &Value) -> Notice {
    let text = json!({"jsonrpc": "2.0", "method": method, "params": params}).to_string();
    Notice {
        kind,
        bytes: text.into(),
    }
}

// SPEC C-03.
#[test]
fn progress_has_no_message_in_the_first_revision() {
    let token = || NoticeKind::Progress { token: "1".into() };
    let params = json!({"progressToken": 1, "progress": 1, "message": "m"});
    let progress = || notice(token(), "notifications/progress", &params);
    let told = RevisionProjection::new(R4, R1).notice(progress()).unwrap();
    assert!(!String::from_utf8_lossy(&told.bytes).contains("message\""));
    let told = RevisionProjection::new(R4, R2).notice(progress()).unwrap();
    assert_eq!(told, progress());
}

#[test]
fn a_notice_is_told_only_to_revisions_that_have_it() {
    let complete = || {
        let id = json!({"elicitationId": "e"});
        notice(NoticeKind::ElicitationComplete, ELICITATION_COMPLETE, &id)
    };
    assert!(RevisionProjection::new(R4, R4).notice(complete()).is_some());
    assert!(RevisionProjection::new(R4, R3).notice(complete()).is_none());
    assert!(RevisionProjection::new(R4, R5).notice(complete()).is_none());
    let task = || notice(NoticeKind::Other, "notifications/tasks/status", &json!({}));
    assert!(RevisionProjection::new(R4, R5).notice(task()).is_none());
    let own = || notice(NoticeKind::Other, "notifications/acme/x", &json!({}));
    assert!(RevisionProjection::new(R4, R5).notice(own()).is_some());
}

fn requested(from: Revision, to: Option<Revision>, method: &str, params: &Value) -> Value {
    let text = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string();
    let message = Message::parse(text.into(), 128).unwrap();
    let bytes = request(from, to, &message).unwrap_or_else(|| message.bytes().clone());
    let sent: Value = serde_json::from_slice(&bytes).unwrap();
    sent["params"].clone()
}

#[test]
fn a_legacy_upstream_sees_nothing_of_the_modern_envelope() {
    let params = json!({"name": "t", "inputResponses": {}, "requestState": "s", "task": {}, "_meta": {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {},
        "io.modelcontextprotocol/clientCapabilities": {},
        "io.modelcontextprotocol/logLevel": "info",
        "progressToken": 1, "own": 2
    }});
    let bare = json!({"name": "t", "_meta": {"progressToken": 1, "own": 2}});
    assert_eq!(requested(R5, Some(R4), "tools/call", &params), bare);
    assert_eq!(requested(R5, None, "tools/call", &params), bare);
    assert_eq!(requested(R5, Some(R5), "tools/call", &params), params);
    // SPEC K-02: an upstream that did not advertise tasks gets no `task` parameter.
    let mut without = params.clone();
    without.as_object_mut().unwrap().remove("task");
    assert_eq!(requested(R4, Some(R4), "tools/call", &params), without);
}

// SPEC C-30.
#[test]
fn the_context_of_a_completion_goes_only_where_it_is_known() {
    let params = json!({"ref": {}, "context": {"arguments": {}}});
    assert_eq!(
        requested(R4, Some(R2), "completion/complete", &params),
        json!({"ref": {}})
    );
    assert_eq!(
        requested(R4, Some(R3), "completion/complete", &params),
        params
    );
}
