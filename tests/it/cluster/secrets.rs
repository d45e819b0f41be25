//! What callers and upstreams must keep to themselves stands in clear nowhere in Redis: neither in what it is told, nor
//! in its files. Spec: DESIGN §8.1; `docs/adr/0025`.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

use base64::Engine as _;
use base64::prelude::{BASE64_STANDARD_NO_PAD, BASE64_URL_SAFE_NO_PAD};
use drawbridge::database::{Database, DatabasePlace};
use drawbridge::redis_client::cmd;
use serde_json::{Value, json};

use super::adoption::{LEASE, adopted, ping};
use super::knows;
use crate::accounts::personal::exchange;
use crate::accounts::world::{self, Answering, AuthServer, GuardedUpstream};
use crate::harness::postgres;
use crate::harness::redis::{self, RedisServer};
use crate::harness::session::text_of;
use crate::harness::{Actor, Gateway, Session, Setup, eventually};
use crate::modern::Modern;

// The secrets. They have no character that JSON or a URL escapes.
const REDIS_PASSWORD: &str = "marked-password-of-redis-4f1b";
const CLUSTER_SECRET: &str = "marked-secret-of-the-cluster-59d0-1c7e";
const SEALING_KEY: &str = "marked-key-that-seals-records-88a2-60b3";
const VAULT_KEY: &str = "marked-key-that-seals-accounts-0d3e-77";
const UPSTREAM_HEADER: &str = "marked-header-of-an-upstream-c3d7";
const UPSTREAM_TOKEN: &str = "marked-token-of-an-upstream-7be2";
const ARGUMENT: &str = "marked-argument-of-a-tool-90aa";
const KEPT: &str = "marked-result-of-a-tool-d5f4";
const ANSWER: &str = "marked-answer-to-a-question-31c8";
const CLIENT: &str = "marked-name-of-a-client-e602";
const CALLER: &str = "marked-subject-of-a-token-2b9c";
/// No secret: the scan has to find it.
const PROBE: &str = "marked-probe-a7d1";

/// All that Redis is told from now on, as the command MONITOR shows it.
struct Monitor {
    connection: TcpStream,
    reader: JoinHandle<Vec<u8>>,
}

impl Monitor {
    fn start(redis: &RedisServer) -> Self {
        let mut connection = TcpStream::connect(("127.0.0.1", redis.port)).unwrap();
        connection.write_all(b"MONITOR\r\n").unwrap();
        let mut told = [0; 5];
        connection.read_exact(&mut told).unwrap();
        assert_eq!(&told, b"+OK\r\n");
        let mut reading = connection.try_clone().unwrap();
        let reader = std::thread::spawn(move || {
            let mut all = Vec::new();
            drop(reading.read_to_end(&mut all));
            all
        });
        Self { connection, reader }
    }

    fn stop(self) -> Vec<u8> {
        self.connection.shutdown(std::net::Shutdown::Both).unwrap();
        self.reader.join().unwrap()
    }
}

/// All files below a directory.
fn files(dir: &Path) -> Vec<u8> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        all.extend(if path.is_dir() {
            files(&path)
        } else {
            std::fs::read(&path).unwrap()
        });
    }
    all
}

/// The forms in which a text may be written: itself, hexadecimal, and Base64 at each of three offsets.
fn forms(secret: &str) -> Vec<Vec<u8>> {
    assert!(secret.len() > 20, "{secret:?} may be there by chance");
    let hexadecimal =
        { secret.bytes() }.fold(String::new(), |text, byte| format!("{text}{byte:02x}"));
    let mut forms = vec![secret.as_bytes().to_vec(), hexadecimal.into_bytes()];
    for engine in [&BASE64_STANDARD_NO_PAD, &BASE64_URL_SAFE_NO_PAD] {
        for offset in 0..3 {
            let mut shifted = vec![b'_'; offset];
            shifted.extend_from_slice(secret.as_bytes());
            let encoded = engine.encode(shifted);
            // The first and the last characters have bits of what stands beside.
            forms.push(encoded.as_bytes()[4..encoded.len() - 4].to_vec());
        }
    }
    forms
}

fn contains(place: &[u8], text: &[u8]) -> bool {
    memchr::memmem::find(place, text).is_some()
}

