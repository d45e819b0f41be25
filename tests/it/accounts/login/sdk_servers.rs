//! Servers on the official Python SDK that demand tokens of a second real authorization server and say the name of the
//! token's user in all that they declare and list (`tests/servers/personal.py`, `tests/as/authlib_server.py`).

use std::path::Path;

use http::StatusCode;
use rstest::rstest;
use serde_json::json;

use super::path_in;
use super::world::{Browser, SECRET, World};
use crate::accounts::personal::claims;
use crate::accounts::world::tells_none;
use crate::harness::http::{Actor, everything};
use crate::harness::peers::{self, Service};
use crate::harness::session::text_of;
use crate::modern::Modern;

const LISTS: [&str; 3] = ["tools/list", "prompts/list", "resources/list"];

/// The upstream, and the file with the tokens that it was sent.
struct PersonalServer {
    url: String,
    seen: tempfile::NamedTempFile,
    _server: Service,
}

impl PersonalServer {
    async fn start(environment: &str, issuer: &str) -> Self {
        let seen = tempfile::NamedTempFile::new().unwrap();
        let (script, file) = (peers::script("servers/personal.py"), seen.path().display());
        let (python, file) = (peers::environment(environment), file.to_string());
        let server = peers::serve(&python, &[&script, issuer, &file], &[]).await;
        Self {
            url: server.first_line.clone(),
            seen,
            _server: server,
        }
    }

    fn tokens(&self) -> Vec<String> {
        let seen = std::fs::read_to_string(self.seen.path()).unwrap();
        seen.lines().map(str::to_owned).collect()
    }
}

/// What a legacy client is told in a session of its own: hello, lists, and the answer of the user's tool.
async fn legacy_says(actor: &Actor, (path, prefix): (&str, &str), user: &str) -> String {
    let session = actor.open_as(path, "2025-11-25", everything()).await;
    let mut said = session.hello.to_string();
    for method in LISTS {
        said += &session
            .request(method, json!({}))
            .await
            .unwrap()
            .to_string();
    }
    let tool = format!("{prefix}greet_{user}");
    let answer = session.call(&tool, json!({"text": "legacy"})).await;
    said + &answer.unwrap().to_string()
}

/// The same of a modern client.
async fn modern_says(actor: &Actor, user: &str) -> String {
    let client = Modern::new(actor.clone(), "/mcp/up");
    let call = json!({"name": format!("greet_{user}"), "arguments": {"text": "modern"}});
    let lists = LISTS.map(|method| (method, json!({})));
    let mut said = String::new();
    for (method, params) in [("server/discover", json!({}))]
        .into_iter()
        .chain(lists)
        .chain([("tools/call", call)])
    {
        let message = client.request(&json!(1), method, params);
        let answer = client.post(&message).await.expect(StatusCode::OK).await;
        let answer = answer.json().await;
        assert!(answer.get("error").is_none(), "{method}: {answer}");
        said += &answer["result"].to_string();
    }
    said
}

/// A user with programs at the endpoint of the upstream and at the merged one.
struct User {
    name: &'static str,
    pure: Actor,
    merged: Actor,
}

impl User {
    fn new(world: &World<PersonalServer>, name: &'static str) -> Self {
        Self {
            name,
            pure: world.caller(name),
            merged: world.caller_at(name, "/mcp"),
        }
    }

    /// What its programs are told, in both eras.
    async fn is_told(&self) -> String {
        let legacy = legacy_says(&self.pure, ("/mcp/up", ""), self.name).await;
        let modern = modern_says(&self.pure, self.name).await;
        let merged = legacy_says(&self.merged, ("/mcp", "up__"), self.name).await;
        format!("{legacy}\n{modern}\n{merged}")
    }

