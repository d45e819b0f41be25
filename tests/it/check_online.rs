//! `drawbridge check --online`: report, exit codes, and the end of all children.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::response::Response;
use http::Method;
use http::header::{CONTENT_TYPE, WWW_AUTHENTICATE};
use rstest::rstest;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::process::{Child, Command};

use crate::harness::issuer::Issuer;
use crate::harness::upstream::{HttpStub, serve, stub_program};
use crate::harness::{Setup, eventually, process, within};

/// A secret that no output may contain.
const SECRET: &str = "hunter22-of-the-operator";

/// How late documents come: after all else that a check waits for.
const LATE: Duration = Duration::from_millis(500);

/// A configuration in a directory of its own, which is the state directory of `check` as well.
struct Checked {
    dir: TempDir,
}

/// Output of a run.
struct Ran {
    code: Option<i32>,
    out: String,
    errors: String,
}

impl Checked {
    fn new(setup: &Setup) -> Self {
        Self::of(&setup.render())
    }

    fn of(text: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("gateway.toml"), text).unwrap();
        Self { dir }
    }

    fn start(&self, options: &[&str]) -> Child {
        Command::new(env!("CARGO_BIN_EXE_drawbridge"))
            .args(["check", "--online", "--config", "gateway.toml"])
            .args(options)
            .current_dir(self.dir.path())
            .env("XDG_STATE_HOME", self.dir.path())
            .env_remove("DRAWBRIDGE_LOG")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap()
    }

    async fn run(&self, options: &[&str]) -> Ran {
        let output = self.start(options).wait_with_output();
        let output = within("the end of check", output).await.unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        let ran = Ran {
            code: output.status.code(),
            out: text(output.stdout),
            errors: text(output.stderr),
        };
        for told in [&ran.out, &ran.errors] {
            assert!(!told.contains(SECRET), "{told}");
        }
        ran
    }
}

impl Ran {
    fn expect(&self, code: i32) -> &Self {
        assert_eq!(self.code, Some(code), "{}\n{}", self.out, self.errors);
        self
    }

    /// Words of the row that begins with `name`, and the lines below it.
    fn row(&self, name: &str) -> (Vec<&str>, String) {
        let mut lines = self.out.lines().skip_while(|line| !line.contains(" STATE"));
        let row = lines.find(|line| line.starts_with(name));
        let row = row.unwrap_or_else(|| panic!("no {name}: {}", self.out));
        let below: Vec<_> = lines.take_while(|line| line.starts_with("  ")).collect();
        (row.split_whitespace().collect(), below.join("\n"))
    }

    fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|_| panic!("no JSON: {}", self.out))
    }
}

fn answer(status: u16, body: &Value) -> Response {
    let answer = Response::builder().status(status);
    let answer = answer.header(CONTENT_TYPE, "application/json");
    answer.body(Body::from(body.to_string())).unwrap()
}

/// An upstream that refuses everything with `status`; its challenge leads to metadata.
async fn refusing(status: u16) -> String {
    let origin = serve(move |request: Request| async move {
        if request.uri().path() == "/metadata" {
            tokio::time::sleep(LATE).await;
            return answer(
                200,
                &json!({"authorization_servers": ["https://login.example"]}),
            );
        }
        let host = request.headers()["host"].to_str().unwrap();
        let challenge = format!("Bearer resource_metadata=\"http://{host}/metadata\"");
        let mut answer = answer(status, &json!({}));
        let challenge = challenge.try_into().unwrap();
        answer.headers_mut().insert(WWW_AUTHENTICATE, challenge);
        answer
    });
    format!("{}/mcp", origin.await)
}

/// An upstream that shakes hands, knows no templates, and answers `tools/list` with this status.
async fn listing(status: u16) -> String {
    let origin = serve(move |request: Request| async move {
        if request.method() != Method::POST {
            return answer(405, &Value::Null);
        }
        let body = to_bytes(request.into_body(), 1 << 20).await.unwrap();
        let message: Value = serde_json::from_slice(&body).unwrap();
        let Some(id) = message.get("id") else {
            return answer(202, &Value::Null);
        };
        let result = match message["method"].as_str().unwrap() {
            "initialize" => json!({
                "protocolVersion": "2025-11-25",
                "capabilities": {"tools": {}, "resources": {}},
                "serverInfo": {"name": "scripted", "version": "1"},
            }),
            "tools/list" if status == 200 => json!({"tools": []}),
            "tools/list" => return answer(status, &json!({})),
            "resources/list" => json!({"resources": [{"uri": "a:1", "name": "one"}]}),
            _ => {
                let error = json!({"code": -32601, "message": "Method not found"});
                return answer(200, &json!({"jsonrpc": "2.0", "id": id, "error": error}));
            }
        };
        answer(200, &json!({"jsonrpc": "2.0", "id": id, "result": result}))
    });
    format!("{}/mcp", origin.await)
}