/// A replica before an upstream with tokens of each caller, and before a child that another replica starts again.
async fn replica(
    redis: &RedisServer,
    database: &str,
    (server, upstream): (&AuthServer, &GuardedUpstream),
    first: Option<&Gateway>,
) -> Gateway {
    let keys = format!("headers = {{ x-api-key = \"{UPSTREAM_HEADER}\" }}");
    let cluster = format!(
        "[keys]\nseal = [{{ id = \"k1\", key = \"{SEALING_KEY}\" }}]\n\
         vault = [{{ id = \"k1\", key = \"{VAULT_KEY}\" }}]\n[database]\nurl = \"{database}\"\n[cluster]\n\
         redis = \"redis://gate:{REDIS_PASSWORD}@127.0.0.1:{}\"\nlisten = \"127.0.0.1:0\"\n\
         secret = \"{CLUSTER_SECRET}\"\nlease = \"{}s\"\n",
        redis.port,
        LEASE.as_secs()
    );
    let setup = Setup::secured()
        // Every reply goes through the event log.
        .server("sse_after = \"0s\"")
        .toml(&cluster)
        .url("up", &upstream.url(), &keys)
        .toml(&exchange(server, ""))
        .stub_with("child", &[], "restartable = true");
    match first {
        Some(first) => setup.trusting(first).start().await,
        None => setup.start().await,
    }
}

/// The id that the upstream has given its session.
async fn upstream_session(session: &Session) -> String {
    let info = session.text("session_info", json!({})).await;
    let info: Value = serde_json::from_str(&info).unwrap();
    info["session"].as_str().expect("an id").to_owned()
}

/// A session of a client that says its name.
async fn open(actor: Actor, path: &str) -> Session {
    let hello = json!({
        "jsonrpc": "2.0", "id": 1, "method": "initialize",
        "params": {
            "protocolVersion": "2025-11-25", "capabilities": {"elicitation": {"form": {}}},
            "clientInfo": {"name": CLIENT, "version": "1"},
        },
    });
    let answer = actor.post(path, &[], &hello).await;
    Session::begin(actor, path, answer).await
}

/// A session that says and is told what is marked.
async fn tell(session: &Session) {
    session.text("echo", json!({"text": ARGUMENT})).await;
    session
        .text("state_set", json!({"key": "k", "value": KEPT}))
        .await;
    let kept = session.text("state_get", json!({"key": "k"})).await;
    assert!(kept.contains(KEPT), "{kept}");
    let (_, mut exchange) = session.start_call("ask_form", json!({})).await;
    let question = exchange.next().await.expect("a question");
    let answer = json!({"action": "accept", "content": {"name": ANSWER}});
    session.answer(&question, answer).await;
    let (_, reply) = exchange.finish().await;
    assert!(text_of(&reply.unwrap()).contains(ANSWER));
    session
        .call("fail", json!({"message": KEPT, "code": -32099}))
        .await
        .unwrap_err();
}

/// The same of a modern client, whose question is parked at one replica and answered at another.
async fn tell_modern(here: &Modern, there: &Modern) {
    let echoed = here.call("echo", json!({"text": ARGUMENT})).await.unwrap();
    assert_eq!(text_of(&echoed), ARGUMENT);
    let mut call = json!({"name": "ask_form", "arguments": {}});
    let asked = here.send("tools/call", call.clone()).await.unwrap();
    let keys = asked["inputRequests"]
        .as_object()
        .expect("a question")
        .keys();
    let answer = json!({"action": "accept", "content": {"name": ANSWER}});
    call["inputResponses"] = keys.map(|key| (key.clone(), answer.clone())).collect();
    call["requestState"] = asked["requestState"].clone();
    let done = there.send("tools/call", call).await.unwrap();
    assert!(text_of(&done).contains(ANSWER), "{done}");
}

