//! `kind = "user_key"`: a key that the user pastes on the connect page, and calls that ask for it.

use std::path::Path;
use std::time::Duration;

use http::StatusCode;
use serde_json::{Value, json};

use super::world::{AuthServer, GuardedUpstream, Verdict, tells_none};
use crate::harness::session::text_of;
use crate::harness::{Gateway, Setup, eventually};
use crate::modern::Modern;

pub(super) const KEY: &str = "a-pasted-hunter2-key";
pub(super) const OTHER: &str = "another-pasted-hunter2-key";

/// A gateway of one user before an upstream that takes [`KEY`] and [`OTHER`].
pub(super) struct World {
    pub(super) gw: Gateway,
    pub(super) upstream: GuardedUpstream,
    state: tempfile::TempDir,
}

impl World {
    pub(super) async fn start(keys: &str) -> Self {
        Self::start_with("", keys).await
    }

    /// `auth` stands in the table of the upstream's account, `keys` after it.
    pub(super) async fn start_with(auth: &str, keys: &str) -> Self {
        let server = AuthServer::start().await;
        let upstream = GuardedUpstream::start(&server, &["--era", "dual"]).await;
        upstream.judges(|token, _| match token {
            Some(KEY | OTHER) => Verdict::Good,
            _ => Verdict::Unauthorized,
        });
        let state = tempfile::tempdir().unwrap();
        let at = |name: &str| state.path().join(name).display().to_string();
        std::fs::write(at("vault.key"), "k".repeat(32)).unwrap();
        let gw = Setup::open()
            .url("up", &upstream.url(), "")
            .toml(&format!(
                "[upstreams.up.auth]\nkind = \"user_key\"\nlabel = \"Paste <a> token\"\n\
                 help = \"https://up.test/tokens\"\n{auth}\n[database]\nurl = \"sqlite:{}\"\n\
                 [keys]\nvault = [{{ id = \"k1\", file = \"{}\" }}]\n{keys}\n",
                at("test.db"),
                at("vault.key")
            ))
            .start()
            .await;
        Self {
            gw,
            upstream,
            state,
        }
    }

    pub(super) fn origin(&self) -> String {
        url::Url::parse(&self.gw.url)
            .unwrap()
            .origin()
            .ascii_serialization()
    }

    /// The keys that the upstream was sent with the body that holds `text`.
    pub(super) fn keys_of(&self, text: &str) -> Vec<Option<String>> {
        let seen = self.upstream.seen();
        let of = seen.into_iter().filter(|(_, body)| body.contains(text));
        of.map(|(header, _)| header).collect()
    }
}

/// A browser that keeps the cookie of one page.
pub(super) struct Page {
    client: reqwest::Client,
    url: String,
    pub(super) origin: String,
    pub(super) cookie: String,
    pub(super) token: String,
    pub(super) text: String,
}

impl Page {
    /// Opens a page by the path and query of its URL.
    pub(super) async fn open(world: &World, path: &str) -> Self {
        Self::at(world.origin(), path).await
    }

    /// The same at the origin of a gateway.
    pub(super) async fn at(origin: String, path: &str) -> Self {
        let client = reqwest::Client::new();
        let url = format!("{origin}{path}");
        let answer = client.get(&url).send().await.unwrap();
        assert_eq!(answer.status(), StatusCode::OK);
        let cookie = answer.headers().get("set-cookie");
        let cookie = cookie.map_or("", |value| value.to_str().unwrap());
        let cookie = cookie.split(';').next().unwrap().to_owned();
        let text = answer.text().await.unwrap();
        let token = text.split_once("name=\"token\" value=\"");
        let token = token.map_or("", |(_, rest)| rest.split('"').next().unwrap());
        Self {
            client,
            url,
            origin,
            cookie,
            token: token.to_owned(),
            text: text.clone(),
        }
    }

    /// Sends its form, with these headers.
    pub(super) async fn send(
        &self,
        form: &[(&str, &str)],
        headers: &[(&str, &str)],
    ) -> (u16, String) {
        let body = url::form_urlencoded::Serializer::new(String::new())
            .extend_pairs(form)
            .finish();
        let mut request = self.client.post(&self.url).body(body);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let answer = request.send().await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    }

    pub(super) async fn submit(&self, action: &str, key: &str) -> String {
        let form = [("token", &*self.token), ("action", action), ("key", key)];
        let headers = [("origin", &*self.origin), ("cookie", &*self.cookie)];
        let (status, text) = self.send(&form, &headers).await;
        assert_eq!(status, 200, "{text}");
        text
    }
}

