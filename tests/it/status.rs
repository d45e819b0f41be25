//! `/status` on the admin port, access to the page, and the commands that fetch the page.

use std::process::{Output, Stdio};
use std::time::Duration;

use http::StatusCode;
use rstest::rstest;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpListener;
use tokio::process::Command;

use crate::harness::http::Actor;
use crate::harness::upstream::HttpStub;
use crate::harness::{Gateway, Setup, eventually, within};

const TOKEN: &str = "a-token-of-operators";

/// A URL with a closed port.
async fn gone() -> String {
    let stub = HttpStub::start(&[]).await;
    let url = stub.url.clone();
    stub.stop().await;
    url
}

fn operator(gw: &Gateway, token: Option<&str>) -> Actor {
    let base = format!("http://{}", gw.admin_address());
    Actor::new(&base, token.map(str::to_owned))
}

async fn status_json(gw: &Gateway) -> Value {
    operator(gw, None).get("/status", &[]).await.json().await
}

fn named<'v>(list: &'v Value, key: &str, name: &str) -> &'v Value {
    let all = list.as_array().unwrap();
    let found = all.iter().find(|one| one[key] == name);
    found.unwrap_or_else(|| panic!("no {name} in {list}"))
}

#[tokio::test]
async fn status_shows_states_causes_and_calls_of_upstreams_and_issuers() {
    let gone = gone().await;
    let origin = gone.strip_suffix("/mcp").unwrap();
    let gw = Setup::secured()
        .toml(&format!("[[auth.issuers]]\nissuer = {origin:?}"))
        .stub("fine", &[])
        .url("broken", &format!("{gone}?api_key=hunter22"), "")
        .start()
        .await;
    let alice = gw.principal("alice").open("/mcp").await;
    for _ in 0..3 {
        alice.text("fine__echo", json!({"text": "private"})).await;
    }
    let refused = alice.call("broken__echo", json!({})).await.unwrap();
    assert_eq!(refused["isError"], true, "{refused}");
    let status = eventually("the issuer's cause", async || {
        let status = status_json(&gw).await;
        let issuer = named(&status["issuers"], "issuer", origin);
        issuer["cause"].is_object().then_some(status)
    })
    .await;
    assert_eq!(status["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(status["draining"], false);
    assert_eq!(status["children"], "isolated");
    let fine = named(&status["upstreams"], "name", "fine");
    assert_eq!(
        (&fine["state"], &fine["transport"]),
        (&json!("up"), &json!("stdio"))
    );
    assert_eq!(
        (&fine["era"], &fine["revision"]),
        (&json!("legacy"), &json!("2025-11-25"))
    );
    assert_eq!(
        (&fine["sessions"], &fine["children"]),
        (&json!(1), &json!(1))
    );
    assert_eq!(
        (&fine["calls_in_flight"], &fine["cause"]),
        (&json!(0), &Value::Null)
    );
    assert!(fine["calls_per_minute"].as_f64().unwrap() >= 3.0, "{fine}");
    let (p50, p99) = (fine["p50_ms"].as_f64(), fine["p99_ms"].as_f64());
    assert!(p50.unwrap() > 0.0 && p99 >= p50, "{fine}");
    let broken = named(&status["upstreams"], "name", "broken");
    assert!(
        ["degraded", "down"].contains(&broken["state"].as_str().unwrap()),
        "{broken}"
    );
    let cause = broken["cause"]["text"].as_str().unwrap();
    assert!(cause.contains("refused"), "{broken}");
    assert_eq!(broken["p50_ms"], Value::Null);
    let own = named(&status["issuers"], "issuer", "https://issuer.test");
    assert_eq!((&own["keys"], &own["cause"]), (&json!(1), &Value::Null));
    assert!(own["keys_age_s"].is_u64(), "{own}");
    let (code, text) = gw.admin_text("/status?format=text").await.unwrap();
    assert_eq!(code, 200);
    for part in ["UPSTREAM", "fine", "cause:  ", "ISSUER", origin] {
        assert!(text.contains(part), "{part}:\n{text}");
    }
    for told in [text, status.to_string()] {
        for secret in ["hunter22", "alice", "private"] {
            assert!(!told.contains(secret), "{secret}:\n{told}");
        }
    }
    let (code, _) = gw.admin_text("/status?format=xml").await.unwrap();
    assert_eq!(code, 400);
    gw.stop().await;
}

#[rstest]
#[case::an_address(&[("host", "192.0.2.1:9090")])]
#[case::behind_a_proxy(&[("x-forwarded-for", "192.0.2.7")])]
#[case::behind_another_proxy(&[("forwarded", "for=192.0.2.7")])]
#[case::of_a_page(&[("origin", "http://localhost:3000")])]
#[case::of_a_link(&[("sec-fetch-site", "cross-site")])]
#[tokio::test]
async fn what_is_not_of_this_machine_needs_the_token(#[case] headers: &[(&str, &str)]) {
    let closed = Setup::open().stub("stub", &[]).start().await;
    let refused = operator(&closed, None).get("/status", headers).await;
    let text = refused.expect(StatusCode::FORBIDDEN).await.text().await;
    assert!(text.contains("[admin] token"), "{text}");
    let token = format!("token = {TOKEN:?}");
    let open = Setup::open().admin(&token).stub("stub", &[]).start().await;
    let refused = operator(&open, None).get("/status", headers).await;
    let refused = refused.expect(StatusCode::UNAUTHORIZED).await;
    assert_eq!(refused.header("www-authenticate"), Some("Bearer"));
    let allowed = operator(&open, Some(TOKEN)).get("/status", headers).await;
    allowed.expect(StatusCode::OK).await;
    for path in ["/live", "/ready", "/metrics"] {
        let answer = operator(&open, None).get(path, headers).await;
        answer.expect(StatusCode::OK).await;
    }
    closed.stop().await;
    open.stop().await;
}

#[tokio::test]
async fn wrong_token_is_refused_on_this_machine_too() {
    let token = format!("token = {TOKEN:?}");
    let gw = Setup::open().admin(&token).stub("stub", &[]).start().await;
    let with = async |token: Option<&str>| {
        let answer = operator(&gw, token).get("/status", &[]).await;
        (answer.status(), answer.text().await)
    };
    for wrong in ["a-token-of-somebody", "a-token-of-operators-and-more", "a"] {
        let (status, text) = with(Some(wrong)).await;
        assert_eq!(status, 401, "{text}");
    }
    assert_eq!(with(Some(TOKEN)).await.0, 200);
    assert_eq!(with(None).await.0, 200, "this machine needs none");
    let basic = [("authorization", "Basic YTpi")];
    let answer = operator(&gw, None).get("/status", &basic).await;
    assert_eq!(answer.status(), 401);
    gw.stop().await;
}

/// Output and exit code of a command of the program.
async fn run(args: &[&str]) -> (Option<i32>, String, String) {
    let command = Command::new(env!("CARGO_BIN_EXE_drawbridge"))
        .args(args)
        .env_remove("DRAWBRIDGE_CONFIG")
        .output();
    let output: Output = within("the command", command).await.unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (
        output.status.code(),
        text(output.stdout),
        text(output.stderr),
    )
}

#[tokio::test]
async fn status_command_prints_the_state_and_fails_while_something_is_down() {
    let url = gone().await;
    let gw = Setup::open()
        .stub("fine", &[])
        .url("broken", &url, "")
        .start()
        .await;
    let admin = format!("http://{}", gw.admin_address());
    let (code, text, _) = run(&["status", "--admin", &admin]).await;
    assert_eq!(code, Some(0), "nothing has failed yet: {text}");
    let user = gw.anonymous().open("/mcp").await;
    user.call("broken__echo", json!({})).await.unwrap();
    let (code, text, _) = run(&["status", "--admin", &admin]).await;
    assert_eq!(code, Some(1), "{text}");
    assert!(
        text.contains("UPSTREAM") && text.contains("cause:  "),
        "{text}"
    );
    let (code, text, _) = run(&["status", "--json", "--admin", &admin]).await;
    assert_eq!(code, Some(1));
    let status: Value = serde_json::from_str(&text).unwrap();
    named(&status["upstreams"], "name", "broken");
    gw.stop().await;
    let (code, text, errors) = run(&["status", "--admin", &admin]).await;
    assert_eq!((code, text.as_str()), (Some(1), ""));
    assert!(errors.contains("refused"), "{errors}");
    let (code, text, _) = run(&["health", "--admin", &admin]).await;
    assert_eq!(code, Some(1));
    assert!(text.contains("refused"), "{text}");
}

// What reads JSON fails at any other line.
#[tokio::test]
async fn errors_stand_apart_from_the_json_that_is_watched() {
    let url = gone().await;
    let admin = url.strip_suffix("/mcp").unwrap();
    let mut watch = Command::new(env!("CARGO_BIN_EXE_drawbridge"))
        .args(["status", "--watch", "--json", "--admin", admin])
        .env_remove("DRAWBRIDGE_CONFIG")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut errors = BufReader::new(watch.stderr.take().unwrap()).lines();
    let error = within("an error", errors.next_line()).await.unwrap();
    let error = error.unwrap();
    assert!(error.contains("refused"), "{error}");
    watch.start_kill().unwrap();
    let output = within("its end", watch.wait_with_output()).await.unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "");
}

// The container engine kills a check after 6 s (Dockerfile), and then nobody learns why it failed.
#[tokio::test]
async fn health_ends_by_itself_where_the_answer_never_ends() {
    let port = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let admin = format!("http://{}", port.local_addr().unwrap());
    let endless = tokio::spawn(async move {
        let (mut client, _) = port.accept().await.unwrap();
        // Each byte comes within the timeout of a single read.
        while client.write_all(b"H").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    });
    let (code, text, _) = run(&["health", "--admin", &admin]).await;
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("timed out"), "{text}");
    endless.abort();
}