/// An issuer with metadata of its own, whose keys are at `keys` and which answers `introspection` questions like this.
async fn issuer(keys: &'static str, introspection: (u16, Value)) -> String {
    let set = json!({"keys": [Issuer::new().public_key()]});
    serve(move |request: Request| {
        let (set, introspection) = (set.clone(), introspection.clone());
        async move {
            let host = request.headers()["host"].to_str().unwrap();
            match request.uri().path() {
                "/.well-known/oauth-authorization-server" => {
                    tokio::time::sleep(LATE).await;
                    let metadata = json!({
                        "issuer": format!("http://{host}"),
                        "jwks_uri": format!("http://{host}{keys}"),
                        "introspection_endpoint": format!("http://{host}/introspect"),
                    });
                    answer(200, &metadata)
                }
                "/keys" => answer(200, &set),
                "/introspect" => answer(introspection.0, &introspection.1),
                _ => answer(404, &json!({})),
            }
        }
    })
    .await
}

const INTROSPECTION: &str =
    "introspection = { client_id = \"gw\", client_secret = \"hunter22-of-the-operator\" }\n";

fn behind(issuer: &str, introspection: &str) -> Setup {
    let table = format!("[[auth.issuers]]\nissuer = {issuer:?}\n{introspection}");
    let auth = "mode = \"oauth\"\nrequired_scopes = [\"mcp:tools\"]";
    Setup::open().auth(auth).toml(&table)
}

/// The keys of a shell that writes its pid into `pid` of `dir`, then goes on with `script`. The configuration makes
/// one `$` of two.
fn shell(dir: &Path, script: &str) -> String {
    let pid = dir.join("pid");
    let script = format!("echo $$$$ >> {}; {script}", pid.display());
    format!("command = \"sh\"\nargs = [\"-c\", {script:?}]\n")
}

/// The pids that shells wrote into `file`.
fn written(dir: &Path, file: &str) -> Vec<u32> {
    let text = std::fs::read_to_string(dir.join(file)).unwrap_or_default();
    text.lines().map(|pid| pid.parse().unwrap()).collect()
}

// `listen` is taken: no port is bound.
#[tokio::test]
async fn healthy_parts_are_up_and_exit_0() {
    let issuer = issuer("/keys", (404, json!({}))).await;
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let listen = taken.local_addr().unwrap();
    let http = HttpStub::start(&["--tools", "3"]).await;
    let scripted = listing(200).await;
    let setup = behind(&issuer, "")
        .stub_with(
            "child",
            &["--tools", "5"],
            &format!("env = {{ KEY = {SECRET:?} }}\n"),
        )
        .http("remote", &http, "")
        .url(
            "partial",
            &scripted,
            &format!("headers = {{ Authorization = \"Bearer {SECRET}\" }}\n"),
        );
    let text = setup
        .render()
        .replacen("127.0.0.1:0", &listen.to_string(), 1);
    let ran = Checked::of(&text).run(&[]).await;
    ran.expect(0);
    assert_eq!(ran.errors, "");
    let (child, below) = ran.row("child");
    assert_eq!(
        child[..6],
        ["child", "stdio", "up", "2025-11-25", "(legacy)", "5"]
    );
    assert_eq!(below, "");
    assert_eq!(
        ran.row("remote").0[..6],
        ["remote", "auto", "up", "2025-11-25", "(legacy)", "3"]
    );
    // The upstream declares resources, and refuses to list templates.
    let partial = ran.row("partial").0;
    assert_eq!(
        partial[2..],
        ["up", "2025-11-25", "(legacy)", "0", "-", "1", "-"]
    );
    assert_eq!(ran.row(&issuer).0[..2], [issuer.as_str(), "1"]);
}