pub(super) async fn connect(world: &World, key: &str) {
    let text = Page::open(world, "/connect/up")
        .await
        .submit("connect", key)
        .await;
    assert!(text.contains("Connected"), "{text}");
}

fn files_hold(dir: &Path, text: &str) -> bool {
    let files = std::fs::read_dir(dir).unwrap();
    let mut contents = files.map(|file| std::fs::read(file.unwrap().path()).unwrap());
    contents.any(|bytes| {
        bytes
            .windows(text.len())
            .any(|part| part == text.as_bytes())
    })
}

/// Path and query of the first URL in `text`.
pub(super) fn path_in(text: &str) -> String {
    let url = text
        .split_whitespace()
        .find(|word| word.starts_with("http"));
    let url = url::Url::parse(url.unwrap_or_else(|| panic!("no URL in {text}"))).unwrap();
    format!("{}?{}", url.path(), url.query().unwrap_or_default())
}

#[tokio::test]
async fn pages_are_ours_alone_and_escape_what_they_show() {
    let world = World::start("").await;
    for path in ["/connect", "/connect/up"] {
        let url = format!("{}{path}", world.origin());
        let foreign = [("origin", "https://evil.example")];
        let request = reqwest::Client::new()
            .get(url)
            .header(foreign[0].0, foreign[0].1);
        let answer = request.send().await.unwrap();
        let headers = answer.headers().clone();
        let of = |name: &str| headers[name].to_str().unwrap().to_owned();
        assert!(headers.get("access-control-allow-origin").is_none());
        let policy = of("content-security-policy");
        for part in [
            "default-src 'none'",
            "style-src 'sha256-",
            "form-action 'self'",
            "frame-ancestors 'none'",
            "base-uri 'none'",
        ] {
            assert!(policy.contains(part), "{policy}");
        }
        assert_eq!(of("cache-control"), "no-store");
        assert_eq!(of("referrer-policy"), "same-origin");
        assert_eq!(of("x-frame-options"), "DENY");
        assert_eq!(of("content-type"), "text/html; charset=utf-8");
        let cookie = of("set-cookie");
        assert!(cookie.starts_with("__Host-"), "{cookie}");
        for part in ["; Path=/;", " Secure;", " HttpOnly;", " SameSite=Lax"] {
            assert!(cookie.contains(part), "{cookie}");
        }
        let text = answer.text().await.unwrap();
        assert!(
            !text.contains("<script") && !text.contains("<a> token"),
            "{text}"
        );
    }
    let text = Page::open(&world, "/connect/up").await.text;
    assert!(text.contains("Paste &lt;a&gt; token"), "{text}");
    assert!(text.contains("href=\"https://up.test/tokens\""), "{text}");
    let host = [("host", "evil.example")];
    let answer = world.gw.anonymous().get("/connect", &host).await;
    assert_eq!(answer.status(), 421);
    world.gw.stop().await;
}

#[tokio::test]
async fn key_is_kept_sealed_and_goes_to_its_upstream_alone() {
    let world = World::start("").await;
    let session = world
        .gw
        .anonymous()
        .open_as("/mcp/up", "2025-06-18", json!({}))
        .await;
    assert_eq!(session.tools().await, ["connect_up"]);
    let refused = session
        .call("echo", json!({"text": "early"}))
        .await
        .unwrap();
    assert_eq!(refused["isError"], true, "{refused}");
    assert!(text_of(&refused).contains("/connect/up?for="), "{refused}");
    assert_eq!(world.keys_of("early"), []);

    let mut listening = session.listen().await;
    let path = path_in(text_of(&refused));
    let page = Page::open(&world, &path).await;
    assert!(
        page.text.contains("harness"),
        "names the program: {}",
        page.text
    );
    page.submit("connect", &format!("  {KEY}\n")).await;
    let notice = listening.message().await.unwrap();
    assert!(
        notice["method"].as_str().unwrap().ends_with("list_changed"),
        "{notice}"
    );
    assert!(session.tools().await.contains(&"echo".to_owned()));
    assert_eq!(session.text("echo", json!({"text": "late"})).await, "late");
    assert_eq!(world.keys_of("late"), [Some(format!("Bearer {KEY}"))]);
    let shown = Page::open(&world, "/connect/up").await.text;
    assert!(shown.contains("Replace") && !shown.contains(KEY), "{shown}");
    assert!(!files_hold(world.state.path(), KEY));
    tells_none(&world.gw, &[KEY.to_owned()]).await;
    world.gw.stop().await;
}

