//! Tasks of 2025-11-25 as clients with the extension see them. Spec: BRIDGING §3.8; SPEC K-10 to
//! K-14, K-18.

use serde_json::{Value, json};

use crate::harness::events::EventStream;
use crate::harness::session::text_of;
use crate::harness::upstream::HttpStub;
use crate::harness::{Gateway, Setup, eventually};
use crate::modern::Modern;

const EXTENSION: &str = "io.modelcontextprotocol/tasks";

struct World {
    gw: Gateway,
    _remote: HttpStub,
}

/// Path and tool name of each task that is begun.
const PLACES: [(&str, &str); 3] = [
    ("/mcp/child", "errand"),
    ("/mcp/remote", "errand"),
    ("/mcp", "remote__errand"),
];

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
            .start()
            .await;
        Self {
            gw,
            _remote: remote,
        }
    }

    fn user(&self, name: &str, path: &str) -> Modern {
        let capabilities = json!({"elicitation": {}, "extensions": {EXTENSION: {}}});
        Modern::with(self.gw.principal(name), path, capabilities)
    }
}

/// Begins a task; returns the task as the client gets it.
async fn begin(user: &Modern, tool: &str, arguments: Value) -> Value {
    let begun = user.call(tool, arguments).await.unwrap();
    assert_eq!(begun["resultType"], "task", "{begun}");
    begun
}

async fn get(user: &Modern, task: &Value) -> Value {
    let asked = json!({"taskId": task["taskId"]});
    let state = user.send("tasks/get", asked).await.unwrap();
    assert_eq!(state["resultType"], "complete");
    assert_eq!(state["taskId"], task["taskId"]);
    state
}

/// Polls until the task has this status.
async fn until(user: &Modern, task: &Value, status: &str) -> Value {
    eventually(status, async || {
        let state = get(user, task).await;
        (state["status"] == status).then_some(state)
    })
    .await
}

#[tokio::test]
async fn a_task_is_begun_polled_and_done() {
    let world = World::start().await;
    for (path, tool) in PLACES {
        let alice = world.user("alice", path);
        let told = alice.send("server/discover", json!({})).await.unwrap();
        assert!(
            told["capabilities"]["extensions"][EXTENSION].is_object(),
            "{told}"
        );
        let task = begin(&alice, tool, json!({"looks": 2})).await;
        assert_eq!(task["status"], "working");
        assert_eq!(
            (&task["ttlMs"], &task["pollIntervalMs"]),
            (&json!(60_000), &json!(50))
        );
        let handle = task["taskId"].as_str().unwrap();
        assert!(
            !handle.contains("errand") && handle.len() <= 200,
            "{handle}"
        );
        assert_eq!(get(&alice, &task).await["status"], "working");
        let done = until(&alice, &task, "completed").await;
        assert_eq!(text_of(&done["result"]), "errand done");
        assert!(!done.to_string().contains("related-task"), "{done}");
        // A tool with optional task support runs as a plain call.
        let chore = tool.replace("errand", "chore");
        let plain = alice.call(&chore, json!({})).await.unwrap();
        assert_eq!(text_of(&plain), "chore done");
    }
    world.gw.stop().await;
}

// Spec: SPEC K-18, A-30, K-12.
#[tokio::test]
async fn a_task_is_known_to_the_user_who_began_it_alone() {
    let world = World::start().await;
    for (path, tool) in PLACES {
        let alice = world.user("alice", path);
        let task = begin(&alice, tool, json!({"ask": 1})).await;
        let about = json!({"taskId": task["taskId"], "inputResponses": {}});
        for method in ["tasks/get", "tasks/update", "tasks/cancel"] {
            let bob = world.user("bob", path);
            let refused = bob.send(method, about.clone()).await.unwrap_err();
            assert_eq!(refused["code"], -32602);
            let raw = json!({"taskId": "errand-1", "inputResponses": {}});
            let refused = alice.send(method, raw).await.unwrap_err();
            assert_eq!(refused["code"], -32602);
            let silent = Modern::new(world.gw.principal("alice"), path);
            let refused = silent.send(method, about.clone()).await.unwrap_err();
            assert_eq!(refused["code"], -32021);
        }
        // Another endpoint is another place.
        let elsewhere = if path == "/mcp" {
            "/mcp/remote"
        } else {
            "/mcp"
        };
        let refused = world
            .user("alice", elsewhere)
            .send("tasks/get", about)
            .await;
        assert_eq!(refused.unwrap_err()["code"], -32602);
        assert_eq!(get(&alice, &task).await["status"], "input_required");
    }
    world.gw.stop().await;
}

