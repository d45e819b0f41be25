//! Accounts of upstreams that are started by `command`: the token or key is in the environment of a caller's child.

use std::path::Path;

use rstest::rstest;
use serde_json::{Value, json};

use super::personal::{exchange, exchanges};
use super::user_key::{KEY, OTHER, Page};
use super::world::{Answering, AuthServer, SECRET, account, tells_none};
use crate::harness::gateway::without_landlock;
use crate::harness::http::{Actor, everything, initialize};
use crate::harness::session::{Session, text_of};
use crate::harness::{Gateway, Setup, eventually};
use crate::modern::Modern;

/// Keys of the account of a child.
const CHILD: &str = "env = \"TRACKER_TOKEN\"\nresource = \"https://api.test/v1\"";

/// A client of one era.
enum Client {
    Legacy(Session),
    Modern(Modern),
}

impl Client {
    async fn open(actor: Actor, era: &str) -> Self {
        if era == "modern" {
            return Self::Modern(Modern::new(actor, "/mcp/up"));
        }
        Self::Legacy(actor.open_as("/mcp/up", "2025-11-25", everything()).await)
    }

    /// The result of a tool, or the error.
    async fn call(&self, tool: &str, arguments: Value) -> Value {
        match self {
            Self::Legacy(session) => match session.call(tool, arguments).await {
                Ok(result) => result,
                Err(error) => error,
            },
            Self::Modern(client) => {
                let params = json!({"name": tool, "arguments": arguments});
                let message = client.request(&json!(1), "tools/call", params);
                let answer = client.post(&message).await;
                let answer = if answer.is_stream() {
                    let mut events = answer.events();
                    loop {
                        let event = events.next().await.expect("a reply");
                        let message = event.message();
                        if let Some(reply) = message.filter(|one| one.get("method").is_none()) {
                            break reply;
                        }
                    }
                } else {
                    answer.json().await
                };
                match answer.get("result") {
                    Some(result) => result.clone(),
                    None => answer["error"].clone(),
                }
            }
        }
    }

    async fn text(&self, tool: &str, arguments: Value) -> String {
        let result = self.call(tool, arguments).await;
        assert!(result.get("content").is_some(), "{result}");
        text_of(&result).to_owned()
    }

    /// What the child has in the variable of its account.
    async fn token(&self) -> String {
        self.text("env", json!({"name": "TRACKER_TOKEN"})).await
    }

    async fn pid(&self) -> u32 {
        self.text("pid", json!({})).await.parse().unwrap()
    }
}

/// A gateway whose own account at `server` is in the environment of children that speak `era`.
async fn gateway(server: &AuthServer, era: &str, ledger: &Path) -> Gateway {
    let ledger = ledger.display().to_string();
    Setup::secured()
        .stub("up", &["--era", era, "--ledger", &ledger])
        .toml(&account(server, CHILD))
        .start()
        .await
}

#[rstest]
#[tokio::test]
async fn token_of_the_gateway_is_in_the_environment_of_each_child(
    #[values("legacy", "modern")] era: &str,
) {
    let server = AuthServer::start().await;
    let ledger = tempfile::tempdir().unwrap();
    let gw = gateway(&server, era, ledger.path()).await;
    for user in ["alice", "bob"] {
        let client = Client::open(gw.principal(user), era).await;
        assert_eq!(client.token().await, server.issued()[0]);
    }
    let forms = server.forms();
    assert_eq!(forms.len(), 1, "{forms:?}");
    assert_eq!(forms[0]["resource"], "https://api.test/v1");
    assert!(!forms[0].contains_key("scope"), "{forms:?}");
    let all = [server.issued(), vec![SECRET.to_owned()]].concat();
    tells_none(&gw, &all).await;
    gw.stop().await;
}

fn runs(gw: &Gateway, pid: u32) -> bool {
    gw.children().iter().any(|process| process.pid == pid)
}