#[tokio::test]
async fn replaced_key_is_used_and_a_removed_one_is_not() {
    let world = World::start("").await;
    connect(&world, KEY).await;
    let session = world
        .gw
        .anonymous()
        .open_as("/mcp/up", "2025-06-18", json!({}))
        .await;
    assert_eq!(session.text("echo", json!({"text": "one"})).await, "one");
    connect(&world, OTHER).await;
    eventually("the other key", async || {
        session.text("echo", json!({"text": "two"})).await;
        let last = world.keys_of("two").pop().flatten();
        (last == Some(format!("Bearer {OTHER}"))).then_some(())
    })
    .await;
    Page::open(&world, "/connect/up")
        .await
        .submit("disconnect", "")
        .await;
    let before = world.upstream.seen().len();
    let refused = session
        .call("echo", json!({"text": "three"}))
        .await
        .unwrap();
    assert_eq!(refused["isError"], true, "{refused}");
    assert_eq!(world.keys_of("three"), []);
    assert_eq!(session.tools().await, ["connect_up"]);
    let after = world.upstream.seen();
    // The gateway asks for lists of its own without any key: nothing of the caller.
    let is_of_caller = |(header, body): &&(Option<String>, String)| {
        !body.is_empty() && (header.is_some() || body.contains("tools/call"))
    };
    let of_caller = after[before..].iter().filter(is_of_caller);
    assert_eq!(of_caller.count(), 0, "{after:?}");
    world.gw.stop().await;
}

#[tokio::test]
async fn form_from_elsewhere_changes_nothing() {
    let world = World::start("").await;
    let page = Page::open(&world, "/connect/up").await;
    let stranger = Page::open(&world, "/connect/up").await;
    let form = |token| [("token", token), ("action", "connect"), ("key", KEY)];
    let (own, cookie) = (&*page.origin, &*page.cookie);
    for (what, token, headers) in [
        ("no cookie", &*page.token, vec![("origin", own)]),
        (
            "foreign cookie",
            &*page.token,
            vec![("origin", own), ("cookie", &*stranger.cookie)],
        ),
        (
            "foreign token",
            &*stranger.token,
            vec![("origin", own), ("cookie", cookie)],
        ),
        ("no token", "", vec![("origin", own), ("cookie", cookie)]),
        (
            "foreign page",
            &*page.token,
            vec![("origin", "https://evil.example"), ("cookie", cookie)],
        ),
        (
            "sandboxed page",
            &*page.token,
            vec![("origin", "null"), ("cookie", cookie)],
        ),
        (
            "cross-site",
            &*page.token,
            vec![
                ("origin", "null"),
                ("sec-fetch-site", "cross-site"),
                ("cookie", cookie),
            ],
        ),
        ("no origin", &*page.token, vec![("cookie", cookie)]),
    ] {
        let (status, text) = page.send(&form(token), &headers).await;
        assert_eq!(status, 403, "{what}: {text}");
        let shown = Page::open(&world, "/connect/up").await.text;
        assert!(shown.contains("not connected"), "{what}: {shown}");
    }
    // What a browser says of its own form, under the policy of these pages; some send no `Sec-Fetch-Site`.
    let headers = [
        ("origin", &*page.origin),
        ("sec-fetch-site", "same-origin"),
        ("cookie", cookie),
    ];
    assert_eq!(page.send(&form(&page.token), &headers).await.0, 200);
    world.gw.stop().await;
}

// SPEC C-85: accept is not completion.
#[tokio::test]
async fn legacy_call_is_asked_on_its_stream_and_goes_on_with_the_account() {
    let world = World::start("").await;
    let session = world.gw.anonymous().open("/mcp/up").await;
    let (_, exchange) = session.start_call("echo", json!({"text": "waited"})).await;
    let mut stream = exchange.stream();
    let question = stream.message().await.unwrap();
    assert_eq!(question["method"], "elicitation/create", "{question}");
    assert_eq!(question["params"]["mode"], "url");
    let url = question["params"]["url"].as_str().unwrap().to_owned();
    session.answer(&question, json!({"action": "accept"})).await;
    assert_eq!(world.keys_of("waited"), []);
    Page::open(&world, &path_in(&url))
        .await
        .submit("connect", KEY)
        .await;
    let mut seen = Vec::new();
    let reply = loop {
        let message = stream.message().await.expect("a reply");
        if message.get("method").is_none() {
            break message;
        }
        seen.push(message);
    };
    assert_eq!(text_of(&reply["result"]), "waited", "{reply}");
    let id = &question["params"]["elicitationId"];
    let is_complete = |message: &Value| {
        message["method"] == "notifications/elicitation/complete"
            && message["params"]["elicitationId"] == *id
    };
    assert!(seen.iter().any(is_complete), "{seen:?}");
    world.gw.stop().await;
}