// Spec: SPEC K-13.
#[tokio::test]
async fn a_tools_error_is_a_result_and_an_error_of_the_protocol_a_failure() {
    let world = World::start().await;
    for (path, tool) in PLACES {
        let alice = world.user("alice", path);
        let task = begin(&alice, tool, json!({"fail": 1})).await;
        let done = until(&alice, &task, "completed").await;
        assert_eq!(done["result"]["isError"], true);
        let task = begin(&alice, tool, json!({"code": -32603})).await;
        let failed = until(&alice, &task, "failed").await;
        assert_eq!(failed["error"]["message"], "the errand failed");
    }
    world.gw.stop().await;
}

// Spec: SPEC K-14.
#[tokio::test]
async fn what_a_task_asks_is_answered_by_an_update() {
    let world = World::start().await;
    for (path, tool) in PLACES {
        let alice = world.user("alice", path);
        let task = begin(&alice, tool, json!({"ask": 1})).await;
        let asks = until(&alice, &task, "input_required").await;
        let again = get(&alice, &task).await;
        assert_eq!(asks["inputRequests"], again["inputRequests"]);
        let questions = asks["inputRequests"].as_object().unwrap();
        let (key, question) = questions.iter().next().unwrap();
        assert_eq!(question["method"], "elicitation/create");
        assert!(
            question["params"]["message"]
                .as_str()
                .unwrap()
                .contains("Whose errand?")
        );
        assert!(!asks.to_string().contains("related-task"), "{asks}");
        let update = |answers: Value| {
            let about = json!({"taskId": task["taskId"], "inputResponses": answers});
            alice.send("tasks/update", about)
        };
        let accept = json!({"action": "accept", "content": {"name": "ada"}});
        update(json!({"unknown": accept})).await.unwrap();
        assert_eq!(get(&alice, &task).await["status"], "input_required");
        let acknowledged = update(json!({key: accept})).await.unwrap();
        assert_eq!(acknowledged["resultType"], "complete");
        let done = until(&alice, &task, "completed").await;
        assert!(text_of(&done["result"]).contains("ada"), "{done}");
        // Too late is no error.
        update(json!({key: accept})).await.unwrap();
    }
    world.gw.stop().await;
}

// Spec: SPEC M-65, K-14.
#[tokio::test]
async fn an_answer_that_does_not_fit_has_the_question_put_once_more() {
    let world = World::start().await;
    for (path, tool) in PLACES {
        let alice = world.user("alice", path);
        let task = begin(&alice, tool, json!({"ask": 1})).await;
        let answer = async |answer: Value| {
            let asks = until(&alice, &task, "input_required").await;
            let questions = asks["inputRequests"].as_object().unwrap();
            let (key, question) = questions.iter().next().unwrap();
            let about = json!({"taskId": task["taskId"], "inputResponses": {key: answer}});
            let acknowledged = alice.send("tasks/update", about).await.unwrap();
            assert_eq!(acknowledged["resultType"], "complete");
            (key.clone(), question.clone())
        };
        let accept = |content: Value| json!({"action": "accept", "content": content});
        let first = answer(json!(5)).await;
        let second = answer(accept(json!({"name": 1}))).await;
        let third = answer(accept(json!({"name": "ada"}))).await;
        for (one, next) in [(&first, &second), (&second, &third)] {
            assert_ne!(one.0, next.0);
            assert_eq!(one.1, next.1);
        }
        let done = until(&alice, &task, "completed").await;
        assert!(text_of(&done["result"]).contains("ada"), "{done}");
    }
    world.gw.stop().await;
}

// Spec: SPEC K-12.
#[tokio::test]
async fn a_cancellation_is_acknowledged_also_when_the_task_is_over() {
    let world = World::start().await;
    for (path, tool) in PLACES {
        let alice = world.user("alice", path);
        let task = begin(&alice, tool, json!({"ms": 600_000})).await;
        let about = json!({"taskId": task["taskId"]});
        for _ in 0..2 {
            let done = alice.send("tasks/cancel", about.clone()).await.unwrap();
            assert_eq!(done["resultType"], "complete");
            assert_eq!(done.get("status"), None);
        }
        assert_eq!(get(&alice, &task).await["status"], "cancelled");
    }
    world.gw.stop().await;
}

