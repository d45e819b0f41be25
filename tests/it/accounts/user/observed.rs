//! What operators and users see of accounts: audit records, programs, metrics, `/status`, traces, `check --online`.

use http::StatusCode;
use opentelemetry_proto::tonic::trace::v1::Span;
use serde_json::{Value, json};

use super::server::ConsentServer;
use super::world::{Browser, World, asked, echo, path_in, setup, upstream_of, with_query};
use crate::accounts::watch::{audited, checked, count_of, records};
use crate::accounts::world::{AuthServer, tells_none};
use crate::harness::{Setup, eventually};
use crate::telemetry::Collector;

// SPEC O-04
#[tokio::test]
async fn life_of_an_account_is_audited_without_its_secrets() {
    let world = World::start().await;
    let (gw, session) = (&world.gw, world.plain().await);
    let path = path_in(&echo(&session, "early").await);
    world.browser().connect(&path).await;
    let connected = audited(gw, 0, "account_connected").await;
    assert_eq!(connected["upstream"], "up");
    assert_eq!(connected["program"], "harness");
    assert_eq!(connected["server"], world.server.origin);
    assert_eq!(connected["scopes"], "notes:read offline_access");
    assert_eq!(
        (&connected["subject"], &connected["outcome"]),
        (&"anonymous".into(), &"ok".into())
    );
    assert!(connected["request_id"].is_string(), "{connected}");
    for text in ["one", "two"] {
        assert_eq!(echo(&session, text).await, text);
    }
    let used = audited(gw, 0, "account_first_use").await;
    assert_eq!(
        (&used["program"], &used["endpoint"]),
        (&"harness".into(), &"up".into())
    );
    assert_eq!(used["principal"], connected["principal"]);

    world.server.forgets_access_tokens();
    assert_eq!(echo(&session, "three").await, "three");
    let refreshed = audited(gw, 0, "account_refreshed").await;
    assert_eq!(
        (&refreshed["outcome"], &refreshed["server"]),
        (&"ok".into(), &world.server.origin.as_str().into())
    );
    let secrets = world.server.secrets();

    let seen = records(gw).len();
    world.browser().submit("/connect/up", "disconnect").await;
    let disconnected = audited(gw, seen, "account_disconnected").await;
    assert_eq!(disconnected["principal"], connected["principal"]);
    let mut reasons = eventually("both tokens are revoked", async || {
        let later = records(gw).into_iter().skip(seen);
        let revoked = later.filter(|record| record["event"] == "account_revoked");
        let reason = |record: Value| {
            assert_eq!(record["outcome"], "ok", "{record}");
            assert_eq!(record["principal"], connected["principal"]);
            record["reason"].to_string()
        };
        Some(revoked.map(reason).collect::<Vec<_>>()).filter(|reasons| reasons.len() == 2)
    })
    .await;
    reasons.sort();
    assert_eq!(reasons, [r#""access_token""#, r#""refresh_token""#]);

    let first_uses = records(gw)
        .into_iter()
        .filter(|one| one["event"] == "account_first_use");
    assert_eq!(first_uses.count(), 1);
    let secrets = [secrets, world.server.secrets()].concat();
    assert!(secrets.len() > 4, "{secrets:?}");
    tells_none(gw, &secrets).await;
    world.gw.stop().await;
}

#[tokio::test]
async fn account_that_its_server_ends_is_audited() {
    let world = World::start().await;
    world.connect().await;
    let (gw, session) = (&world.gw, world.plain().await);
    assert_eq!(echo(&session, "one").await, "one");
    audited(gw, 0, "account_first_use").await;
    world.server.forgets_all();
    let said = asked(&session, "asked").await;
    let ended = audited(gw, 0, "account_revoked").await;
    assert_eq!(ended["reason"], "invalid_grant");
    let seen = records(gw).len();
    world.browser().connect(&path_in(&said)).await;
    assert_eq!(echo(&session, "again").await, "again");
    // Another connection: the program uses it for the first time.
    audited(gw, seen, "account_first_use").await;
    // Nor is the refresh that found out another event.
    let refreshed = |one: &&Value| one["event"] == "account_refreshed";
    assert_eq!(records(gw).iter().find(refreshed), None);
    let name = "drawbridge_grant_refresh_duration_seconds_count";
    let labels = "outcome=\"ended\"";
    assert_eq!(count_of(gw, name, labels).await, "1");
    world.gw.stop().await;
}

#[tokio::test]
async fn refused_connections_are_audited_with_their_reason() {
    let world = World::start().await;
    let mut browser = world.browser();
    let url = browser.begin("/connect/up").await;
    let callback = browser.agree(url).await;
    let denied = with_query(&callback, "code", None) + "&error=access_denied";
    browser.open(&denied).await;
    let refused = audited(&world.gw, 0, "account_refused").await;
    assert_eq!(
        (&refused["reason"], &refused["outcome"]),
        (&"access_denied".into(), &"denied".into())
    );
    assert_eq!(
        (&refused["level"], &refused["upstream"]),
        (&"WARN".into(), &"up".into())
    );

    // A callback that was begun in another browser.
    let seen = records(&world.gw).len();
    let mut other = world.browser();
    let url = other.begin("/connect/up").await;
    let callback = other.agree(url).await;
    browser.open(&callback).await;
    let refused = audited(&world.gw, seen, "account_refused").await;
    assert_eq!(refused["reason"], "callback_browser");

    let count = async |outcome: &str| {
        let labels = format!("outcome=\"{outcome}\"");
        count_of(&world.gw, "drawbridge_connect_accounts_total", &labels).await
    };
    assert_eq!(
        (
            count("begun").await,
            count("refused").await,
            count("connected").await
        ),
        ("2".into(), "2".into(), "0".into())
    );
    world.gw.stop().await;
}

#[tokio::test]
async fn user_that_declines_in_the_client_is_audited() {
    let world = World::start().await;
    let session = world.gw.anonymous().open("/mcp/up").await;
    let (_, exchange) = session
        .start_call("echo", json!({"text": "declined"}))
        .await;
    let mut stream = exchange.stream();
    let question = stream.message().await.unwrap();
    session
        .answer(&question, json!({"action": "decline"}))
        .await;
    let declined = audited(&world.gw, 0, "account_refused").await;
    assert_eq!(
        (&declined["reason"], &declined["program"]),
        (&"declined".into(), &"harness".into())
    );
    for (name, count) in [("begun", "1"), ("refused", "1"), ("finished", "0")] {
        let metric = format!("drawbridge_consents_{name}_total");
        assert_eq!(
            count_of(&world.gw, &metric, "upstream=\"up\"").await,
            count,
            "{name}"
        );
    }
    world.gw.stop().await;
}

// The tool is the gateway's own, and its calls are audited like those of any other.
#[tokio::test]
async fn call_of_the_tool_that_connects_is_audited() {
    let world = World::start().await;
    let session = world.plain().await;
    session.call("connect_up", json!({})).await.unwrap();
    let record = eventually("the record of the call", async || {
        let mut records = world.gw.log_records().into_iter();
        records.find(|one| one["target"] == "audit" && one["name"] == "connect_up")
    })
    .await;
    assert_eq!(record["upstream"], "up", "{record}");
    assert_eq!(record["method"], "tools/call", "{record}");
    world.gw.stop().await;
}

#[tokio::test]
async fn refused_account_is_audited_once() {
    let world = World::start().await;
    let session = world.in_use().await;
    world
        .upstream
        .judges(|_, body| crate::accounts::world::Verdict::of(!body.contains("refused")));
    for _ in 0..3 {
        echo(&session, "refused").await;
    }
    let refused = audited(&world.gw, 0, "account_refused").await;
    assert_eq!(
        (&refused["reason"], &refused["upstream"]),
        (&"upstream_401".into(), &"up".into())
    );
    let refusals = records(&world.gw)
        .into_iter()
        .filter(|one| one["event"] == "account_refused");
    assert_eq!(refusals.count(), 1);
    world.gw.stop().await;
}

// This gateway exports no traces.
#[tokio::test]
async fn records_of_an_account_name_the_trace_of_their_call() {
    let world = World::start().await;
    let session = world.in_use().await;
    world
        .upstream
        .judges(|_, body| crate::accounts::world::Verdict::of(!body.contains("refused")));
    let trace = "0af7651916cd43dd8448eb211c80319c";
    let parent = format!("00-{trace}-b7ad6b7169203331-01");
    let mut headers = session.headers();
    headers.push(("traceparent", &parent));
    let call = json!({
        "jsonrpc": "2.0", "id": 99, "method": "tools/call",
        "params": {"name": "echo", "arguments": {"text": "refused"}},
    });
    let answer = world.gw.anonymous().post("/mcp/up", &headers, &call).await;
    answer.expect(StatusCode::OK).await;
    for event in ["account_refreshed", "account_refused"] {
        let record = audited(&world.gw, 0, event).await;
        assert_eq!(record["trace_id"], trace, "{record}");
    }
    world.gw.stop().await;
}

#[tokio::test]
async fn pages_name_the_programs_that_used_an_account() {
    let world = World::start().await;
    world.connect().await;
    let page = world.browser().open("/connect/up").await.text;
    assert!(page.contains("none yet"), "{page}");
    assert_eq!(echo(&world.plain().await, "one").await, "one");
    for path in ["/connect", "/connect/up"] {
        eventually(path, async || {
            let page = world.browser().open(path).await.text;
            let has = |part: &str| page.contains(part);
            (has("<li>harness, last on 20") && has("notes:read offline_access")).then_some(())
        })
        .await;
    }
    world.browser().submit("/connect/up", "disconnect").await;
    let page = world.browser().open("/connect").await.text;
    assert!(!page.contains("harness"), "{page}");
    world.gw.stop().await;
}

#[tokio::test]
async fn refreshes_are_measured_by_outcome() {
    let world = World::start().await;
    let session = world.in_use().await;
    world.server.forgets_access_tokens();
    assert_eq!(echo(&session, "after").await, "after");
    let count = async |outcome: &str| {
        let labels = format!("outcome=\"{outcome}\"");
        let name = "drawbridge_grant_refresh_duration_seconds_count";
        count_of(&world.gw, name, &labels).await
    };
    assert_eq!(count("ok").await, "1");
    world.gw.stop().await;
}

/// Grants are counted two seconds after the start.
#[tokio::test]
async fn grants_are_counted_by_upstream_and_state() {
    let server = ConsentServer::start().await;
    let upstream = upstream_of(&server).await;
    let state = tempfile::tempdir().unwrap();
    let gw = setup(&upstream, state.path(), "").start().await;
    let text = Browser::of(&gw).connect("/connect/up").await;
    assert!(text.contains("is connected"), "{text}");
    gw.stop().await;
    let gw = setup(&upstream, state.path(), "").start().await;
    let accounts = eventually("the count", async || {
        let (_, text) = gw.admin_text("/status").await.unwrap();
        let status: Value = serde_json::from_str(&text).unwrap();
        status["upstreams"][0]["account"].get("accounts").cloned()
    })
    .await;
    assert_eq!(
        accounts,
        json!({"connected": 1, "refused": 0, "ended": 0, "unreadable": 0})
    );
    for (state, count) in [
        ("connected", "1"),
        ("refused", "0"),
        ("ended", "0"),
        ("unreadable", "0"),
    ] {
        let labels = format!("drawbridge_state=\"{state}\"");
        assert_eq!(
            count_of(&gw, "drawbridge_grants", &labels).await,
            count,
            "{state}"
        );
    }
    gw.stop().await;
}

/// The one span of this name.
fn span(spans: &[Span], name: &str) -> Option<Span> {
    spans.iter().find(|span| span.name == name).cloned()
}

// SPEC C-98
#[tokio::test]
async fn token_requests_are_spans_below_their_page_and_their_call() {
    let (collector, url) = Collector::start().await;
    let telemetry = format!("[telemetry]\notlp_endpoint = {url:?}\nsample_ratio = 1.0");
    let world = World::with(&ConsentServer::start().await, &telemetry).await;
    let session = world.in_use().await;
    world.server.forgets_access_tokens();
    assert_eq!(echo(&session, "after").await, "after");
    let secrets = world.server.secrets();
    world.gw.stop().await;
    // Stopping flushes.
    let requests = eventually("two token requests", async || {
        let mut spans = collector.recorded_spans();
        spans.retain(|span| span.name == "token_request");
        (spans.len() == 2).then_some(spans)
    })
    .await;
    let spans = collector.recorded_spans();
    let page = span(&spans, "GET /connect/callback").expect("the page");
    let redeemed = requests
        .iter()
        .find(|one| one.parent_span_id == page.span_id);
    let redeemed = redeemed.expect("below its page");
    assert_eq!(redeemed.trace_id, page.trace_id);
    let refreshed = requests
        .iter()
        .find(|one| one.parent_span_id != page.span_id);
    let refreshed = refreshed.expect("another one");
    let call = spans
        .iter()
        .find(|span| span.span_id == refreshed.parent_span_id);
    let call = call.expect("below its call");
    assert_eq!(
        (&*call.name, &call.trace_id),
        ("tools/call echo", &refreshed.trace_id)
    );
    let told = format!("{refreshed:?}");
    for part in [
        "drawbridge.upstream",
        "drawbridge.outcome",
        "server.address",
    ] {
        assert!(told.contains(part), "{part} in {told}");
    }
    for secret in secrets {
        assert!(!collector.has("traces", &secret), "{secret} in a trace");
    }
}

#[tokio::test]
async fn check_finds_out_where_users_would_be_asked() {
    let server = ConsentServer::start().await;
    let upstream = upstream_of(&server).await;
    let setup = |egress: &str| {
        Setup::open().url("up", &upstream.url(), "").toml(&format!(
            "[upstreams.up.auth]\nkind = \"user\"\n[egress]\nallow = [{egress}]\n"
        ))
    };
    let (code, found) = checked(setup("\"127.0.0.1\"")).await;
    assert_eq!(code, Some(0), "{found}");
    assert_eq!(found["upstreams"][0]["account"]["cause"], Value::Null);
    assert_eq!(server.looked_up(), 1);
    assert!(server.registered().is_empty() && server.asked().is_empty());

    let (code, found) = checked(setup("")).await;
    let cause = &found["upstreams"][0]["account"]["cause"];
    assert_eq!(code, Some(1), "{found}");
    assert!(
        cause["remedy"]
            .as_str()
            .unwrap()
            .contains("allow = [\"127.0.0.1\"]"),
        "{cause}"
    );

    server.publishes("registration_endpoint", Value::Null);
    let (code, found) = checked(setup("\"127.0.0.1\"")).await;
    let cause = &found["upstreams"][0]["account"]["cause"];
    assert_eq!(code, Some(1), "{found}");
    assert!(
        cause["remedy"].as_str().unwrap().contains("`client_id`"),
        "{cause}"
    );

    server.publishes("code_challenge_methods_supported", Value::Null);
    let (code, found) = checked(setup("\"127.0.0.1\"")).await;
    let cause = &found["upstreams"][0]["account"]["cause"];
    assert_eq!(code, Some(1), "{found}");
    assert!(cause["text"].as_str().unwrap().contains("S256"), "{cause}");
}

#[tokio::test]
async fn check_finds_out_where_tokens_would_be_exchanged() {
    let server = AuthServer::start().await;
    let upstream = crate::accounts::world::GuardedUpstream::start(&server, &[]).await;
    let setup = || {
        Setup::secured()
            .url("up", &upstream.url(), "")
            .toml(&format!(
                "[upstreams.up.auth]\nkind = \"token_exchange\"\nissuer = {:?}\nclient_id = \"drawbridge\"\n\
                 client_secret = \"the-hunter2-of-a-client\"\n",
                server.origin
            ))
    };
    let (code, found) = checked(setup()).await;
    assert_eq!(code, Some(0), "{found}");
    server.publishes(
        json!({"issuer": "https://evil.example", "token_endpoint": "https://evil.example/token"}),
    );
    let (code, found) = checked(setup()).await;
    let cause = &found["upstreams"][0]["account"]["cause"];
    assert_eq!(code, Some(1), "{found}");
    assert!(
        cause["text"].as_str().unwrap().contains("evil.example"),
        "{cause}"
    );
}
