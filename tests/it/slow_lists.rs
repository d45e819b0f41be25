//! Merged endpoints beside upstreams that list slowly, hang, or start slowly. Spec: SPEC G-03;
//! BRIDGING §5.6, §5.7.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use rstest::rstest;
use serde_json::{Value, json};

use crate::harness::upstream::HttpStub;
use crate::harness::{Gateway, Session, Setup, eventually, peers, within};
use crate::modern::Modern;

const TOOLS_CHANGED: &str = "notifications/tools/list_changed";
const PROMPTS_CHANGED: &str = "notifications/prompts/list_changed";

/// A merged list waits for so long.
const SHORT: &str = "[mcp]\nconnect_wait = \"300ms\"\n";

async fn lists(user: &Session, tool: &str) -> bool {
    user.tools().await.contains(&tool.to_owned())
}

// With the default configuration, which waits for three of the five seconds.
#[tokio::test]
async fn a_list_of_five_seconds_is_shown_and_announced() {
    if !peers::are_installed() {
        return;
    }
    let script = peers::script("servers/slow_lister.mjs");
    let setup = Setup::open().stdio("slow", &peers::node(), &[&script], "");
    let gw = setup.stub("fast", &[]).start().await;
    let user = gw.anonymous().open("/mcp").await;
    let mut stream = user.listen().await;
    assert!(lists(&user, "fast__echo").await);
    assert!(!lists(&user, "slow__slow").await, "it lists slowly");
    let first = within("the announcement", stream.message()).await.unwrap();
    assert_eq!(first["method"], TOOLS_CHANGED);
    assert!(lists(&user, "slow__slow").await);
    // The next notice is this change's: no other was sent in between.
    user.text("fast__change_prompts", json!({})).await;
    let next = within("the next notice", stream.message()).await.unwrap();
    assert_eq!(next["method"], PROMPTS_CHANGED);
    gw.stop().await;
}

/// A gateway before a stub that takes 1.5 s for each list, and one that is fast.
async fn beside_a_slow_one(options: &[&str], tables: &str) -> (Gateway, HttpStub) {
    let slow = HttpStub::start(&[&["--list-delay", "1500"], options].concat()).await;
    let setup = Setup::open().http("slow", &slow, "").stub("fast", &[]);
    let setup = setup.toml(SHORT).toml(tables);
    (setup.start().await, slow)
}

// The upstream announces no changes: a list asked for before its stream for notices opened would be
// looked at once more.
#[tokio::test]
async fn a_slow_list_is_asked_for_once_by_all_who_wait() {
    let (gw, slow) = beside_a_slow_one(&["--no-listchanged"], "[lists]\nfresh = \"1h\"\n").await;
    let user = gw.anonymous().open("/mcp").await;
    let listed = join_all((0..4).map(|_| lists(&user, "slow__echo"))).await;
    assert_eq!(listed, [false; 4]);
    eventually("the slow list", async || {
        lists(&user, "slow__echo").await.then_some(())
    })
    .await;
    assert_eq!(slow.counted("tools/list").await, 1);
    gw.stop().await;
}

// Also where no list may be kept, and while the upstream is asked again.
#[rstest]
#[tokio::test]
async fn a_slow_list_that_was_shown_stays(#[values("legacy", "modern")] era: &str) {
    let (gw, _slow) = beside_a_slow_one(&[], "[lists]\nfresh = \"0s\"\n").await;
    let session = gw.anonymous().open("/mcp").await;
    let modern = Modern::new(gw.anonymous(), "/mcp");
    let is_shown = async || {
        let listed = match era {
            "legacy" => session.request("tools/list", json!({})).await,
            _ => modern.send("tools/list", json!({})).await,
        };
        listed.unwrap().to_string().contains("\"slow__echo\"")
    };
    assert!(!is_shown().await);
    eventually("the slow list", async || is_shown().await.then_some(())).await;
    for _ in 0..10 {
        assert!(is_shown().await);
    }
    gw.stop().await;
}

// Neither the call nor the notice of the change takes the tools away.
#[tokio::test]
async fn a_slow_list_that_changes_stays_until_it_came() {
    let (gw, _slow) = beside_a_slow_one(&[], "").await;
    let user = gw.anonymous().open("/mcp").await;
    let mut stream = user.listen().await;
    assert!(!lists(&user, "slow__echo").await);
    stream.until(TOOLS_CHANGED).await;
    assert!(lists(&user, "slow__echo").await);
    user.text("slow__change_tools", json!({})).await;
    eventually("the change", async || {
        let tools = user.tools().await;
        assert!(tools.contains(&"slow__echo".to_owned()), "{tools:?}");
        tools.contains(&"slow__extra".to_owned()).then_some(())
    })
    .await;
    gw.stop().await;
}

