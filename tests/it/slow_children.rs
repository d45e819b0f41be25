//! Children that start slowly, answer in part or not at all: the number of starts.
//! Spec: SPEC D-07, D-08; `docs/adr/0008`.

use rstest::rstest;
use serde_json::json;

use crate::harness::http::initialize;
use crate::harness::session::text_of;
use crate::harness::{Gateway, Setup, within};
use crate::modern::Modern;

const INITIALIZED: &str = r#"{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"slow","version":"1"}}"#;
const DISCOVERED: &str = r#"{"supportedVersions":["2026-07-28"],"capabilities":{"tools":{}}}"#;
const PLAIN: &str = r#"{"content":[{"type":"text","text":"plain"}]}"#;

/// A server in shell: `before`, then `cases` of a request, whose id is `$id`.
fn server(before: &str, cases: &str) -> String {
    format!(
        r#"result() {{ printf '{{"jsonrpc":"2.0","id":%s,"result":%s}}\n' "$id" "$1"; }}
        refuse() {{ printf '{{"jsonrpc":"2.0","id":%s,"error":{{"code":-32601,"message":"what?"}}}}\n' "$id"; }}
        {before}
        while read -r line; do
            id=$(printf '%s' "$line" | sed 's/.*"id":\([0-9]*\).*/\1/')
            case "$line" in {cases} *'"plain"'*) result '{PLAIN}' ;; esac
        done"#
    )
}

fn cases(discover: &str, initialize: &str) -> String {
    format!("*server/discover*) {discover} ;; *'\"initialize\"'*) {initialize} ;;")
}

fn legacy() -> String {
    cases("refuse", &format!("result '{INITIALIZED}'"))
}

fn dual() -> String {
    let answers = [DISCOVERED, INITIALIZED].map(|answer| format!("result '{answer}'"));
    cases(&answers[0], &answers[1])
}

fn modern() -> String {
    cases(&format!("result '{DISCOVERED}'"), "refuse")
}

async fn starts(gw: &Gateway) -> f64 {
    gw.metric("drawbridge_children_spawned_total", "").await
}

fn is(count: f64, expected: u32) -> bool {
    (count - f64::from(expected)).abs() < f64::EPSILON
}

/// The text that the tool `plain` gives a client of this era.
async fn plain(gw: &Gateway, era: &str) -> String {
    let user = gw.anonymous();
    if era == "legacy" {
        let user = user.open("/mcp/slow").await;
        return user.text("plain", json!({})).await;
    }
    let user = Modern::new(user, "/mcp/slow");
    let called = user.call("plain", json!({})).await.expect("a result");
    text_of(&called).to_owned()
}

// The child is silent for more than half of `connect_timeout`, and longer than the 2 s after which
// a session is offered beside the unanswered `server/discover`.
#[rstest]
#[case::legacy_server(legacy(), "legacy")]
#[case::legacy_server_and_modern_client(legacy(), "modern")]
#[case::dual_server(dual(), "legacy")]
#[case::dual_server_and_modern_client(dual(), "modern")]
#[case::modern_server_and_modern_client(modern(), "modern")]
#[tokio::test]
async fn slow_child_is_started_once(#[case] cases: String, #[case] client: &str) {
    let slow = server("sleep 5", &cases);
    let keys = "connect_timeout = \"8s\"";
    let setup = Setup::open().stdio("slow", "sh", &["-c", &slow], keys);
    let gw = setup.start().await;
    assert_eq!(plain(&gw, client).await, "plain");
    assert!(is(starts(&gw).await, 1), "{}", starts(&gw).await);
    gw.stop().await;
}

// Spec: SPEC D-08. A child may sulk after a request that it does not know.
#[tokio::test]
async fn half_an_answer_takes_a_second_child() {
    let dir = tempfile::tempdir().unwrap();
    // The first child wants a handshake before anything else, and refuses the handshake after another request.
    let sulks = format!(
        r"if mkdir {}/first; then
            read -r asked; read -r greeted; id=1; refuse; cat > /dev/null; exit
        fi",
        dir.path().display()
    );
    let slow = server(&sulks, &legacy());
    let keys = "connect_timeout = \"1m\"";
    let setup = Setup::open().stdio("slow", "sh", &["-c", &slow], keys);
    let gw = setup.start().await;
    let replied = Box::pin(within("a reply", plain(&gw, "legacy"))).await;
    assert_eq!(replied, "plain");
    assert!(is(starts(&gw).await, 2), "{}", starts(&gw).await);
    gw.stop().await;
}

// Spec: SPEC D-08. An answer that comes once more says nothing of the era, and costs no second child.
#[tokio::test]
async fn only_first_answer_to_initialize_counts() {
    let twice = cases(":", &format!("result '{INITIALIZED}'; refuse"));
    let slow = server("", &twice);
    let keys = "connect_timeout = \"1m\"";
    let setup = Setup::open().stdio("slow", "sh", &["-c", &slow], keys);
    let gw = setup.start().await;
    assert_eq!(
        Box::pin(within("a reply", plain(&gw, "legacy"))).await,
        "plain"
    );
    assert!(is(starts(&gw).await, 1), "{}", starts(&gw).await);
    gw.stop().await;
}

// Spec: SPEC D-08. A child may stop reading after a request that it does not know.
#[tokio::test]
async fn mute_child_is_replaced_at_the_next_attempt() {
    let wedges = cases("cat > /dev/null", &format!("result '{INITIALIZED}'"));
    let slow = server("", &wedges);
    let keys = "connect_timeout = \"4s\"";
    let setup = Setup::open().stdio("slow", "sh", &["-c", &slow], keys);
    let gw = setup.start().await;
    let hello = initialize(1, "2025-11-25", &json!({}));
    let answer = gw.anonymous().post("/mcp/slow", &[], &hello).await;
    let said = answer.text().await;
    assert!(said.contains("did not answer in time"), "{said}");
    assert!(is(starts(&gw).await, 1), "{}", starts(&gw).await);
    assert_eq!(plain(&gw, "legacy").await, "plain");
    assert!(is(starts(&gw).await, 2), "{}", starts(&gw).await);
    gw.stop().await;
}
