//! A modern child whose token has ended ends its calls while another child has the next ones. What each of them says and
//! is sent concerns its own calls.

use std::path::{Path, PathBuf};

use futures_util::future::join_all;
use rstest::rstest;
use serde_json::{Value, json};

use super::world::{Answering, AuthServer, account};
use crate::harness::session::{Session, text_of};
use crate::harness::{Answer, Gateway, Setup, eventually, within};

/// A child of the modern era. It waits for files in `$DIR`, and writes its pid into others: what it has been called for
/// into `called`, the call that it is told to cancel into `cancelled`.
const CHILD: &str = "
import json, os, sys, threading, time
at = os.environ['DIR'] + '/'
lock = threading.Lock()
def say(message):
    with lock:
        print(json.dumps({'jsonrpc': '2.0', **message}), flush=True)
def text(id, text):
    say({'id': id, 'result': {'content': [{'type': 'text', 'text': text}]}})
def stray(whose):
    with lock:
        # It begins like a message: the gateway skips other lines.
        print('{ a line of', whose, flush=True)
def note(name):
    with open(at + name + '.new', 'w') as file:
        file.write(str(os.getpid()))
    os.rename(at + name + '.new', at + name)
def after(name, act):
    def wait():
        while not os.path.exists(at + name):
            time.sleep(0.02)
        act()
    threading.Thread(target=wait, daemon=True).start()
def many(ids, last):
    for id in ids:
        text(id, 'x' * 7500000)
    text(last, 'slow')
def log(id):
    say({'method': 'notifications/message', 'params': {'level': 'error', 'data': 'said'}})
    text(id, 'logged')
def claim(id):
    for other in range(max(id - 500, 1), id):
        say({'id': other, 'result': {'resultType': 'task', **task, 'taskId': 'forged'}})
    text(id, 'done')
def forge(id):
    for other in range(id + 1, id + 500):
        text(other, 'forged')
    text(id, 'done')
tasks = 'io.modelcontextprotocol/tasks'
task = {'taskId': 'late', 'status': 'working', 'createdAt': '2026-07-28T00:00:00Z',
    'lastUpdatedAt': '2026-07-28T00:00:00Z', 'ttlMs': 60000}
big, late, held, watching = [], None, None, None
for line in sys.stdin:
    message = json.loads(line)
    id, method, params = message.get('id'), message.get('method'), message.get('params', {})
    tool = params.get('name')
    if method == 'server/discover':
        capabilities = {'tools': {}, 'logging': {}, 'extensions': {tasks: {}}}
        say({'id': id, 'result': {'supportedVersions': ['2026-07-28'], 'capabilities': capabilities}})
    elif method == 'tools/list':
        say({'id': id, 'result': {'tools': []}})
    elif method == 'tasks/cancel':
        note('cancelled')
        say({'id': id, 'result': {}})
    elif method == 'notifications/cancelled' and params['requestId'] == late:
        say({'id': late, 'result': {'resultType': 'task', **task}})
    elif method == 'notifications/cancelled' and params['requestId'] == held:
        note('told')
        after('answer', lambda id=held: say({'id': id, 'result': {'resultType': 'task', **task}}))
    elif id == 'alive':
        text(watching, 'alive')
    elif tool == 'which':
        text(id, str(os.getpid()))
    elif tool == 'watch':
        watching = id
        note('called')
        after('go', lambda: say({'id': 'alive', 'method': 'ping'}))
    elif tool in ('late', 'held') and tasks not in line:
        required = {'requiredCapabilities': {'extensions': {tasks: {}}}}
        say({'id': id, 'error': {'code': -32021, 'message': 'no', 'data': required}})
    elif tool == 'late':
        late = id
        note('late')
    elif tool == 'held':
        held = id
        note('late')
    elif tool == 'claims':
        claim(id)
    elif tool == 'noisy':
        whose = params['arguments']['whose']
        if params['arguments']['answers']:
            stray(whose)
            text(id, 'noisy')
        else:
            note('called')
            after('go', lambda whose=whose: stray(whose))
    elif tool == 'logs':
        note('called')
        after('go', lambda id=id: log(id))
    elif tool == 'forges':
        note('called')
        after('go', lambda id=id: forge(id))
    elif tool == 'waits':
        note('waits')
        after('end', lambda id=id: text(id, 'waited'))
    elif tool == 'big':
        big.append(id)
    elif tool == 'slow':
        note('called')
        after('go', lambda id=id: many(big, id))
";

/// Longer than the start of a child.
const LIFE: u64 = 4;

struct World {
    gw: Gateway,
    server: AuthServer,
    dir: tempfile::TempDir,
}

impl World {
    /// A gateway whose children get a token that ends soon. `keys` are keys of the upstream's table, `tables` further tables.
    async fn start(keys: &str, tables: &str) -> Self {
        let (server, dir) = (AuthServer::start().await, tempfile::tempdir().unwrap());
        server.answers(Answering::Tokens(Some(LIFE)));
        let keys = format!(
            "era = \"modern\"\nenv = {{ DIR = \"{}\" }}\n{keys}",
            dir.path().display()
        );
        let child = "env = \"TRACKER_TOKEN\"\nresource = \"https://api.test/v1\"";
        let gw = Setup::secured()
            .toml(tables)
            .stdio("up", "python3", &["-u", "-c", CHILD], &keys)
            .toml(&account(&server, child));
        let gw = gw.start().await;
        Self { gw, server, dir }
    }

