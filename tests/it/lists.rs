//! Lists that are answered again without asking. Spec: SPEC M-82, M-85; DESIGN §5.

use futures_util::future::join_all;
use rstest::rstest;
use serde_json::json;

use crate::harness::events::EventStream;
use crate::harness::upstream::HttpStub;
use crate::harness::{Gateway, Session, Setup, eventually};
use crate::modern::Modern;

/// A freshness longer than any test: only events invalidate a list.
const LONG: &str = "[lists]\nfresh = \"1h\"\n";

struct World {
    gw: Gateway,
    stub: HttpStub,
}

impl World {
    async fn start(lists: &str, keys: &str, args: &[&str]) -> Self {
        let stub = HttpStub::start(args).await;
        let setup = Setup::secured().http("stub", &stub, keys).toml(lists);
        Self {
            gw: setup.start().await,
            stub,
        }
    }

    async fn open(&self, who: &str) -> Session {
        self.gw.principal(who).open("/mcp/stub").await
    }

    /// How often the upstream was asked for its tools.
    async fn asked(&self) -> u64 {
        self.stub.counted("tools/list").await
    }

    /// Waits until our GET stream to the upstream is open.
    async fn heard(&self) {
        self.stub.heard().await;
    }

    async fn stop(self) {
        self.gw.stop().await;
        self.stub.stop().await;
    }
}

#[tokio::test]
async fn an_unchanged_list_is_asked_for_once() {
    let world = World::start(LONG, "", &["--no-listchanged"]).await;
    let user = world.open("alice").await;
    let first = user.request("tools/list", json!({})).await.unwrap();
    let params = json!({"_meta": {"progressToken": 7}});
    let second = user.request("tools/list", params).await.unwrap();
    assert_eq!(first, second);
    assert_eq!(world.asked().await, 1);
    world.stop().await;
}

#[tokio::test]
async fn a_list_is_asked_for_every_time_where_none_may_be_kept() {
    let world = World::start("[lists]\nfresh = \"0s\"\n", "", &[]).await;
    let user = world.open("alice").await;
    user.tools().await;
    user.tools().await;
    assert_eq!(world.asked().await, 2);
    world.stop().await;
}

#[tokio::test]
async fn after_a_call_an_upstream_that_announces_nothing_is_asked_again() {
    let world = World::start(LONG, "", &["--no-listchanged"]).await;
    let user = world.open("alice").await;
    let before = user.tools().await;
    user.text("change_tools", json!({})).await;
    let after = user.tools().await;
    assert_ne!(before, after);
    assert_eq!(world.asked().await, 2);
    world.stop().await;
}

// SPEC M-85. A declared `listChanged` does not guarantee that the upstream announces every change.
#[tokio::test]
async fn announced_changes_and_calls_end_a_kept_list() {
    let world = World::start(LONG, "", &[]).await;
    let user = world.open("alice").await;
    let mut notices = user.listen().await;
    user.text("echo", json!({"text": "opens the upstream"}))
        .await;
    world.heard().await;
    let before = user.tools().await;
    assert_eq!(user.tools().await, before);
    assert_eq!(world.asked().await, 1);
    user.text("echo", json!({"text": "changes nothing"})).await;
    assert_eq!(user.tools().await, before);
    assert_eq!(world.asked().await, 2);
    user.text("change_tools", json!({})).await;
    notices.until("notifications/tools/list_changed").await;
    assert_ne!(user.tools().await, before);
    assert_eq!(world.asked().await, 3);
    world.stop().await;
}

// SPEC M-82.
#[rstest]
#[case::of_sessions("session", &[], 2)]
#[case::of_users("principal", &[], 2)]
#[case::of_all("shared", &[], 1)]
#[case::private("shared", &["--era", "modern", "--ttl", "3600000"], 2)]
#[case::public("session", &["--era", "modern", "--ttl", "3600000", "--scope", "public"], 1)]
#[tokio::test]
async fn users_see_each_others_lists_only_where_those_are_for_all(
    #[case] isolation: &str,
    #[case] args: &[&str],
    #[case] asked: u64,
) {
    let keys = format!("isolation = \"{isolation}\"");
    let world = World::start(LONG, &keys, args).await;
    world.open("alice").await.tools().await;
    world.open("bob").await.tools().await;
    assert_eq!(world.asked().await, asked);
    world.stop().await;
}