#[rstest]
#[tokio::test]
async fn child_is_replaced_after_the_end_of_its_token_and_ends_its_calls(
    #[values("legacy", "modern")] era: &str,
) {
    let server = AuthServer::start().await;
    server.answers(Answering::Tokens(Some(2)));
    let ledger = tempfile::tempdir().unwrap();
    let gw = gateway(&server, era, ledger.path()).await;
    let client = Client::open(gw.principal("alice"), era).await;
    let (first, token) = (client.pid().await, client.token().await);
    server.answers(Answering::Tokens(Some(600)));
    let lingering = client.call("linger", json!({"key": "one"}));
    let meanwhile = async {
        let running = || std::fs::read_to_string(ledger.path().join("one")).ok();
        eventually("the long call", async || {
            running().filter(|text| text == "running")
        })
        .await;
        let second = eventually("another child", async || {
            let pid = client.pid().await;
            (pid != first).then_some(pid)
        })
        .await;
        assert_ne!(client.token().await, token);
        assert_eq!(
            client.pid().await,
            second,
            "for as long as its token is good"
        );
        assert!(runs(&gw, first), "its call still runs");
        std::fs::write(ledger.path().join("one.go"), "").unwrap();
    };
    let (lingered, ()) = tokio::join!(lingering, meanwhile);
    assert_eq!(text_of(&lingered), "done");
    eventually("the end of the first child", async || {
        (!runs(&gw, first)).then_some(())
    })
    .await;
    gw.stop().await;
}

#[rstest]
#[tokio::test]
async fn unused_child_gives_its_only_place_to_the_one_with_the_next_token(
    #[values("legacy", "modern")] era: &str,
) {
    let server = AuthServer::start().await;
    server.answers(Answering::Tokens(Some(2)));
    let gw = Setup::secured()
        .stub_with("up", &["--era", era], "max_children = 1\n")
        .toml(&account(&server, CHILD))
        .start()
        .await;
    let client = Client::open(gw.principal("alice"), era).await;
    let first = client.pid().await;
    eventually("another child", async || {
        (client.pid().await != first).then_some(())
    })
    .await;
    gw.stop().await;
}

// No answer of a child proves that its token was refused.
#[rstest]
#[tokio::test]
async fn error_and_end_of_a_child_are_no_refusal_of_its_token(
    #[values("legacy", "modern")] era: &str,
) {
    let server = AuthServer::start().await;
    let ledger = tempfile::tempdir().unwrap();
    let gw = gateway(&server, era, ledger.path()).await;
    let client = Client::open(gw.principal("alice"), era).await;
    let (pid, token) = (client.pid().await, client.token().await);
    let failed = client
        .call("fail", json!({"message": "401 Unauthorized"}))
        .await;
    assert_eq!(failed["isError"], true, "{failed}");
    assert_eq!(client.pid().await, pid);
    client
        .call("crash", json!({"words": format!("no luck with {token}")}))
        .await;
    assert_eq!(client.token().await, token);
    assert_ne!(client.pid().await, pid);
    assert_eq!(server.issued().len(), 1);
    tells_none(&gw, &[token]).await;
    gw.stop().await;
}

#[rstest]
#[tokio::test]
async fn each_caller_has_a_child_with_a_token_exchanged_for_its_own(
    #[values("session", "principal")] isolation: &str,
    #[values("legacy", "modern")] era: &str,
) {
    let server = AuthServer::start().await;
    exchanges(&server, 600);
    let gw = Setup::secured()
        .stub_with(
            "up",
            &["--era", era],
            &format!("isolation = {isolation:?}\n"),
        )
        .toml(&exchange(&server, CHILD))
        .start()
        .await;
    let mut pids = Vec::new();
    for user in ["alice", "bob"] {
        let client = Client::open(gw.principal(user), era).await;
        let token = client.token().await;
        assert!(token.starts_with(&format!("for-{user}-")), "{token}");
        pids.push(client.pid().await);
    }
    assert_ne!(pids[0], pids[1]);
    assert_eq!(server.issued().len(), 2);
    gw.stop().await;
}

