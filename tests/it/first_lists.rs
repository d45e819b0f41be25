//! First lists of a merged endpoint: the wait for upstreams that start, the stand-in for a late upstream, and the mark
//! of an incomplete list. Spec: SPEC G-03; BRIDGING §5.3, §5.6.

use std::time::{Duration, Instant};

use rstest::rstest;
use serde_json::{Value, json};

use crate::harness::{Gateway, Setup, eventually, within};
use crate::modern::Modern;

const MISSING: &str = "dev.drawbridge/missing";
const TOOLS_CHANGED: &str = "notifications/tools/list_changed";

/// A child that never answers.
const NEVER: (&str, &[&str]) = ("sleep", &["1000"]);

/// A merged list: the tools, and the missing upstreams.
#[derive(Debug)]
struct Listed {
    tools: Vec<String>,
    missing: Value,
    took: Duration,
}

impl Listed {
    fn read(result: &Value, began: Instant) -> Self {
        let tools = result["tools"].as_array().expect("tools");
        let name = |tool: &Value| tool["name"].as_str().unwrap().to_owned();
        Self {
            tools: tools.iter().map(name).collect(),
            missing: result["_meta"][MISSING].clone(),
            took: began.elapsed(),
        }
    }

    fn has(&self, tool: &str) -> bool {
        self.tools.iter().any(|name| name == tool)
    }
}

async fn list(user: &crate::harness::Session) -> Listed {
    let began = Instant::now();
    let result = user.request("tools/list", json!({})).await;
    Listed::read(&result.expect("a list"), began)
}

/// A client that asks for tools once, with nothing known before, as one-shot programs do.
async fn list_once(gw: &Gateway, era: &str) -> Listed {
    if era == "legacy" {
        return list(&gw.anonymous().open("/mcp").await).await;
    }
    let began = Instant::now();
    let user = Modern::new(gw.anonymous(), "/mcp");
    let result = user.send("tools/list", json!({})).await;
    Listed::read(&result.expect("a list"), began)
}

#[rstest]
#[tokio::test]
async fn first_list_waits_for_first_start(#[values("legacy", "modern")] era: &str) {
    let setup = Setup::open().stub("slow", &["--slow-start", "5000"]);
    let gw = setup.stub("fast", &[]).start().await;
    let listed = list_once(&gw, era).await;
    assert!(listed.has("slow__echo") && listed.has("fast__echo"));
    assert_eq!(listed.missing, Value::Null);
    gw.stop().await;
}

// Most clients list once, and an empty list would look like success.
#[rstest]
#[tokio::test]
async fn first_list_waits_longest_while_no_upstream_has_answered(
    #[values("legacy", "modern")] era: &str,
) {
    let setup = Setup::open().toml("[mcp]\nconnect_wait = \"300ms\"\nfirst_wait = \"1s\"");
    let setup = setup
        .stub("one", &["--slow-start", "4000"])
        .stub("two", &["--slow-start", "4000"])
        .stdio("never", NEVER.0, NEVER.1, "connect_timeout = \"1m\"");
    let gw = setup.start().await;
    let listed = list_once(&gw, era).await;
    assert!(listed.has("one__echo"), "{listed:?}");
    assert!(listed.took < Duration::from_secs(12), "{listed:?}");
    assert_eq!(listed.missing["never"], "starting", "{listed:?}");
    gw.stop().await;
}

// Two upstreams start slowly, `never` does not start, `fast` is ready: the lists that each kind of client sees.
#[tokio::test]
async fn list_without_an_upstream_says_so_and_is_completed_later() {
    let setup = Setup::open().toml("[mcp]\nconnect_wait = \"300ms\"\nfirst_wait = \"2s\"");
    let slow = ["--slow-start", "7000"];
    let setup = setup
        .stub("fast", &[])
        .stub("slow", &slow)
        .stub("late", &slow)
        .stdio("never", NEVER.0, NEVER.1, "connect_timeout = \"1m\"");
    let gw = setup.start().await;
    let user = gw.anonymous().open("/mcp").await;
    let said = user.hello["instructions"].as_str().unwrap_or_default();
    assert!(
        said.contains("Not ready yet: `slow`, `late`, `never`."),
        "{said}"
    );
    assert_eq!(user.hello["_meta"][MISSING]["slow"], "starting");
    let mut stream = user.listen().await;
    let first = list(&user).await;
    assert!(first.has("fast__echo"), "{first:?}");
    let starting = json!({"slow": "starting", "late": "starting", "never": "starting"});
    assert_eq!(first.missing, starting);
    assert!(first.took < Duration::from_secs(6), "{first:?}");
    // A client that obeys `list_changed`.
    stream.until(TOOLS_CHANGED).await;
    eventually("both slow ones", async || {
        let listed = list(&user).await;
        let whole = listed.has("slow__echo") && listed.has("late__echo");
        whole.then(|| assert_eq!(listed.missing, json!({"never": "starting"})))
    })
    .await;
    // A client that begins now.
    let fresh = gw.anonymous().open("/mcp").await;
    assert_eq!(fresh.hello["_meta"][MISSING], json!({"never": "starting"}));
    gw.stop().await;
}

