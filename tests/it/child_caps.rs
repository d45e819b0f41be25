//! More stdio upstreams behind one endpoint than a caller may have children.
//! Spec: DESIGN §6; SPEC G-03.

use serde_json::json;

use crate::harness::{Gateway, Setup};

/// A server with one tool, `plain`.
const CHILD: &str = r#"
result() { printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$id" "$1"; }
while read -r line; do
    id=$(printf '%s' "$line" | sed 's/.*"id":\([0-9]*\).*/\1/')
    case "$line" in
        *'"initialize"'*) result '{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"s","version":"1"}}' ;;
        *'"tools/list"'*) result '{"tools":[{"name":"plain","inputSchema":{"type":"object"}}]}' ;;
        *'"plain"'*) result '{"content":[{"type":"text","text":"plain"}]}' ;;
    esac
done"#;

/// A gateway with `count` upstreams and four children for one caller.
async fn gateway(count: usize) -> Gateway {
    let tables = "[stdio]\nmax_children_per_principal = 4\nspawn_wait = \"1m\"\n\
                  [lists]\nfresh = \"0s\"\n[mcp]\nconnect_wait = \"1m\"";
    let mut setup = Setup::open().toml(tables);
    for number in 0..count {
        let name = format!("up{number}");
        setup = setup.stdio(&name, "sh", &["-c", CHILD], "era = \"legacy\"");
    }
    setup.start().await
}

#[tokio::test]
async fn session_over_the_cap_keeps_its_children() {
    let gw = gateway(6).await;
    let user = gw.anonymous().open("/mcp").await;
    let first = user.tools().await;
    assert_eq!(first.len(), 4, "{first:?}");
    for _ in 1..8 {
        assert_eq!(user.tools().await, first);
    }
    for tool in &first {
        assert_eq!(user.text(tool, json!({})).await, "plain");
    }
    let starts = gw.metric("drawbridge_children_spawned_total", "").await;
    assert!((3.5..4.5).contains(&starts), "{starts}");
    // The log and the metric say which upstreams are left out, and why.
    for number in 0..6 {
        let name = format!("up{number}");
        let is_shown = first.contains(&format!("{name}__plain"));
        let skipped = gw.metric("drawbridge_upstream_skipped_total", &name).await;
        assert_eq!(is_shown, skipped < 0.5, "{name}: {skipped}");
        let why = "this session holds all 4 that stdio.max_children_per_principal allows";
        let mut log = gw.log().into_iter();
        let is_told = log.any(|line| line.contains(&name) && line.contains(why));
        assert_eq!(is_told, !is_shown, "{name}");
    }
    gw.stop().await;
}