/// Subscribes to tasks; returns the acknowledged task ids and the stream.
async fn follow(user: &Modern, ids: &[&Value]) -> (Value, EventStream) {
    let params = json!({"notifications": {"taskIds": ids}});
    let request = user.request(&json!("s"), "subscriptions/listen", params);
    let mut events = user.post(&request).await.events();
    let ack = events.message().await.expect("an acknowledgement");
    (ack["params"]["notifications"]["taskIds"].clone(), events)
}

/// Waits until the stream reports this status; returns the task.
async fn told(events: &mut EventStream, status: &str) -> Value {
    loop {
        let notice = events.message().await.expect("a notification");
        assert_eq!(notice["method"], "notifications/tasks", "{notice}");
        let mark = &notice["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"];
        assert_eq!(mark, "s", "{notice}");
        if notice["params"]["status"] == status {
            return notice["params"].clone();
        }
    }
}

// Spec: SPEC K-16, M-76.
#[tokio::test]
async fn a_subscription_is_told_how_a_task_stands_until_it_is_over() {
    let world = World::start().await;
    for (path, tool) in PLACES {
        let alice = world.user("alice", path);
        let task = begin(&alice, tool, json!({"looks": 3, "ask": 1})).await;
        let (followed, mut events) = follow(&alice, &[&task["taskId"], &json!("no task")]).await;
        assert_eq!(followed, json!([task["taskId"]]));
        let asks = told(&mut events, "input_required").await;
        assert_eq!(asks["taskId"], task["taskId"]);
        let questions = asks["inputRequests"].as_object().unwrap();
        let key = questions.keys().next().expect("a question");
        let answer = json!({"action": "accept", "content": {"name": "Ann"}});
        let update = json!({"taskId": task["taskId"], "inputResponses": {key: answer}});
        alice.send("tasks/update", update).await.unwrap();
        let done = told(&mut events, "completed").await;
        assert!(text_of(&done["result"]).contains("Ann"), "{done}");
        assert_eq!(done["resultType"], Value::Null);
        // A finished task is reported at once, and only to its owner.
        let (_, mut later) = follow(&alice, &[&task["taskId"]]).await;
        told(&mut later, "completed").await;
        let (followed, _events) = follow(&world.user("bob", path), &[&task["taskId"]]).await;
        assert_eq!(followed, Value::Null);
    }
    world.gw.stop().await;
}

#[tokio::test]
async fn a_subscription_follows_no_more_tasks_than_it_may() {
    let world = World::with("[limits]\ntasks_per_subscription = 2").await;
    let alice = world.user("alice", "/mcp/child");
    let mut begun = Vec::new();
    for _ in 0..3 {
        begun.push(begin(&alice, "errand", json!({"ms": 600_000})).await["taskId"].clone());
    }
    let (followed, _events) = follow(&alice, &begun.iter().collect::<Vec<_>>()).await;
    assert_eq!(followed, json!(begun[..2]));
    let beyond = world.gw.metric("drawbridge_tasks_unfollowed_total", "");
    assert!((beyond.await - 1.0).abs() < 0.5);
    let (followed, _all) = follow(&alice, &begun[1..].iter().collect::<Vec<_>>()).await;
    assert_eq!(followed, json!(begun[1..]));
    world.gw.stop().await;
}

#[tokio::test]
async fn what_the_upstream_says_of_a_task_is_told_before_it_is_time_to_look() {
    let world = World::start().await;
    for (path, tool) in PLACES {
        let alice = world.user("alice", path);
        let long = json!({"ms": 3_600_000, "interval": 3_600_000});
        let task = begin(&alice, tool, long).await;
        let (_, mut events) = follow(&alice, &[&task["taskId"]]).await;
        told(&mut events, "working").await;
        let off = tool.replace("errand", "call_off");
        alice.call(&off, json!({})).await.unwrap();
        told(&mut events, "cancelled").await;
    }
    world.gw.stop().await;
}