    /// Connects its account from the link of a call.
    async fn connect(&self, world: &World<PersonalServer>) {
        let revision = "2025-06-18";
        let session = self.pure.open_as("/mcp/up", revision, json!({})).await;
        assert_eq!(session.tools().await, ["connect_up"], "{}", self.name);
        let refused = session.call("connect_up", json!({})).await.unwrap();
        let mut browser = Browser::new();
        let link = path_in(text_of(&refused));
        let page = world.log_in(&mut browser, &link, self.name).await;
        let departs = browser.submit(&page, &[("action", "connect")]).await;
        let callback = format!("{}/connect/", world.gw.url);
        let next = departs.goes_on();
        let answer = browser.walk(&next, self.name, &callback).await;
        let done = browser.open(&answer).await;
        assert!(done.text.contains("up is connected"), "{}", done.text);
    }
}

/// Each line of `said` names `user` in every place, and the other user in none.
fn is_of(user: &str, said: &str) {
    for line in said.lines() {
        for part in ["Hello", "Greets", "A letter of", "Notes of", "I am"] {
            let part = format!("{part} {user}");
            assert!(line.contains(&part), "{part}: {line}");
        }
    }
    let other = if user == "alice" { "bob" } else { "alice" };
    assert!(!said.contains(other), "{user}: {said}");
}

/// No file in `dir` holds one of `secrets`.
fn files_hold_none(dir: &Path, secrets: &[String]) {
    for file in std::fs::read_dir(dir).unwrap() {
        let path = file.unwrap().path();
        let bytes = std::fs::read(&path).unwrap();
        for secret in secrets {
            let mut windows = bytes.windows(secret.len());
            let holds = windows.any(|part| part == secret.as_bytes());
            assert!(!holds, "{secret} in {}", path.display());
        }
    }
}

// SDK 1.x names an issuer without a path with a slash at its end, which the server's own metadata does not have.
#[rstest]
#[case::legacy_server("python1", true)]
#[case::server_of_both_eras("python2", false)]
#[tokio::test]
async fn two_users_never_see_what_is_of_the_other(
    #[case] environment: &str,
    #[case] with_issuer: bool,
) {
    if !peers::are_installed() {
        return;
    }
    let script = peers::script("as/authlib_server.py");
    let server = peers::serve(&peers::environment("authlib"), &[&script], &[]).await;
    let issuer = &server.first_line;
    let upstream = PersonalServer::start(environment, issuer).await;
    let url = upstream.url.clone();
    let issued_by = if with_issuer {
        format!("issuer = {issuer:?}")
    } else {
        String::new()
    };
    let keys = format!("{issued_by}\n[upstreams.down]\nurl = \"http://127.0.0.1:9/mcp\"\n");
    let world = World::of_users_before(upstream, &url, &keys).await;
    let (alice, bob) = (User::new(&world, "alice"), User::new(&world, "bob"));
    // What is known of one account is warm when the next one comes, and then both are.
    for user in [&alice, &bob] {
        user.connect(&world).await;
        is_of(user.name, &user.is_told().await);
    }
    let (of_alice, of_bob) = tokio::join!(alice.is_told(), bob.is_told());
    is_of("alice", &of_alice);
    is_of("bob", &of_bob);

    let mut tokens = world.upstream.tokens();
    tokens.sort_unstable();
    tokens.dedup();
    assert_eq!(tokens.len(), 2, "{tokens:?}");
    for token in &tokens {
        let claims = claims(token).unwrap();
        assert_eq!(
            (&claims["iss"], &claims["aud"]),
            (&json!(issuer), &json!(url))
        );
    }
    let callers = [&alice.pure, &alice.merged, &bob.pure, &bob.merged];
    let of_callers = callers.map(|caller| caller.token().unwrap().to_owned());
    let mut secrets = tokens;
    secrets.extend(of_callers);
    secrets.push(SECRET.to_owned());
    tells_none(&world.gw, &secrets).await;
    files_hold_none(world.state.path(), &secrets);
    world.gw.stop().await;
}