#[derive(Debug, Clone, Copy)]
enum Broken {
    Refuses(u16),
    Lists(u16),
    Url(&'static str),
    Command(&'static str),
    Shell(&'static str),
    /// Shakes hands, and lists nothing in time.
    Late,
}

impl Broken {
    async fn table(self, dir: &Path) -> String {
        let url = match self {
            Self::Refuses(status) => refusing(status).await,
            Self::Lists(status) => listing(status).await,
            Self::Url(url) => url.to_owned(),
            Self::Late => {
                let script = format!("exec {} stdio --list-delay 60000", stub_program());
                return shell(dir, &script);
            }
            Self::Command(command) => {
                return format!("command = {command:?}\nenv = {{ KEY = {SECRET:?} }}\n");
            }
            Self::Shell(script) => {
                return shell(dir, script) + &format!("env = {{ KEY = {SECRET:?} }}\n");
            }
        };
        format!("url = {url:?}\nheaders = {{ Authorization = \"Bearer {SECRET}\" }}\n")
    }
}

#[rstest]
#[case::refused(Broken::Url("http://127.0.0.1:1/mcp"), "down", &["the connection was refused", "start the upstream"])]
#[case::unauthorized(
    Broken::Refuses(401),
    "down",
    &["it wants a token", "renew the token in `headers.Authorization`", "https://login.example"],
)]
#[case::forbidden(Broken::Refuses(403), "down", &["HTTP status 403", "let the upstream allow this"])]
#[case::list_unauthorized(Broken::Lists(401), "degraded", &["it wants a token", "renew the token"])]
#[case::no_program(Broken::Command("/opt/tools/no-such-program"), "down", &["no-such-program", "install the program"])]
#[case::crash(
    Broken::Shell("echo 'cannot find the database' >&2; exit 3"),
    "down",
    &["its last words: exit status: 3: cannot find the database", "remedy: "],
)]
#[case::banner(
    Broken::Shell("echo 'Listening on port 3000'; exec sleep 60"),
    "down",
    &["its output meanwhile: Listening on port 3000", "standard error"],
)]
#[case::silent(Broken::Shell("exec sleep 60"), "down", &["no answer in time", "connect_timeout"])]
#[case::late(Broken::Late, "degraded", &["was not opened and listed within 9 s", "remedy: "])]
#[tokio::test]
async fn broken_upstream_is_named_and_exits_1(
    #[case] broken: Broken,
    #[case] state: &str,
    #[case] words: &[&str],
) {
    let dir = tempfile::tempdir().unwrap();
    let table = broken.table(dir.path()).await;
    let table = format!("[upstreams.broken]\n{table}connect_timeout = \"1s\"\n");
    let checked = Checked::new(&Setup::open().stub("fine", &[]).toml(&table));
    let ran = checked.run(&[]).await;
    ran.expect(1);
    assert_eq!(ran.row("fine").0[2], "up");
    let (row, below) = ran.row("broken");
    assert_eq!(row[2], state, "{below}");
    for word in words {
        assert!(below.contains(word), "{word}: {below}");
    }
    for pid in written(dir.path(), "pid") {
        assert!(process::find(pid).is_none(), "{pid} is left");
    }
}

#[tokio::test]
async fn issuer_with_a_wrong_keys_url_exits_1() {
    let issuer = issuer("/elsewhere", (404, json!({}))).await;
    let ran = Checked::new(&behind(&issuer, "").stub("fine", &[]))
        .run(&[])
        .await;
    let (row, below) = ran.expect(1).row(&issuer);
    assert_eq!(row[1..], ["-", "-"]);
    for word in ["/elsewhere", "HTTP 404", "remedy: "] {
        assert!(below.contains(word), "{word}: {below}");
    }
    assert_eq!(ran.row("fine").0[2], "up");
}

#[rstest]
#[case::good((200, json!({"active": false})), 0, "")]
#[case::no_word((400, json!({"error": "invalid_request"})), 0, "")]
#[case::credentials((401, json!({"error": "invalid_client"})), 1, "does not accept the gateway's credentials")]
#[case::endpoint((404, json!({})), 1, "correct `introspection.endpoint`")]
#[case::credulous((200, json!({"active": true})), 1, "a token active that was made up")]
#[tokio::test]
async fn introspection_is_asked_about_a_made_up_token(
    #[case] answer: (u16, Value),
    #[case] code: i32,
    #[case] said: &str,
) {
    // Without keys: none are needed for opaque tokens.
    let issuer = issuer("/elsewhere", answer).await;
    let ran = Checked::new(&behind(&issuer, INTROSPECTION).stub("fine", &[]))
        .run(&[])
        .await;
    let (_, below) = ran.expect(code).row(&issuer);
    assert!(below.contains(said), "{below}");
    assert_eq!(below.is_empty(), code == 0, "{below}");
}