#[tokio::test]
async fn a_second_session_of_a_user_may_begin_with_the_list_of_the_first() {
    let world = World::start(LONG, "", &["--no-listchanged"]).await;
    let first = world.open("alice").await;
    first.tools().await;
    let second = world.open("alice").await;
    let began_with = second.tools().await;
    assert_eq!(world.asked().await, 1);
    // A change made in a session affects that session alone, whose lists are no longer shared.
    second.text("change_tools", json!({})).await;
    assert_ne!(second.tools().await, began_with);
    assert_eq!(first.tools().await, began_with);
    assert_eq!(world.asked().await, 2);
    world.stop().await;
}

#[tokio::test]
async fn pages_are_kept_by_their_cursor() {
    let args = ["--no-listchanged", "--list-page-size", "3", "--tools", "7"];
    let world = World::start(LONG, "", &args).await;
    let user = world.open("alice").await;
    let first = user.tools().await;
    assert_eq!(first.len(), 7);
    assert_eq!(user.tools().await, first);
    assert_eq!(world.asked().await, 3);
    world.stop().await;
}

#[tokio::test]
async fn a_merged_list_is_made_of_kept_ones() {
    let world = World::start(LONG, "", &["--no-listchanged"]).await;
    let other = HttpStub::start(&["--no-listchanged"]).await;
    let setup = Setup::secured()
        .http("a", &world.stub, "")
        .http("b", &other, "")
        .toml(LONG);
    let gw = setup.start().await;
    let user = gw.principal("alice").open("/mcp").await;
    let first = user.tools().await;
    assert_eq!(user.tools().await, first);
    assert_eq!(world.asked().await, 1);
    // A call of one upstream disturbs its own list only.
    user.text("b__change_tools", json!({})).await;
    assert_ne!(user.tools().await, first);
    assert_eq!(world.asked().await, 1);
    gw.stop().await;
    other.stop().await;
    world.stop().await;
}

/// Lists fetched by several sessions at the same time, on one path.
async fn at_once(users: &[Session]) {
    let lists = join_all(users.iter().map(Session::tools)).await;
    assert!(lists.iter().all(|list| !list.is_empty()));
}

// DESIGN §5: concurrent lists share a fetch under the same isolation as cached lists.
#[rstest]
#[case("session", &["alice", "alice", "alice"], 1)]
#[case("session", &["alice", "bob", "bob"], 2)]
#[case("shared", &["alice", "bob", "carol"], 1)]
#[tokio::test]
async fn who_lists_at_the_same_time_lets_one_ask(
    #[case] isolation: &str,
    #[case] who: &[&str],
    #[case] asked: u64,
    #[values("/mcp", "/mcp/stub")] path: &str,
) {
    let keys = format!("isolation = \"{isolation}\"");
    let stub = HttpStub::start(&["--list-delay", "700"]).await;
    let setup = Setup::secured().http("stub", &stub, &keys);
    let gw = setup
        .stub("other", &["--tools", "1"])
        .toml(LONG)
        .start()
        .await;
    let world = World { gw, stub };
    let mut users = Vec::new();
    for name in who {
        users.push(world.gw.principal(name).open(path).await);
    }
    at_once(&users).await;
    assert_eq!(world.asked().await, asked);
    world.stop().await;
}

#[tokio::test]
async fn who_gives_up_asking_leaves_it_to_those_who_wait() {
    let args = ["--list-delay", "700"];
    let world = World::start(LONG, "isolation = \"shared\"", &args).await;
    let modern = |name| Modern::new(world.gw.principal(name), "/mcp/stub");
    let first = modern("alice");
    let asking = tokio::spawn(async move { first.send("tools/list", json!({})).await });
    eventually("the upstream is asked", async || {
        (world.asked().await == 1).then_some(())
    })
    .await;
    let waiting = ["bob", "carol"].map(|name| {
        let user = modern(name);
        tokio::spawn(async move { user.send("tools/list", json!({})).await })
    });
    asking.abort();
    for reply in waiting {
        let listed = reply.await.unwrap().unwrap();
        assert!(!listed["tools"].as_array().unwrap().is_empty());
    }
    assert_eq!(world.asked().await, 2);
    world.stop().await;
}

