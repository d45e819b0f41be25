//! Tasks of 2025-11-25 between clients and upstreams that both speak it.
//! Spec: SPEC K-01 to K-05; BRIDGING §3.8.

use serde_json::{Value, json};

use crate::harness::session::{Session, text_of};
use crate::harness::upstream::HttpStub;
use crate::harness::{Gateway, Setup, within};

const RELATED: &str = "io.modelcontextprotocol/related-task";

/// Path and tool name of each task that is begun.
const PLACES: [(&str, &str); 3] = [
    ("/mcp/child", "errand"),
    ("/mcp/remote", "errand"),
    ("/mcp", "remote__errand"),
];

struct World {
    gw: Gateway,
    _remote: HttpStub,
}

impl World {
    async fn start() -> Self {
        Self::with("").await
    }

    /// With more of a configuration.
    async fn with(toml: &str) -> Self {
        let remote = HttpStub::start(&["--tasks"]).await;
        let gw = Setup::secured()
            .toml(toml)
            .stub("child", &["--tasks"])
            .http("remote", &remote, "")
            .stub("newer", &["--era", "modern"])
            .start()
            .await;
        Self {
            gw,
            _remote: remote,
        }
    }

    async fn user(&self, name: &str, path: &str) -> Session {
        self.gw.principal(name).open(path).await
    }
}

/// Begins a task; returns the client's name for the task.
async fn begin(user: &Session, tool: &str, arguments: Value) -> Value {
    let params = json!({"name": tool, "arguments": arguments, "task": {"ttl": 60_000}});
    let begun = user.request("tools/call", params).await.unwrap();
    let task = &begun["task"];
    assert!(!task.to_string().contains("errand"), "{begun}");
    assert!(["working", "input_required"].contains(&task["status"].as_str().unwrap()));
    task["taskId"].clone()
}

#[tokio::test]
async fn a_task_is_begun_watched_and_its_result_fetched() {
    let world = World::start().await;
    for (path, tool) in PLACES {
        let alice = world.user("alice", path).await;
        let told = &alice.hello["capabilities"]["tasks"];
        assert!(told["requests"]["tools"]["call"].is_object(), "{told}");
        let tools = alice.request("tools/list", json!({})).await.unwrap();
        let all = tools["tools"].as_array().unwrap();
        let shown = all.iter().find(|one| one["name"] == tool).unwrap();
        assert_eq!(shown["execution"], json!({"taskSupport": "optional"}));
        let task = begin(&alice, tool, json!({"looks": 2})).await;
        let about = json!({"taskId": task});
        let state = alice.request("tasks/get", about.clone()).await.unwrap();
        assert_eq!(state["taskId"], task);
        // Some clients send `null` when they have no cursor.
        for params in [json!({}), json!({"cursor": null})] {
            let list = alice.request("tasks/list", params).await.unwrap();
            assert_eq!(list["tasks"][0]["taskId"], task, "{list}");
        }
        let result = alice.request("tasks/result", about.clone()).await.unwrap();
        assert_eq!(text_of(&result), "errand done");
        assert_eq!(result["_meta"][RELATED], about);
        // A call without `task` does not become a task.
        for params in [
            json!({"name": tool, "arguments": {}}),
            json!({"name": tool, "arguments": {}, "task": null}),
        ] {
            let plain = alice.request("tools/call", params).await.unwrap();
            assert_eq!(text_of(&plain), "errand done");
        }
        let never_a_task = tool.replace("errand", "report");
        let params = json!({"name": never_a_task, "arguments": {}, "task": null});
        let plain = alice.request("tools/call", params).await.unwrap();
        assert_eq!(text_of(&plain), "reported");
    }
    world.gw.stop().await;
}

// Spec: SPEC K-04.
#[tokio::test]
async fn what_a_task_asks_comes_with_its_result_and_names_it() {
    let world = World::start().await;
    for (path, tool) in PLACES {
        let alice = world.user("alice", path).await;
        let task = begin(&alice, tool, json!({"ask": 1})).await;
        let about = json!({"taskId": task});
        let (_, exchange) = alice.start("tasks/result", about.clone()).await;
        let mut stream = exchange.stream();
        let question = stream.until("elicitation/create").await;
        assert_eq!(question["params"]["_meta"][RELATED], about, "{question}");
        let answer = json!({"action": "accept", "content": {"name": "Ann"},
            "_meta": {RELATED: about}});
        alice.answer(&question, answer).await;
        let reply = stream.message().await.unwrap();
        assert!(text_of(&reply["result"]).contains("Ann"), "{reply}");
        // The upstream gets its own name of the task.
        assert!(text_of(&reply["result"]).contains("errand-"), "{reply}");
    }
    world.gw.stop().await;
}