#[tokio::test]
async fn upstream_that_failed_is_named_and_not_waited_for() {
    let gone = "http://127.0.0.1:9/mcp";
    let setup = Setup::open().url("down", gone, "").stub("fast", &[]);
    let gw = setup.start().await;
    for era in ["legacy", "modern"] {
        let listed = list_once(&gw, era).await;
        assert!(listed.has("fast__echo"), "{listed:?}");
        assert_eq!(listed.missing, json!({"down": "unreachable"}));
    }
    let user = gw.anonymous().open("/mcp").await;
    let said = user.hello["instructions"].as_str().unwrap_or_default();
    assert!(said.contains("Not available now: `down`."), "{said}");
    assert!(!said.contains("127.0.0.1"), "{said}");
    let modern = Modern::new(gw.anonymous(), "/mcp");
    let said = modern.send("server/discover", json!({})).await.unwrap();
    assert_eq!(said["_meta"][MISSING], json!({"down": "unreachable"}));
    gw.stop().await;
}

// Each session has a child of its own, which takes as long as the first one did.
#[tokio::test]
async fn known_list_stands_in_for_a_child_that_starts() {
    let setup = Setup::secured().stub("slow", &["--slow-start", "3000"]);
    let gw = setup.stub("fast", &[]).start().await;
    let first = gw.principal("alice").open("/mcp").await;
    let whole = list(&first).await;
    assert_eq!(whole.missing, Value::Null);
    let second = gw.principal("bob").open("/mcp").await;
    let listed = list(&second).await;
    assert_eq!(listed.tools, whole.tools);
    assert_eq!(listed.missing, json!({"slow": "last_known"}));
    // A call by name works meanwhile; once the child is up, `missing` is empty.
    let called = second.text("slow__echo", json!({})).await;
    assert_eq!(called, "{}");
    eventually("its own list", async || {
        (list(&second).await.missing == Value::Null).then_some(())
    })
    .await;
    gw.stop().await;
}

// Lists fetched by a session after its own calls may be private to the session.
#[tokio::test]
async fn list_of_a_session_that_called_tools_stands_in_for_nobody() {
    let setup = Setup::secured().stub("slow", &["--slow-start", "3000"]);
    let gw = setup.stub("fast", &[]).start().await;
    let first = gw.principal("alice").open("/mcp").await;
    first.text("slow__change_tools", json!({})).await;
    eventually("its changed list", async || {
        list(&first).await.has("slow__extra").then_some(())
    })
    .await;
    let second = gw.principal("bob").open("/mcp").await;
    let listed = list(&second).await;
    assert!(listed.has("fast__echo") && !listed.has("slow__extra"));
    gw.stop().await;
}

#[rstest]
#[tokio::test]
async fn warm_upstream_is_listed_before_the_first_client(#[values("legacy", "modern")] era: &str) {
    let setup = Setup::open().toml("[mcp]\nwarm = [\"slow\"]\nconnect_wait = \"300ms\"");
    let setup = setup.stub("slow", &["--slow-start", "3000"]);
    let gw = setup.stub("fast", &[]).start().await;
    eventually("the warm list", async || {
        let is_told = |line: &String| line.contains("warm upstream is listed");
        gw.log().iter().any(is_told).then_some(())
    })
    .await;
    let listed = list_once(&gw, era).await;
    assert!(listed.has("slow__echo") && listed.has("fast__echo"));
    assert_eq!(listed.missing, json!({"slow": "last_known"}));
    gw.stop().await;
}

#[tokio::test]
async fn warm_upstream_that_fails_is_tried_again_and_told() {
    let setup = Setup::open().toml("[mcp]\nwarm = [\"down\"]");
    let setup = setup.stdio("down", "false", &[], "").stub("fast", &[]);
    let gw = setup.start().await;
    let attempts = async || {
        let is_told = |line: &&String| line.contains("warm upstream cannot be listed");
        gw.log().iter().filter(is_told).count()
    };
    eventually("two attempts", async || {
        (attempts().await >= 2).then_some(())
    })
    .await;
    let listed = Box::pin(within("a list", list_once(&gw, "legacy"))).await;
    assert!(listed.has("fast__echo"), "{listed:?}");
    gw.stop().await;
}