/// A server whose tool `spy` says what it reads of the environment of others; `own` says its token.
const SPY: &str = "
import json, os, sys
def spied():
    found = []
    for pid in os.listdir('/proc'):
        if pid.isdigit() and int(pid) != os.getpid():
            try:
                variables = open('/proc/' + pid + '/environ', 'rb').read().split(bytes(1))
            except OSError:
                continue
            found += [one.decode() for one in variables if one.startswith(b'TRACKER_TOKEN=')]
    return ' '.join(found) or 'nothing'
def result(message):
    if message['method'] == 'initialize':
        return {'protocolVersion': '2025-11-25', 'capabilities': {'tools': {}}, 'serverInfo': {'name': 'spy', 'version': '1'}}
    if message['method'] == 'tools/list':
        return {'tools': [{'name': name, 'inputSchema': {'type': 'object'}} for name in ('spy', 'own')]}
    if message['method'] == 'tools/call':
        own = message['params']['name'] == 'own'
        text = os.environ.get('TRACKER_TOKEN', 'none') if own else spied()
        return {'content': [{'type': 'text', 'text': text}]}
for line in sys.stdin:
    message = json.loads(line)
    if 'id' in message:
        answer = result(message)
        if answer is None:
            answer = {'error': {'code': -32601, 'message': 'unknown'}}
        else:
            answer = {'result': answer}
        print(json.dumps({'jsonrpc': '2.0', 'id': message['id'], **answer}), flush=True)
";

#[rstest]
#[case::isolated(false)]
#[case::trusted(true)]
#[tokio::test]
async fn child_reads_the_token_of_a_sibling_only_where_children_are_trusted(#[case] trusted: bool) {
    let server = AuthServer::start().await;
    exchanges(&server, 600);
    let gw = Setup::secured()
        .stdio("up", "python3", &["-u", "-c", SPY], "")
        .toml(&exchange(&server, CHILD))
        .toml(&format!("[stdio]\ntrust_children = {trusted}"))
        .start()
        .await;
    let (alice, bob) = (gw.principal("alice"), gw.principal("bob"));
    let (alice, bob) = (alice.open("/mcp/up").await, bob.open("/mcp/up").await);
    let token = bob.text("own", json!({})).await;
    assert!(token.starts_with("for-bob-"), "{token}");
    assert_ne!(alice.text("own", json!({})).await, token);
    let spied = alice.text("spy", json!({})).await;
    if trusted {
        assert!(spied.contains(&token), "{spied}");
    } else {
        assert_eq!(spied, "nothing");
    }
    let warned = gw.log().join("\n").contains("can read the tokens and keys");
    assert_eq!(warned, trusted);
    gw.stop().await;
}

/// The tables of keys that are pasted for a child.
pub(super) fn keys_table(state: &Path) -> String {
    let at = |name: &str| state.join(name).display().to_string();
    std::fs::write(at("vault.key"), "k".repeat(32)).unwrap();
    format!(
        "[upstreams.up.auth]\nkind = \"user_key\"\nenv = \"TRACKER_TOKEN\"\n[database]\nurl = \"sqlite:{}\"\n\
         [keys]\nvault = [{{ id = \"k1\", file = \"{}\" }}]\n",
        at("test.db"),
        at("vault.key")
    )
}

/// How many children of the upstream run.
async fn children(gw: &Gateway) -> u64 {
    let (_, status) = gw.admin_text("/status").await.unwrap();
    let status: Value = serde_json::from_str(&status).unwrap();
    status["upstreams"][0]["children"].as_u64().unwrap()
}

pub(super) async fn page(gw: &Gateway) -> Page {
    Page::at(gw.url.clone(), "/connect/up").await
}