// The level is sent to the upstream once more before its next call, which waits for the answer as briefly as a list.
#[tokio::test]
async fn a_log_level_waits_for_no_hung_upstream() {
    let deaf = HttpStub::start(&["--deaf-to", "logging/setLevel"]).await;
    let setup = Setup::open().http("deaf", &deaf, "").stub("fast", &[]);
    let gw = setup.toml(SHORT).start().await;
    let user = gw.anonymous().open("/mcp").await;
    for tool in ["deaf__echo", "fast__echo"] {
        user.text(tool, json!({})).await;
    }
    let level = json!({"level": "debug"});
    let set = user.request("logging/setLevel", level);
    assert_eq!(within("the level", set).await, Ok(json!({})));
    let heard = async || deaf.counted("deaf").await;
    assert_eq!(heard().await, 1);
    for _ in 0..3 {
        within("a call", user.text("deaf__echo", json!({}))).await;
        assert_eq!(heard().await, 2);
    }
    let stats = user.text("fast__stats", json!({})).await;
    let stats: Value = serde_json::from_str(&stats).unwrap();
    assert_eq!(stats["counts"]["logging/setLevel"], 1, "{stats}");
    gw.stop().await;
}

// Otherwise each session would make its own request after the one it joined had timed out.
#[tokio::test]
async fn joined_lists_fail_with_the_one_they_joined() {
    let hung = HttpStub::start(&["--deaf-to", "tools/list"]).await;
    let keys = "idle_timeout = \"3s\"";
    let gw = Setup::secured().http("hung", &hung, keys).start().await;
    let mut users = Vec::new();
    for _ in 0..4 {
        users.push(gw.principal("alice").open("/mcp/hung").await);
    }
    let requests = users
        .iter()
        .map(|user| user.request("tools/list", json!({})));
    let failed = within("the failures", join_all(requests)).await;
    assert!(failed.iter().all(Result::is_err), "{failed:?}");
    assert_eq!(hung.counted("deaf").await, 1);
    gw.stop().await;
}

// The first list waits for upstreams that are not ready.
#[rstest]
#[tokio::test]
async fn a_cold_hello_waits_a_second_and_the_list_longer(#[values("legacy", "modern")] era: &str) {
    let setup = Setup::open().toml("[mcp]\nconnect_wait = \"20s\"");
    let setup = setup.stub("slow", &["--slow-start", "6000"]);
    let gw = setup.stub("fast", &[]).start().await;
    let began = Instant::now();
    let list = if era == "legacy" {
        let user = gw.anonymous().open("/mcp").await;
        assert!(began.elapsed() < Duration::from_secs(4), "it waited");
        let told = &user.hello["capabilities"];
        for member in ["tools", "prompts", "resources", "logging", "completions"] {
            assert!(told[member].is_object(), "{told}");
        }
        user.request("tools/list", json!({})).await
    } else {
        let user = Modern::new(gw.anonymous(), "/mcp");
        user.send("server/discover", json!({})).await.unwrap();
        assert!(began.elapsed() < Duration::from_secs(4), "it waited");
        user.send("tools/list", json!({})).await
    };
    let list = list.unwrap().to_string();
    assert!(list.contains("slow__echo"), "{list}");
    gw.stop().await;
}

// Otherwise each list that tries the hung upstream again would take the whole `mcp.connect_wait`.
#[tokio::test]
async fn what_overran_is_not_waited_for_at_length_again() {
    let silent = ["--probe", "silent", "--handshake", "silent"];
    let setup = Setup::open().toml("[mcp]\nconnect_wait = \"6s\"");
    let setup = setup.stub_with("hung", &silent, "connect_timeout = \"5m\"");
    let gw = setup.stub("fast", &[]).start().await;
    let first = gw.anonymous().open("/mcp").await;
    assert!(lists(&first, "fast__echo").await);
    // For longer than it is left alone after two failures.
    let all = Instant::now();
    while all.elapsed() < Duration::from_secs(4) {
        let began = Instant::now();
        let user = gw.anonymous().open("/mcp").await;
        assert!(lists(&user, "fast__echo").await);
        assert!(began.elapsed() < Duration::from_secs(5), "it waited");
        user.delete().await;
        // A new client now and then.
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    gw.stop().await;
}