// BRIDGING §5.4.
#[rstest]
#[case("1", 7, 5)]
#[case("9", 0, 4)]
#[tokio::test]
async fn a_list_whose_cursor_is_no_longer_good_is_read_once_more(
    #[case] stale: &str,
    #[case] shown: usize,
    #[case] asked: u64,
) {
    let args = [
        "--list-page-size",
        "3",
        "--tools",
        "7",
        "--stale-cursors",
        stale,
    ];
    let stub = HttpStub::start(&args).await;
    let setup = Setup::secured().http("stub", &stub, "").toml(LONG);
    let gw = setup.stub("other", &["--tools", "1"]).start().await;
    let world = World { gw, stub };
    let user = world.gw.principal("alice").open("/mcp").await;
    let tools = user.tools().await;
    let own = tools.iter().filter(|tool| tool.starts_with("stub__"));
    assert_eq!(own.count(), shown, "{tools:?}");
    assert!(tools.contains(&"other__echo".to_owned()));
    assert_eq!(world.asked().await, asked);
    world.stop().await;
}

/// A gateway whose upstream does not open GET streams yet, and a session that listens.
async fn unheard(world: &World) -> (Session, EventStream) {
    let user = world.open("alice").await;
    let stream = user.listen().await;
    user.tools().await;
    eventually("the GET stream is asked for", async || {
        (world.stub.counted("GET").await == 1).then_some(())
    })
    .await;
    (user, stream)
}

const TOOLS_CHANGED: &str = "notifications/tools/list_changed";

// Spec: BRIDGING §3.4: an upstream announces no change before its GET stream opens: the gateway sends the notice.
#[tokio::test]
async fn a_change_before_the_get_stream_was_open_is_announced() {
    let world = World::start(LONG, "", &["--hold-listens"]).await;
    let (user, mut stream) = unheard(&world).await;
    let before = user.tools().await;
    user.text("change_tools", json!({})).await;
    user.text("admit_listens", json!({})).await;
    stream.until(TOOLS_CHANGED).await;
    assert_ne!(user.tools().await, before);
    world.stop().await;
}

// Spec: BRIDGING §3.4: what the session was told before cannot be found out by listing again.
#[tokio::test]
async fn late_get_stream_is_made_good_by_one_notice() {
    let world = World::start(LONG, "", &["--hold-listens"]).await;
    let (user, mut stream) = unheard(&world).await;
    user.text("admit_listens", json!({})).await;
    let first = stream.message().await.unwrap();
    assert_eq!(first["method"], TOOLS_CHANGED, "the list that it has");
    user.text("change_prompts", json!({})).await;
    let second = stream.message().await.unwrap();
    assert_eq!(second["method"], "notifications/prompts/list_changed");
    assert_eq!(world.asked().await, 1);
    world.stop().await;
}

// Spec: BRIDGING §3.4; SPEC C-96: icons that no client may load are no difference.
#[rstest]
#[case::plain(&["--hold-listens"])]
#[case::with_icons(&["--hold-listens", "--icon", "javascript:alert(1)"])]
#[tokio::test]
async fn an_unchanged_list_is_looked_at_again_and_not_announced(#[case] args: &[&str]) {
    let world = World::start(LONG, "", args).await;
    let user = world.open("alice").await;
    let mut stream = user.listen().await;
    // No list is fetched before the stream has opened, so no change can have been missed. That the upstream has sent
    // the head does not mean that the gateway has read it: what comes behind it does.
    user.text("admit_listens", json!({})).await;
    world.heard().await;
    user.text("change_prompts", json!({})).await;
    stream.until("notifications/prompts/list_changed").await;
    user.tools().await;
    user.text("end_stream", json!({})).await;
    eventually("the list is looked at again", async || {
        (world.asked().await == 2).then_some(())
    })
    .await;
    user.text("change_prompts", json!({})).await;
    let first = stream.message().await.unwrap();
    assert_eq!(first["method"], "notifications/prompts/list_changed");
    world.stop().await;
}