    async fn user(&self) -> Session {
        self.gw.principal("alice").open("/mcp/up").await
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn go(&self) {
        std::fs::write(self.at("go"), "").unwrap();
    }

    /// Waits until another child than that of the call noted in `called` has the new calls.
    async fn replaced(&self, user: &Session) {
        let first = pid(&self.at("called")).await;
        self.server.answers(Answering::Tokens(Some(600)));
        eventually("another child", async || {
            (user.text("which", json!({})).await != first).then_some(())
        })
        .await;
    }
}

/// The pid that a child has written into `file`.
async fn pid(file: &Path) -> String {
    eventually(&file.display().to_string(), async || {
        std::fs::read_to_string(file).ok()
    })
    .await
}

// Spec: SPEC D-09. It has an answer of its own, also where no other child can be started.
#[rstest]
#[case::replaced(true)]
#[case::without_a_successor(false)]
#[tokio::test]
async fn draining_child_is_answered_itself(#[case] is_replaced: bool) {
    let world = World::start("", "").await;
    let user = world.user().await;
    let watch = within("the sign of life", user.text("watch", json!({})));
    let meanwhile = async {
        if is_replaced {
            world.replaced(&user).await;
        } else {
            pid(&world.at("called")).await;
            world.server.answers(Answering::Status(503, String::new()));
            eventually("no other child", async || {
                let told = user.call("which", json!({})).await;
                let is_refused = told.map_or(true, |told| told["isError"] == true);
                is_refused.then_some(())
            })
            .await;
        }
        world.go();
    };
    let (text, ()) = tokio::join!(watch, meanwhile);
    assert_eq!(text, "alive");
    world.gw.stop().await;
}

#[tokio::test]
async fn timed_out_call_quotes_its_own_child_alone() {
    let world = World::start("idle_timeout = \"8s\"", "").await;
    let user = world.user().await;
    let mute = user.call("noisy", json!({"whose": "its own", "answers": false}));
    let meanwhile = async {
        world.replaced(&user).await;
        let other = json!({"whose": "the other", "answers": true});
        assert_eq!(user.text("noisy", other).await, "noisy");
        world.go();
    };
    let (mute, ()) = tokio::join!(mute, meanwhile);
    let said = format!("{mute:?}");
    assert!(said.contains("a line of its own"), "{said}");
    assert!(!said.contains("a line of the other"), "{said}");
    world.gw.stop().await;
}

/// Cancels a call of `tool` that a child has, once another child has the next calls. `check` is told the pid of the first
/// child, which lives until `check` is done.
async fn cancelled_after_replacement(
    (world, user): (&World, &Session),
    tool: &str,
    check: impl AsyncFnOnce(String),
) {
    let asked = json!({"name": tool, "arguments": {}, "_meta": {"progressToken": "mine"}});
    let (id, call) = user.start("tools/call", asked).await;
    let has_it = pid(&world.at("late")).await;
    // A call that the child lives for.
    let watch = user.text("watch", json!({}));
    let meanwhile = async {
        world.replaced(user).await;
        let enough = json!({"requestId": id, "reason": "enough"});
        user.notify("notifications/cancelled", enough).await;
        check(has_it).await;
        world.go();
    };
    let (text, ()) = tokio::join!(watch, meanwhile);
    assert_eq!(text, "alive");
    drop(call);
}

// Spec: SPEC C-10, C-11.
#[tokio::test]
async fn late_task_is_cancelled_at_the_child_that_has_it() {
    let world = World::start("", "").await;
    let user = world.user().await;
    cancelled_after_replacement((&world, &user), "late", async |has_it| {
        assert_eq!(pid(&world.at("cancelled")).await, has_it);
    })
    .await;
    world.gw.stop().await;
}

// Spec: SPEC C-10: the request that cancels a task says who called.
#[tokio::test]
async fn other_child_is_not_told_of_a_cancelled_call_that_it_answers() {
    let world = World::start("", "").await;
    let user = world.user().await;
    cancelled_after_replacement((&world, &user), "held", async |has_it| {
        assert_eq!(pid(&world.at("told")).await, has_it);
        assert_eq!(user.text("claims", json!({})).await, "done");
        std::fs::write(world.at("answer"), "").unwrap();
        assert_eq!(pid(&world.at("cancelled")).await, has_it);
    })
    .await;
    world.gw.stop().await;
}

// Spec: SPEC C-20.
#[tokio::test]
async fn log_message_goes_to_a_call_of_its_child() {
    let world = World::start("", "").await;
    let user = world.user().await;
    let level = json!({"level": "debug"});
    user.request("logging/setLevel", level).await.unwrap();
    let call = async |tool: &str| {
        let params = json!({"name": tool, "arguments": {}});
        user.start("tools/call", params).await.1.finish().await
    };
    let of_the_other = async {
        world.replaced(&user).await;
        let speaking = async {
            pid(&world.at("waits")).await;
            world.go();
        };
        tokio::join!(call("waits"), speaking).0
    };
    let logging = async {
        let ended = call("logs").await;
        std::fs::write(world.at("end"), "").unwrap();
        ended
    };
    let ((logged, _), (waited, reply)) = tokio::join!(logging, of_the_other);
    assert_eq!(text_of(&reply.unwrap()), "waited");
    assert_eq!(waited, Vec::<Value>::new());
    assert_eq!(logged.len(), 1, "{logged:?}");
    assert_eq!(logged[0]["params"]["data"], "said");
    world.gw.stop().await;
}

#[tokio::test]
async fn replaced_child_answers_no_call_of_the_next_one() {
    let world = World::start("", "").await;
    let user = world.user().await;
    let forging = user.text("forges", json!({}));
    let of_the_other = async {
        world.replaced(&user).await;
        let speaking = async {
            pid(&world.at("waits")).await;
            world.go();
        };
        tokio::join!(user.text("waits", json!({})), speaking).0
    };
    let forging = async {
        let said = forging.await;
        std::fs::write(world.at("end"), "").unwrap();
        said
    };
    let (forged, waited) = tokio::join!(forging, of_the_other);
    assert_eq!(forged, "done");
    assert_eq!(waited, "waited");
    world.gw.stop().await;
}

/// More than the system keeps of answers that are not read.
const CALLS: i64 = 5;

/// Room for four of these answers.
const LIMITS: &str = "[limits]\nupstream_message = \"8MiB\"\nsse_event = \"8MiB\"\n\
                      replies_per_principal = \"32MiB\"\nreplies_total = \"128MiB\"";

/// Calls with large answers.
fn big_calls() -> Vec<Value> {
    let big = |id: i64| {
        json!({"jsonrpc": "2.0", "id": 100_000 + id, "method": "tools/call",
               "params": {"name": "big", "arguments": {}}})
    };
    (0..CALLS).map(big).collect()
}

/// Waits until an answer has no room.
async fn reply_waits(gw: &Gateway) {
    eventually("a reply that waits", async || {
        let waited = gw.metric("drawbridge_replies_waited_total", "").await;
        (waited > 0.0).then_some(())
    })
    .await;
}

// Spec: SPEC U-12: its reply waits behind others that are not read.
#[tokio::test]
async fn idle_clocks_stand_still_for_the_child_that_is_not_read() {
    let world = World::start("idle_timeout = \"9s\"", LIMITS).await;
    let user = world.user().await;
    let messages = big_calls();
    let unread = join_all(messages.iter().map(|message| user.post(message)));
    let slow = user.call("slow", json!({}));
    let meanwhile = async {
        world.replaced(&user).await;
        world.go();
        reply_waits(&world.gw).await;
        // The other child is read: for its call time goes on.
        let mute = json!({"whose": "the other", "answers": false});
        let told = within("the end of an idle call", user.call("noisy", mute)).await;
        format!("{told:?}")
    };
    let work = async {
        let (unread, told) = tokio::join!(unread, meanwhile);
        assert!(told.contains("in time"), "{told}");
        join_all(unread.into_iter().map(Answer::message))
            .await
            .len()
    };
    let (slow, count) = tokio::join!(slow, work);
    assert_eq!(text_of(&slow.expect("a result")), "slow");
    assert_eq!(count, messages.len());
    world.gw.stop().await;
}

// Spec: SPEC U-12. Where sessions share a child, an answer is read before its caller has room for it, and waits then.
#[tokio::test]
async fn idle_clocks_stand_still_while_a_draining_child_waits_for_room() {
    let keys = "isolation = \"principal\"\nidle_timeout = \"9s\"";
    let world = World::start(keys, LIMITS).await;
    let user = world.user().await;
    // The child of another user is read: for its call time goes on.
    let other = world.gw.principal("bob").open("/mcp/up").await;
    let messages = big_calls();
    let unread = join_all(messages.iter().map(|message| user.post(message)));
    let slow = user.call("slow", json!({}));
    let meanwhile = async {
        // It begins after the slow call, and ends after the same time: a clock that went on would have run out before.
        pid(&world.at("called")).await;
        let mute = within("the end of an idle call", other.call("waits", json!({})));
        let waiting = async {
            world.replaced(&user).await;
            world.go();
            reply_waits(&world.gw).await;
        };
        let (told, ()) = tokio::join!(mute, waiting);
        format!("{told:?}")
    };
    let work = async {
        let (unread, told) = tokio::join!(unread, meanwhile);
        assert!(told.contains("in time"), "{told}");
        join_all(unread.into_iter().map(Answer::message)).await
    };
    let (slow, answers) = tokio::join!(slow, work);
    assert_eq!(text_of(&slow.expect("a result")), "slow");
    for answer in answers {
        assert_eq!(text_of(&answer["result"]).len(), 7_500_000);
    }
    world.gw.stop().await;
}