#[rstest]
#[tokio::test]
async fn key_is_asked_for_before_a_child_is_started(#[values("legacy", "modern")] era: &str) {
    let state = tempfile::tempdir().unwrap();
    let gw = Setup::open()
        .stub("up", &["--era", era])
        .toml(&keys_table(state.path()))
        .start()
        .await;
    // A client that cannot show URLs is told the link.
    let session = gw
        .anonymous()
        .open_as("/mcp/up", "2025-06-18", json!({}))
        .await;
    assert_eq!(session.tools().await, ["connect_up"]);
    let asked = session.call("env", json!({"name": "TRACKER_TOKEN"})).await;
    let asked = asked.unwrap();
    assert!(text_of(&asked).contains("/connect/up?"), "{asked}");
    assert_eq!(children(&gw).await, 0);

    let shown = page(&gw).await;
    assert!(
        shown.text.contains("program stub-upstream"),
        "{}",
        shown.text
    );
    shown.submit("connect", KEY).await;
    let client = Client::open(gw.anonymous(), era).await;
    assert_eq!(client.token().await, KEY);
    let pid = client.pid().await;
    assert_eq!(client.pid().await, pid);

    page(&gw).await.submit("connect", OTHER).await;
    eventually("the other key", async || {
        (client.token().await == OTHER).then_some(())
    })
    .await;
    assert_ne!(client.pid().await, pid);
    page(&gw).await.submit("disconnect", "").await;
    eventually("no child", async || {
        (children(&gw).await == 0).then_some(())
    })
    .await;
    tells_none(&gw, &[KEY.to_owned(), OTHER.to_owned()]).await;
    gw.stop().await;
}

#[tokio::test]
async fn key_of_another_variable_is_asked_for_again() {
    let state = tempfile::tempdir().unwrap();
    let tables = keys_table(state.path());
    let start = async |tables: &str| Setup::open().stub("up", &[]).toml(tables).start().await;
    let gw = start(&tables).await;
    page(&gw).await.submit("connect", KEY).await;
    gw.stop().await;
    let gw = start(&tables.replace("TRACKER_TOKEN", "OTHER_TOKEN")).await;
    let session = gw
        .anonymous()
        .open_as("/mcp/up", "2025-06-18", json!({}))
        .await;
    let asked = session
        .call("env", json!({"name": "OTHER_TOKEN"}))
        .await
        .unwrap();
    assert!(text_of(&asked).contains("/connect/up?"), "{asked}");
    gw.stop().await;
}

#[tokio::test]
async fn accounts_of_children_are_not_used_without_landlock() {
    let server = AuthServer::start().await;
    let table = account(&server, CHILD);
    let setup = |keys: &str| {
        Setup::open()
            .stub("up", &[])
            .toml(&table)
            .toml(keys)
            .render()
    };
    let gw = Gateway::start_without_landlock(&setup("")).await;
    let hello = initialize(1, "2025-11-25", &json!({}));
    let refused = gw
        .anonymous()
        .post("/mcp/up", &[], &hello)
        .await
        .text()
        .await;
    assert!(refused.contains("cannot keep its credential"), "{refused}");
    let (_, status) = gw.admin_text("/status").await.unwrap();
    let status: Value = serde_json::from_str(&status).unwrap();
    assert_eq!(status["children"], "unsupported");
    let cause = &status["upstreams"][0]["account"]["cause"];
    assert!(cause.to_string().contains("trust_children"), "{status}");
    let said =
        |gw: &Gateway, text: &str| gw.log().iter().filter(|line| line.contains(text)).count();
    assert_eq!(said(&gw, "accounts of stdio upstreams are not used"), 1);
    assert_eq!((server.issued().len(), children(&gw).await), (0, 0));
    gw.stop().await;

    let trusting = setup("[stdio]\ntrust_children = true");
    let gw = Gateway::start_without_landlock(&trusting).await;
    let session = gw.anonymous().open("/mcp/up").await;
    let token = session.text("env", json!({"name": "TRACKER_TOKEN"})).await;
    assert_eq!(token, server.issued()[0]);
    assert_eq!(said(&gw, "can read the tokens and keys"), 1);
    gw.stop().await;

    for (text, complaint) in [
        (setup(""), "accounts of stdio upstreams are not used"),
        (trusting, "can read the tokens and keys"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("g.toml");
        std::fs::write(&file, text).unwrap();
        let mut check = without_landlock();
        let output = check.arg("check").arg("--config").arg(&file).output().await;
        let output = output.unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains(complaint), "{said}");
    }
}