// Spec: SPEC K-05, A-30.
#[tokio::test]
async fn a_task_is_known_in_the_session_that_began_it_alone() {
    let world = World::start().await;
    for (path, tool) in PLACES {
        let alice = world.user("alice", path).await;
        let task = begin(&alice, tool, json!({"ms": 600_000})).await;
        let bob = world.user("bob", path).await;
        for method in ["tasks/get", "tasks/result", "tasks/cancel"] {
            for (user, id) in [(&bob, task.clone()), (&alice, json!("errand-1"))] {
                let refused = user.request(method, json!({"taskId": id})).await;
                assert_eq!(refused.unwrap_err()["code"], -32602);
            }
        }
        let none = bob.request("tasks/list", json!({})).await.unwrap();
        assert_eq!(none, json!({"tasks": []}));
        let about = json!({"taskId": task});
        let over = alice.request("tasks/cancel", about.clone()).await.unwrap();
        assert_eq!(
            (&over["taskId"], &over["status"]),
            (&task, &json!("cancelled"))
        );
        let again = alice.request("tasks/cancel", about).await;
        assert_eq!(again.unwrap_err()["code"], -32602);
    }
    world.gw.stop().await;
}

#[tokio::test]
async fn the_oldest_task_is_forgotten_for_one_too_many() {
    let world = World::with("[limits]\ntasks_per_session = 2").await;
    let alice = world.user("alice", "/mcp/child").await;
    let mut begun = Vec::new();
    for _ in 0..3 {
        begun.push(begin(&alice, "errand", json!({"ms": 600_000})).await);
    }
    let list = alice.request("tasks/list", json!({})).await.unwrap();
    let listed = list["tasks"].as_array().unwrap();
    let listed: Vec<&Value> = listed.iter().map(|task| &task["taskId"]).collect();
    assert_eq!(json!(listed), json!(begun[1..]));
    let refused = alice.request("tasks/get", json!({"taskId": begun[0]}));
    assert_eq!(refused.await.unwrap_err()["code"], -32602);
    let forgotten = world.gw.metric("drawbridge_tasks_forgotten_total", "");
    assert!((forgotten.await - 1.0).abs() < 0.5);
    world.gw.stop().await;
}

#[tokio::test]
async fn a_task_whose_result_was_fetched_is_forgotten_first() {
    let world = World::with("[limits]\ntasks_per_session = 2").await;
    let alice = world.user("alice", "/mcp/child").await;
    let runs = begin(&alice, "errand", json!({"ms": 600_000})).await;
    let done = begin(&alice, "errand", json!({"looks": 1})).await;
    let about = json!({"taskId": done});
    alice.request("tasks/get", about.clone()).await.unwrap();
    alice.request("tasks/result", about).await.unwrap();
    let newest = begin(&alice, "errand", json!({"ms": 600_000})).await;
    let all = alice.request("tasks/list", json!({})).await.unwrap();
    let listed = all["tasks"].as_array().unwrap().iter();
    let listed: Vec<&Value> = listed.map(|task| &task["taskId"]).collect();
    assert_eq!(listed, [&runs, &newest]);
    let forgotten = world.gw.metric("drawbridge_tasks_forgotten_total", "");
    assert!(forgotten.await < 0.5, "nobody misses it");
    world.gw.stop().await;
}

// Spec: SPEC K-03, K-05.
#[tokio::test]
async fn a_task_that_is_forgotten_is_not_named_either() {
    let world = World::with("[limits]\ntasks_per_session = 1").await;
    let alice = world.user("alice", "/mcp/child").await;
    let mut begun = Vec::new();
    for token in ["first", "second"] {
        let params = json!({"name": "errand", "arguments": {"ms": 600_000}, "task": {},
            "_meta": {"progressToken": token}});
        let one = alice.request("tools/call", params).await.unwrap();
        begun.push(json!({RELATED: {"taskId": one["task"]["taskId"]}}));
    }
    alice.call("report", json!({})).await.unwrap();
    let (_, reporting) = alice.start_call("report", json!({})).await;
    let (logged, _) = reporting.finish().await;
    let [first, second] = logged.try_into().unwrap();
    assert_eq!(first["params"]["_meta"].get(RELATED), None, "{first}");
    assert_eq!(second["params"]["_meta"], begun[1]);
    world.gw.stop().await;
}

#[tokio::test]
async fn a_client_hears_what_its_upstream_says_of_a_task() {
    let world = World::start().await;
    for (path, tool) in PLACES {
        let alice = world.user("alice", path).await;
        let mut stream = alice.listen().await;
        let task = begin(&alice, tool, json!({"ms": 600_000})).await;
        alice
            .call(&tool.replace("errand", "call_off"), json!({}))
            .await
            .unwrap();
        let told = stream.until("notifications/tasks/status").await;
        assert_eq!(told["params"]["taskId"], task, "{told}");
        assert_eq!(told["params"]["status"], "cancelled");
    }
    world.gw.stop().await;
}