#[tokio::test]
async fn status_of_a_gateway_that_answers_nothing_times_out() {
    let port = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let admin = format!("http://{}", port.local_addr().unwrap());
    let (code, text, errors) = run(&["status", "--admin", &admin]).await;
    assert_eq!((code, text.as_str()), (Some(1), ""), "{errors}");
    assert!(errors.contains(": timed out\n"), "{errors}");
}

#[tokio::test]
async fn address_that_is_no_admin_port_is_a_mistake_of_the_command_line() {
    for command in ["status", "health"] {
        let (code, text, errors) = run(&[command, "--admin", "https://127.0.0.1:9090"]).await;
        assert_eq!((code, text.as_str()), (Some(2), ""), "{errors}");
        assert!(errors.contains("must begin with http://"), "{errors}");
    }
}

// Environment variables that the gateway needs may be unset where the commands run.
#[tokio::test]
async fn commands_take_address_and_token_from_the_configuration() {
    let token = format!("token = {TOKEN:?}");
    let gw = Setup::open().admin(&token).stub("stub", &[]).start().await;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("gateway.toml");
    let config = |token: &str| {
        let listen = gw.admin_address();
        format!(
            "[admin]\nlisten = {listen:?}\ntoken = {token:?}\n[auth]\nmode = \"none\"\n\
             [upstreams.a]\nurl = \"https://${{NOT_SET_HERE}}/mcp\"\n"
        )
    };
    let path = file.to_str().unwrap();
    std::fs::write(&file, config(TOKEN)).unwrap();
    for command in ["status", "health"] {
        let (code, text, errors) = run(&[command, "--config", path]).await;
        assert_eq!(code, Some(0), "{text}{errors}");
    }
    // The token is sent: another token is refused.
    std::fs::write(&file, config("another-token-than-that")).unwrap();
    let (code, _, errors) = run(&["status", "--config", path]).await;
    assert_eq!(code, Some(1));
    assert!(errors.contains("[admin] token"), "{errors}");
    let token_file = dir.path().join("token");
    std::fs::write(&token_file, format!("{TOKEN}\n")).unwrap();
    let token_file = token_file.to_str().unwrap();
    let args = ["status", "--config", path, "--admin-token-file", token_file];
    assert_eq!(run(&args).await.0, Some(0));
    std::fs::write(&file, config("short")).unwrap();
    let (code, _, errors) = run(&["status", "--config", path]).await;
    assert_eq!(code, Some(78), "{errors}");
    assert!(errors.contains("admin.token"), "{errors}");
    gw.stop().await;
}
