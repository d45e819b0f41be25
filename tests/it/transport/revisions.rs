//! Negotiation of a session's revision.

use serde_json::json;

use crate::harness::Setup;
use crate::harness::http::everything;

// Spec: SPEC L-01, L-02.
#[tokio::test]
async fn initialize_negotiates_a_served_legacy_revision() {
    let gw = Setup::open().stub("stub", &[]).start().await;
    for (asked, given) in [
        ("2024-11-05", "2024-11-05"),
        ("2025-03-26", "2025-03-26"),
        ("2025-06-18", "2025-06-18"),
        ("2025-11-25", "2025-11-25"),
        ("2026-07-28", "2025-11-25"),
        ("2099-01-01", "2025-11-25"),
    ] {
        for path in ["/mcp", "/mcp/stub"] {
            let user = gw.anonymous().open_as(path, asked, everything()).await;
            assert_eq!(user.revision, given, "{path}, {asked}");
            assert!(user.hello["serverInfo"]["name"].is_string());
            assert!(user.hello["capabilities"]["tools"].is_object());
            assert_eq!(user.text("echo", json!({"text": "x"})).await, "x");
        }
    }
    gw.stop().await;
}

// Spec: SPEC L-05.
#[tokio::test]
async fn the_upstream_hears_the_capabilities_of_this_client() {
    let gw = Setup::open().stub("stub", &[]).start().await;
    for capabilities in [json!({}), everything()] {
        let user = gw
            .anonymous()
            .open_as("/mcp/stub", "2025-11-25", capabilities.clone())
            .await;
        let info = user.text("session_info", json!({})).await;
        let info: serde_json::Value = serde_json::from_str(&info).unwrap();
        for capability in ["sampling", "elicitation", "roots"] {
            let declared = capabilities.get(capability).is_some();
            let heard = info["client"].to_string().contains(capability);
            assert_eq!(heard, declared, "{capability}: {info}");
        }
    }
    gw.stop().await;
}