// Spec: SPEC K-04. The stub's `call_off` cancels finished tasks, too.
#[tokio::test]
async fn a_task_that_has_ended_stays_as_it_ended() {
    let world = World::start().await;
    for (path, tool) in PLACES {
        let alice = world.user("alice", path).await;
        let mut stream = alice.listen().await;
        let done = begin(&alice, tool, json!({"looks": 1})).await;
        let about = json!({"taskId": done});
        let state = alice.request("tasks/get", about.clone()).await.unwrap();
        assert_eq!(state["status"], "completed");
        let runs = begin(&alice, tool, json!({"ms": 600_000})).await;
        let off = tool.replace("errand", "call_off");
        alice.call(&off, json!({})).await.unwrap();
        let told = stream.until("notifications/tasks/status").await;
        assert_eq!(told["params"]["taskId"], runs, "{told}");
        let state = alice.request("tasks/get", about).await.unwrap();
        assert_eq!(state["status"], "completed", "{state}");
        let list = alice.request("tasks/list", json!({})).await.unwrap();
        let listed = [&list["tasks"][0], &list["tasks"][1]];
        let listed = listed.map(|task| (&task["taskId"], &task["status"]));
        let expected = [(&done, &json!("completed")), (&runs, &json!("cancelled"))];
        assert_eq!(listed, expected);
    }
    world.gw.stop().await;
}

// Spec: MCP 2025-11-25, progress, "Behavior Requirements" 3; SPEC K-03, K-04.
#[tokio::test]
async fn progress_of_a_task_names_it_and_comes_until_it_is_over() {
    let world = World::start().await;
    for (path, tool) in PLACES {
        let alice = world.user("alice", path).await;
        let named = |name: &str| tool.replace("errand", name);
        let mut stream = alice.listen().await;
        let params = json!({"name": tool, "arguments": {"ms": 600_000}, "task": {"ttl": 60_000},
            "_meta": {"progressToken": "mine"}});
        let begun = alice.request("tools/call", params).await.unwrap();
        let about = json!({"taskId": begun["task"]["taskId"]});
        for progress in 1..=2 {
            let (_, reporting) = alice.start_call(&named("report"), json!({})).await;
            let (before, _) = reporting.finish().await;
            if progress == 2 {
                // A child's log message is attributed to the call that the child runs.
                let logged = match before.into_iter().next() {
                    Some(logged) => logged,
                    None => stream.until("notifications/message").await,
                };
                assert_eq!(logged["params"]["_meta"], json!({RELATED: about}), "{path}");
            }
            let told = stream.until("notifications/progress").await;
            let expected = json!({"progressToken": "mine", "progress": progress,
                "_meta": {RELATED: about}});
            assert_eq!(told["params"], expected);
            let state = alice.request("tasks/get", about.clone()).await.unwrap();
            assert_eq!(state["status"], "working");
        }
        alice.request("tasks/cancel", about).await.unwrap();
        alice.call(&named("report"), json!({})).await.unwrap();
        alice.call(&named("change_tools"), json!({})).await.unwrap();
        loop {
            let told = stream.message().await.expect("a notification");
            assert_ne!(told["method"], "notifications/progress", "{told}");
            if told["method"] == "notifications/tools/list_changed" {
                break;
            }
        }
    }
    world.gw.stop().await;
}

// Spec: SPEC K-15, L-02.
#[tokio::test]
async fn who_cannot_have_tasks_is_told_of_none() {
    let world = World::start().await;
    let newer = world.user("alice", "/mcp/newer").await;
    let alice = world.gw.principal("alice");
    let older = alice.open_as("/mcp/child", "2025-06-18", json!({})).await;
    for user in [newer, older] {
        assert_eq!(user.hello["capabilities"].get("tasks"), None);
        for method in ["tasks/get", "tasks/list", "tasks/result", "tasks/cancel"] {
            let refused = user.request(method, json!({"taskId": "x"})).await;
            assert_eq!(refused.unwrap_err()["code"], -32601);
        }
    }
    world.gw.stop().await;
}

// Spec: SPEC G-03.
#[tokio::test]
async fn a_list_of_tasks_waits_for_no_hung_upstream() {
    let deaf = HttpStub::start(&["--tasks", "--deaf-to", "tasks/get"]).await;
    let setup = Setup::secured().toml("[mcp]\nconnect_wait = \"300ms\"");
    let setup = setup.http("deaf", &deaf, "").stub("child", &["--tasks"]);
    let gw = setup.start().await;
    let alice = gw.principal("alice").open("/mcp").await;
    begin(&alice, "deaf__errand", json!({"looks": 99})).await;
    let known = begin(&alice, "child__errand", json!({"looks": 99})).await;
    let listing = alice.request("tasks/list", json!({}));
    let list = within("the list", listing).await.unwrap();
    let listed = list["tasks"].as_array().unwrap();
    let ids: Vec<&Value> = listed.iter().map(|task| &task["taskId"]).collect();
    assert_eq!(ids, [&known]);
    gw.stop().await;
}