// Spec: BRIDGING §3.4: a stream without event ids does not go on where it broke off.
#[rstest]
#[tokio::test]
async fn a_change_between_two_get_streams_is_announced(#[values("legacy", "modern")] era: &str) {
    let world = World::start(LONG, "", &["--hold-listens"]).await;
    let alice = world.gw.principal("alice");
    let modern = Modern::new(alice.clone(), "/mcp/stub");
    let user = alice.open("/mcp/stub").await;
    let call = async |name: &str| match era {
        "legacy" => drop(user.text(name, json!({})).await),
        _ => drop(modern.call(name, json!({})).await.unwrap()),
    };
    call("admit_listens").await;
    let mut stream = if era == "legacy" {
        let stream = user.listen().await;
        world.heard().await;
        user.tools().await;
        stream
    } else {
        let wanted = json!({"notifications": {"toolsListChanged": true}});
        let request = modern.request(&json!(1), "subscriptions/listen", wanted);
        let mut events = modern.post(&request).await.events();
        let ack = events.message().await.expect("an acknowledgement");
        assert_eq!(ack["params"]["notifications"]["toolsListChanged"], true);
        modern.send("tools/list", json!({})).await.unwrap();
        events
    };
    call("end_stream").await;
    call("change_tools").await;
    stream.until(TOOLS_CHANGED).await;
    world.stop().await;
}

// SPEC M-85; BRIDGING §5.6.
#[rstest]
#[tokio::test]
async fn a_change_that_one_user_hears_of_ends_the_lists_of_all(
    #[values("public", "private")] scope: &str,
) {
    let kept = ["--era", "modern", "--ttl", "3600000", "--scope", scope];
    let world = World::start(LONG, "", &kept).await;
    let before = world.open("alice").await.tools().await;
    let other = Modern::new(world.gw.principal("alice"), "/mcp/stub");
    let list = async |user: &Modern| user.send("tools/list", json!({})).await.unwrap();
    let kept = list(&other).await;
    let bob = world.open("bob").await;
    let mut notices = bob.listen().await;
    bob.text("echo", json!({"text": "opens the upstream"}))
        .await;
    eventually("changes are listened to", async || {
        (world.stub.counted("subscriptions/listen").await > 0).then_some(())
    })
    .await;
    bob.text("change_tools", json!({})).await;
    notices.until(TOOLS_CHANGED).await;
    assert_ne!(list(&other).await["tools"], kept["tools"]);
    assert_ne!(world.open("alice").await.tools().await, before);
    assert_ne!(world.open("carol").await.tools().await, before);
    world.stop().await;
}

// Spec: SPEC M-83; BRIDGING §5.5: a list missing for one caller may be declared to another.
#[rstest]
#[case(&[], &["--no-prompts"], 1, 0)]
#[case(&["--no-prompts"], &["--no-prompts"], 0, 0)]
#[case(&["--no-prompts", "--era", "modern"], &["--no-prompts", "--era", "modern"], 0, 60_000)]
#[tokio::test]
async fn a_list_that_an_upstream_does_not_have_is_never_public(
    #[case] first: &[&str],
    #[case] second: &[&str],
    #[case] offering: usize,
    #[case] at_most: u64,
) {
    let setup = Setup::open().stub("first", first).stub("second", second);
    let gw = setup.start().await;
    let user = Modern::new(gw.anonymous(), "/mcp");
    let list = user.send("prompts/list", json!({})).await.unwrap();
    let prompts = list["prompts"].as_array().unwrap();
    assert_eq!(prompts.is_empty(), offering == 0, "{list}");
    assert_eq!(list["cacheScope"], "private", "{list}");
    assert!(list["ttlMs"].as_u64().unwrap() <= at_most, "{list}");
    gw.stop().await;
}