/// Servers that start at once, after 15 s, and never.
const FINE: [&str; 5] = ["one", "two", "three", "four", "five"];
const SLOW: [&str; 2] = ["slow", "late"];
const MUTE: &str = "never";

/// The above upstreams whose tools are in a list.
fn upstreams_in(listed: &Listed) -> Vec<&'static str> {
    let all = FINE.iter().chain(&SLOW).chain([&MUTE]);
    all.filter(|name| listed.has(&format!("{name}__echo")))
        .copied()
        .collect()
}

/// The client's latest list at this second.
fn seen_at(lists: &[(Duration, Listed)], second: u64) -> Option<&Listed> {
    let last = Duration::from_secs(second);
    let so_far = lists.iter().take_while(|(at, _)| *at <= last);
    so_far.last().map(|(_, listed)| listed)
}

/// The lists of a client that lists at first and after every `list_changed`, until this long after `began`.
async fn lists_of_one_that_obeys(
    gw: &Gateway,
    began: Instant,
    until: Duration,
) -> Vec<(Duration, Listed)> {
    let user = gw.anonymous().open("/mcp").await;
    let mut stream = user.listen().await;
    let mut lists = Vec::new();
    loop {
        let listed = list(&user).await;
        lists.push((began.elapsed(), listed));
        let left = until.saturating_sub(began.elapsed());
        let changed = tokio::time::timeout(left, stream.until(TOOLS_CHANGED));
        if changed.await.is_err() {
            return lists;
        }
    }
}

// Most clients list once, or ignore `list_changed`: their tools after 1, 5 and 20 s, and how often each server was
// started for them. All clients are one principal, with one child per server for legacy clients and one for modern.
#[tokio::test]
async fn each_kind_of_client_sees_slow_servers_come() {
    let isolation = "isolation = \"principal\"";
    let mut setup = Setup::open();
    for name in FINE {
        setup = setup.stub_with(name, &[], isolation);
    }
    for name in SLOW {
        setup = setup.stub_with(name, &["--slow-start", "15000"], isolation);
    }
    let gw = setup.stdio(MUTE, NEVER.0, NEVER.1, isolation).start().await;
    let began = Instant::now();
    let once = async |era| {
        let listed = list_once(&gw, era).await;
        vec![(began.elapsed(), listed)]
    };
    let ignores = async {
        let user = gw.anonymous().open("/mcp").await;
        let listed = list(&user).await;
        (user, vec![(began.elapsed(), listed)])
    };
    let end = Duration::from_secs(20);
    let (legacy, modern, (user, stale), obeyed) = tokio::join!(
        once("legacy"),
        once("modern"),
        ignores,
        lists_of_one_that_obeys(&gw, began, end),
    );
    let all_three = json!({"slow": "starting", "late": "starting", "never": "starting"});
    for lists in [&legacy, &modern, &stale, &obeyed] {
        assert!(seen_at(lists, 1).is_none(), "it waits: {lists:?}");
        assert!(seen_at(lists, 5).is_none(), "it waits: {lists:?}");
        let (at, first) = &lists[0];
        assert!(*at < Duration::from_secs(15), "{lists:?}");
        assert_eq!(upstreams_in(first), FINE, "{lists:?}");
        assert_eq!(first.missing, all_three);
    }
    for lists in [&legacy, &modern, &stale] {
        let last = seen_at(lists, 20).expect("a list");
        assert_eq!(upstreams_in(last), FINE, "{lists:?}");
    }
    let ready = [&FINE[..], &SLOW[..]].concat();
    let last = seen_at(&obeyed, 20).expect("a list");
    assert_eq!(upstreams_in(last), ready, "{obeyed:?}");
    assert_eq!(last.missing, json!({"never": "starting"}));
    assert!(obeyed.len() <= 4, "{obeyed:?}");
    // A client that ignores the notice may call a tool that is not in its list.
    assert_eq!(user.text("slow__echo", json!({})).await, "{}");
    for era in ["legacy", "modern"] {
        let fresh = list_once(&gw, era).await;
        assert_eq!(upstreams_in(&fresh), ready, "{fresh:?}");
        assert_eq!(fresh.missing, json!({"never": "starting"}));
        assert!(fresh.took < Duration::from_secs(5), "{fresh:?}");
    }
    for name in ready.into_iter().chain([MUTE]) {
        let label = format!("\"{name}\"");
        let started = gw.metric("drawbridge_children_spawned_total", &label).await;
        assert!((started - 2.0).abs() < 0.5, "{name}: {started}");
    }
    gw.stop().await;
}
