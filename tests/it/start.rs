//! Messages that the gateway prints about itself on start.

use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpListener;
use tokio::process::Command;

use crate::harness::{Setup, redis, within};

/// Starts `serve` with these lines in front of one upstream whose program is not there; its line about
/// the start.
async fn start_line(telemetry: &str) -> String {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("gateway.toml");
    let text = format!(
        "[server]\nlisten = \"127.0.0.1:0\"\n[admin]\nlisten = \"127.0.0.1:0\"\n[auth]\nmode = \"none\"\n\
         {telemetry}[upstreams.gone]\ncommand = \"no-such-program\"\ncwd = \"/no/such/directory\"\n"
    );
    std::fs::write(&file, text).unwrap();
    let mut gateway = Command::new(env!("CARGO_BIN_EXE_drawbridge"))
        .args(["serve", "--config"])
        .arg(&file)
        .env("TERM", "xterm")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(gateway.stdout.take().unwrap()).lines();
    let line = loop {
        let line = within("a line", lines.next_line()).await.unwrap();
        let line = line.expect("the event");
        if line.contains("gateway started") {
            break line;
        }
    };
    gateway.kill().await.unwrap();
    line
}

#[tokio::test]
async fn the_start_is_one_json_event() {
    let line = start_line("").await;
    let event: Value = serde_json::from_str(&line).expect("standard output holds JSON lines only");
    assert_eq!(event["message"], "gateway started");
    assert_eq!(event["version"], env!("CARGO_PKG_VERSION"));
    let file = event["configuration"].as_str().unwrap();
    assert!(file.ends_with("/gateway.toml"), "{line}");
    let listen = event["listen"].as_str().unwrap();
    assert!(!listen.ends_with(":0"), "{line}");
    assert_eq!(event["url"], json!(format!("http://{listen}/mcp")));
    assert_eq!(event["endpoints"], "/mcp, /mcp/gone");
    assert_eq!(event["issuers"], "none, loopback only");
    assert_eq!(event["upstreams"], "gone");
    let missing = "gone: the program no-such-program is in no directory of PATH; \
        gone: there is no directory /no/such/directory";
    assert_eq!(event["missing"], missing);
}

#[tokio::test]
async fn text_for_a_pipe_has_no_colours() {
    let line = start_line("[telemetry]\nlog_format = \"text\"\n").await;
    assert!(
        line.contains(" INFO  drawbridge: gateway started url=http://127.0.0.1:"),
        "{line}"
    );
    assert!(!line.contains('\u{1b}'), "{line}");
}

#[tokio::test]
async fn nothing_is_missing_where_all_is_there() {
    let gw = Setup::open().stub("stub", &[]).start().await;
    let records = gw.log_records();
    let mut starts = records
        .iter()
        .filter(|record| record["message"] == "gateway started");
    let start = starts.next().expect("an event");
    assert!(start.get("missing").is_none(), "{start}");
    assert!(starts.next().is_none(), "{records:#?}");
    let lines = gw.log();
    let is_json = |line: &&String| serde_json::from_str::<Value>(line).is_ok();
    assert_eq!(
        lines.iter().filter(is_json).count(),
        lines.len(),
        "{lines:#?}"
    );
    gw.stop().await;
}

/// The end of `serve` whose public and admin port are these.
async fn refused_start(listen: &str, admin: &str) -> (Option<i32>, String) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("gateway.toml");
    let text = format!(
        "[server]\nlisten = {listen:?}\n[admin]\nlisten = {admin:?}\n[auth]\nmode = \"none\"\n\
         [upstreams.a]\ncommand = \"sh\"\n"
    );
    std::fs::write(&file, text).unwrap();
    let ended = Command::new(env!("CARGO_BIN_EXE_drawbridge"))
        .args(["serve", "--config"])
        .arg(&file)
        .kill_on_drop(true)
        .output();
    let ended = within("the end of the start", ended).await.unwrap();
    let said = String::from_utf8(ended.stderr).unwrap();
    (ended.status.code(), said)
}

#[tokio::test]
async fn taken_port_is_named_by_its_key() {
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let free = "127.0.0.1:0";
    for (listen, admin, key) in [
        (taken.as_str(), free, "server.listen"),
        (free, taken.as_str(), "admin.listen"),
    ] {
        let (code, said) = refused_start(listen, admin).await;
        assert_eq!(code, Some(1), "{said}");
        let begin = format!("error: {key}: cannot listen on {taken}: Address already in use");
        assert!(said.starts_with(&begin), "{said}");
        assert!(
            said.contains("\n    another program listens there"),
            "{said}"
        );
    }
}

#[tokio::test]
async fn file_that_is_no_database_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let database = dir.path().join("a.db");
    std::fs::write(&database, "no database at all ".repeat(100)).unwrap();
    let file = dir.path().join("gateway.toml");
    let text = "[auth]\nmode = \"none\"\n[database]\nurl = \"sqlite:a.db\"\n[upstreams.a]\ncommand = \"sh\"\n";
    std::fs::write(&file, text).unwrap();
    for command in ["serve", "migrate"] {
        let ended = Command::new(env!("CARGO_BIN_EXE_drawbridge"))
            .args([command, "--config"])
            .arg(&file)
            .env("XDG_STATE_HOME", dir.path())
            .kill_on_drop(true)
            .output();
        let ended = within("the end of the command", ended).await.unwrap();
        let said = String::from_utf8(ended.stderr).unwrap();
        assert_eq!(ended.status.code(), Some(1), "{said}");
        let named = format!("the database {}: the database failed: ", database.display());
        assert!(
            said.contains(&named) && said.contains("file is not a database"),
            "{said}"
        );
    }
}

#[tokio::test]
async fn signal_ends_a_start_that_waits_for_redis() {
    // Accepts connections, and answers nothing.
    let silent = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let port = silent.local_addr().unwrap().port();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("gateway.toml");
    let text = format!(
        "[server]\nlisten = \"127.0.0.1:0\"\n[admin]\nlisten = \"127.0.0.1:0\"\n[auth]\nmode = \"none\"\n\
         [keys]\nseal = [{{ id = \"k1\", key = \"0123456789abcdef0123456789abcdef\" }}]\n\
         [cluster]\nredis = \"redis://127.0.0.1:{port}\"\nlisten = \"127.0.0.1:{}\"\n\
         secret = \"0123456789abcdef0123456789abcdef\"\n[upstreams.gone]\ncommand = \"no-such-program\"\n",
        redis::free_port()
    );
    std::fs::write(&file, text).unwrap();
    let gateway = Command::new(env!("CARGO_BIN_EXE_drawbridge"))
        .args(["serve", "--config"])
        .arg(&file)
        .env("XDG_STATE_HOME", dir.path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let (_held, _) = within("a connection", silent.accept()).await.unwrap();
    let pid = Pid::from_raw(i32::try_from(gateway.id().unwrap()).unwrap()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    let output = within("the end", gateway.wait_with_output()).await.unwrap();
    // After the wait it would go on without Redis, and end with another line.
    let log = String::from_utf8_lossy(&output.stdout);
    assert!(
        log.contains("stopped before the start was complete"),
        "{log}"
    );
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}