/// Callers of both eras at two replicas; the first replica is killed, the second stopped. Returns all secrets beside the
/// constants.
async fn tour(redis: &RedisServer, database: &str) -> Vec<String> {
    let server = AuthServer::start().await;
    server.answers(Answering::Made(Arc::new(|_, number| {
        json!({
            "access_token": format!("{UPSTREAM_TOKEN}-{number}"), "token_type": "Bearer", "expires_in": 600,
            "issued_token_type": "urn:ietf:params:oauth:token-type:access_token",
        })
    })));
    let upstream = GuardedUpstream::start(&server, &[]).await;
    let one = replica(redis, database, (&server, &upstream), None).await;
    let two = replica(redis, database, (&server, &upstream), Some(&one)).await;
    for gateway in [&one, &two] {
        knows(gateway, 2).await;
    }
    tokio::time::sleep(LEASE).await;
    let audiences: Vec<String> = [&one, &two]
        .iter()
        .flat_map(|gateway| ["up", "child"].map(|name| format!("{}/mcp/{name}", gateway.url)))
        .collect();
    let token = one.issuer().mint(CALLER, &audiences, "mcp:tools");
    let mut marked: Vec<String> = token.split('.').skip(1).map(str::to_owned).collect();
    let mut sessions = Vec::new();
    for path in ["/mcp/up", "/mcp/child"] {
        let here = open(one.bearer(&token), path).await;
        let there = here.at(two.bearer(&token));
        tell(&here).await;
        tell(&there).await;
        if path == "/mcp/up" {
            marked.push(upstream_session(&here).await);
        }
        marked.push(here.id.clone());
        let users = [&one, &two].map(|gateway| Modern::new(gateway.bearer(&token), path));
        tell_modern(&users[0], &users[1]).await;
        sessions.push(there);
    }
    one.kill().await;
    for session in &sessions {
        eventually("the session goes on", async || {
            (session.post(&ping()).await.status() == 200).then_some(())
        })
        .await;
        tell(session).await;
    }
    assert!(adopted(&two).await > 0.5);
    two.stop().await;
    assert!(!server.issued().is_empty(), "a token was exchanged");
    marked.extend(server.issued());
    marked.push(world::SECRET.to_owned());
    marked
}

#[tokio::test]
async fn redis_is_told_no_secret_in_clear() {
    let password = format!(">{REDIS_PASSWORD}");
    let arguments = [
        "--appendonly",
        "yes",
        // Text would not be found in what is compressed.
        "--rdbcompression",
        "no",
        "--user",
        "gate",
        "on",
        &password,
        "~drawbridge:*",
        "+@all",
        "-@admin",
        "-@dangerous",
        "+info",
    ];
    let Some(redis) = redis::server(&arguments).await else {
        return;
    };
    let Some((_postgres, place)) = postgres::database().await else {
        return;
    };
    let DatabasePlace::Postgres(url) = &place else {
        panic!("a server");
    };
    let database = Database::connect(&place).await.unwrap();
    database.migrate().await.unwrap();
    database.close().await;
    let monitor = Monitor::start(&redis);
    let client = redis.client().await;
    let mut probe = cmd("SET");
    probe.arg("test:probe").arg(PROBE);
    client.command::<()>("probe", &probe).await.unwrap();
    let mut marked = tour(&redis, url.expose()).await;
    let constants = [
        REDIS_PASSWORD,
        CLUSTER_SECRET,
        SEALING_KEY,
        VAULT_KEY,
        UPSTREAM_HEADER,
        UPSTREAM_TOKEN,
        ARGUMENT,
        KEPT,
        ANSWER,
        CLIENT,
        CALLER,
    ];
    marked.extend(constants.map(str::to_owned));
    for (kind, least) in [("record", 2), ("events", 2)] {
        let mut keys = cmd("KEYS");
        keys.arg(format!("drawbridge:*:{kind}"));
        let keys: Vec<String> = client.command("keys", &keys).await.unwrap();
        assert!(keys.len() >= least, "{kind}: {keys:?}");
    }
    client.command::<()>("save", &cmd("SAVE")).await.unwrap();
    let places = [
        ("MONITOR", monitor.stop()),
        ("RDB", std::fs::read(redis.dir().join("dump.rdb")).unwrap()),
        ("AOF", files(&redis.dir().join("appendonlydir"))),
    ];
    for (place, bytes) in &places {
        assert!(contains(bytes, PROBE.as_bytes()), "{place} was not scanned");
        for secret in &marked {
            for form in forms(secret) {
                let form_text = String::from_utf8_lossy(&form);
                assert!(
                    !contains(bytes, &form),
                    "{place} has {secret} as {form_text}"
                );
            }
        }
    }
}