#[tokio::test]
async fn json_has_the_entries_of_status() {
    let issuer = issuer("/keys", (404, json!({}))).await;
    let setup = behind(&issuer, "")
        .stub("fine", &["--tools", "2"])
        .stdio("gone", "no-such-program", &[], "")
        .toml("[stdio]\nidle = \"1m\"");
    let checked = Checked::new(&setup);
    // Log lines go elsewhere, also where they are asked for.
    let ran = checked.run(&["--json", "--log-level", "debug"]).await;
    let report = ran.expect(1).json();
    assert!(
        ran.errors.contains("upstream state changed"),
        "{}",
        ran.errors
    );
    assert_eq!(report["errors"], json!([]));
    assert_eq!(report["warnings"][0]["key"], "upstreams.gone.command");
    let (fine, gone) = (&report["upstreams"][0], &report["upstreams"][1]);
    assert_eq!(
        (&fine["name"], &fine["state"]),
        (&json!("fine"), &json!("up"))
    );
    assert_eq!(
        (&fine["cause"], &fine["lists"]["tools"]),
        (&Value::Null, &json!(2))
    );
    assert_eq!(
        (&fine["children"], &fine["sessions"]),
        (&json!(0), &json!(0))
    );
    assert_eq!(
        (&gone["name"], &gone["state"]),
        (&json!("gone"), &json!("down"))
    );
    assert!(
        gone["cause"]["remedy"]
            .as_str()
            .unwrap()
            .contains("install"),
        "{gone}"
    );
    assert_eq!(
        (
            &report["issuers"][0]["issuer"],
            &report["issuers"][0]["keys"]
        ),
        (&json!(issuer), &json!(1))
    );
    // An invalid configuration makes no request.
    let checked = Checked::of("[upstreams.a]\ncommnd = \"sh\"\n");
    let report = checked.run(&["--json"]).await.expect(78).json();
    assert!(report.get("upstreams").is_none(), "{report}");
}

#[tokio::test]
async fn warnings_exit_1_with_strict_alone() {
    let script = format!("exec {} stdio", stub_program());
    let args = ["-c", &script, "$HOME/unexpanded"];
    let checked = Checked::new(&Setup::open().stdio("fine", "sh", &args, ""));
    let ran = checked.run(&[]).await;
    assert!(ran.expect(0).errors.contains("warning: "), "{}", ran.errors);
    checked.run(&["--strict"]).await.expect(1);
}

#[rstest]
#[case("--assume-env")]
#[case("--reference")]
#[tokio::test]
async fn options_that_contradict_online_exit_2(#[case] option: &str) {
    let checked = Checked::new(&Setup::open().stub("fine", &[]));
    let ran = checked.run(&[option]).await;
    assert!(
        ran.expect(2).errors.contains("cannot be used with"),
        "{}",
        ran.errors
    );
    assert_eq!(ran.out, "");
}

#[rstest]
#[case("session")]
#[case("principal")]
#[case("shared")]
#[tokio::test]
async fn every_child_ends_with_its_input(#[case] isolation: &str) {
    let dir = tempfile::tempdir().unwrap();
    let ended = dir.path().join("ended");
    // A child that is killed does not get to the second line. More are started than may live at once.
    let stub = stub_program();
    let script = format!("{stub} stdio; echo $$$$ >> {}", ended.display());
    let mut setup = Setup::open().toml("[stdio]\nmax_children_per_principal = 2");
    for name in ["a", "b", "c", "d"] {
        let table = shell(dir.path(), &script);
        let keys = format!("isolation = {isolation:?}\n");
        setup = setup.toml(&format!("[upstreams.{name}]\n{table}{keys}"));
    }
    let ran = Checked::new(&setup).run(&[]).await;
    ran.expect(0);
    let (mut started, mut ended) = (written(dir.path(), "pid"), written(dir.path(), "ended"));
    started.sort_unstable();
    ended.sort_unstable();
    assert!(started.len() >= 4, "{started:?}");
    assert_eq!(started, ended);
    for pid in started {
        assert!(process::find(pid).is_none(), "{pid} is left");
    }
}

#[rstest]
#[case(Signal::INT, "SIGINT")]
#[case(Signal::TERM, "SIGTERM")]
#[tokio::test]
async fn signal_ends_check_and_its_children(#[case] signal: Signal, #[case] name: &str) {
    let dir = tempfile::tempdir().unwrap();
    let table = shell(dir.path(), "trap '' TERM INT; while :; do sleep 1; done");
    let checked = Checked::new(&Setup::open().toml(&format!("[upstreams.hangs]\n{table}")));
    let child = checked.start(&[]);
    let pid = eventually("the child's pid", async || {
        written(dir.path(), "pid").first().copied()
    })
    .await;
    assert!(process::find(pid).is_some());
    let check = Pid::from_raw(i32::try_from(child.id().unwrap()).unwrap()).unwrap();
    let family = process::descendants(child.id().unwrap());
    let sent = Instant::now();
    kill_process(check, signal).unwrap();
    let output = within("the end of check", child.wait_with_output())
        .await
        .unwrap();
    // A second, plus a margin for a busy machine.
    assert!(
        sent.elapsed() < Duration::from_secs(3),
        "{:?}",
        sent.elapsed()
    );
    assert_eq!(output.status.code(), Some(1));
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(errors.contains(name), "{errors}");
    assert!(process::find(pid).is_none(), "{pid} is left");
    crate::harness::gateway::nothing_left(&family).await;
}