// SPEC C-83
#[tokio::test]
async fn legacy_call_ends_with_the_link_when_the_wait_is_over() {
    let world = World::start("[connect]\nwait = \"300ms\"").await;
    let session = world.gw.anonymous().open("/mcp/up").await;
    let (_, exchange) = session.start_call("echo", json!({"text": "x"})).await;
    let (_, reply) = tokio::time::timeout(Duration::from_secs(10), exchange.finish())
        .await
        .expect("the wait ends");
    let error = reply.unwrap_err();
    assert_eq!(error["code"], -32042, "{error}");
    let url = error["data"]["elicitations"][0]["url"].as_str().unwrap();
    assert!(url.contains("/connect/up?for="), "{url}");
    world.gw.stop().await;
}

#[tokio::test]
async fn modern_call_returns_with_the_account() {
    let world = World::start("").await;
    let user = Modern::new(world.gw.anonymous(), "/mcp/up");
    let params = json!({"name": "echo", "arguments": {"text": "modern"}});
    let asked = user.send("tools/call", params.clone()).await.unwrap();
    assert_eq!(asked["resultType"], "input_required", "{asked}");
    let (key, entry) = asked["inputRequests"]
        .as_object()
        .unwrap()
        .iter()
        .next()
        .unwrap();
    let url = entry["params"]["url"].as_str().unwrap();
    Page::open(&world, &path_in(url))
        .await
        .submit("connect", KEY)
        .await;
    let mut again = params;
    again["inputResponses"] = json!({key.as_str(): {"action": "accept"}});
    again["requestState"] = asked["requestState"].clone();
    let done = user.send("tools/call", again).await.unwrap();
    assert_eq!(text_of(&done), "modern", "{done}");
    world.gw.stop().await;
}

// The session of modern clients is one for all programs of a principal.
#[tokio::test]
async fn page_names_the_program_whose_call_asked() {
    let world = World::start("").await;
    let program = |name: &str| {
        let info = json!({"io.modelcontextprotocol/clientInfo": {"name": name, "version": "1"}});
        Modern::new(world.gw.anonymous(), "/mcp/up").meta(info)
    };
    let first = program("early-bird");
    first.send("tools/list", json!({})).await.unwrap();
    let params = json!({"name": "echo", "arguments": {"text": "x"}});
    let asked = program("late-riser").send("tools/call", params).await;
    let asked = asked.unwrap();
    let mut entries = asked["inputRequests"].as_object().unwrap().values();
    let url = entries.next().unwrap()["params"]["url"].as_str().unwrap();
    let page = Page::open(&world, &path_in(url)).await.text;
    assert!(page.contains("late-riser"), "{page}");
    assert!(!page.contains("early-bird"), "{page}");
    world.gw.stop().await;
}

#[tokio::test]
async fn merged_endpoint_shows_the_tool_that_connects() {
    let world =
        World::start("[upstreams.free]\ncommand = \"true\"\n[mcp]\nprefix = \"always\"").await;
    let session = world
        .gw
        .anonymous()
        .open_as("/mcp", "2025-06-18", json!({}))
        .await;
    let tools = session.tools().await;
    assert_eq!(tools, ["connect_up"], "{tools:?}");
    let refused = session.call("connect_up", json!({})).await.unwrap();
    let path = path_in(text_of(&refused));
    Page::open(&world, &path).await.submit("connect", KEY).await;
    eventually("the tools of the upstream", async || {
        let tools = session.tools().await;
        tools.contains(&"up__echo".to_owned()).then_some(())
    })
    .await;
    assert!(!session.tools().await.contains(&"connect_up".to_owned()));
    let text = session.text("connect_up", json!({})).await;
    assert!(text.contains("is connected"), "{text}");
    world.gw.stop().await;
}
