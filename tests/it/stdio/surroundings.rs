//! Environment of children (SPEC D-12, D-13, D-14).

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;

use serde_json::json;

use super::world::{World, next, python, sh, tuned, with_env};
use crate::harness::{Setup, eventually};

fn environment(pid: u32) -> BTreeMap<String, String> {
    let raw = std::fs::read(format!("/proc/{pid}/environ")).unwrap();
    let text = String::from_utf8(raw).unwrap();
    let pairs = text.split('\0').filter_map(|pair| pair.split_once('='));
    pairs
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

// Spec: SPEC D-13
#[tokio::test]
async fn the_environment_holds_only_what_is_listed() {
    let world = World::new();
    let upstream = with_env(sh("echo '{}'; cat"), "API_KEY", "sk-0123456789");
    let (connection, mut lines) = world.open("alice", &upstream).await;
    next(&mut lines).await;
    let found = environment(connection.pid());
    let allowed = [
        "PATH",
        "LANG",
        "LC_ALL",
        "TZ",
        "TMPDIR",
        "HOME",
        "XDG_CACHE_HOME",
        "npm_config_cache",
        "UV_CACHE_DIR",
        "API_KEY",
    ];
    // Variables that the shell itself adds to its children's environment.
    let own = ["PWD", "OLDPWD", "SHLVL", "_"];
    for name in found.keys() {
        assert!(
            allowed.contains(&&**name) || own.contains(&&**name),
            "{name}"
        );
    }
    assert_eq!(found["API_KEY"], "sk-0123456789");
    assert!(found["HOME"].starts_with(world.state.to_str().unwrap()));
    let commandline = std::fs::read(format!("/proc/{}/cmdline", connection.pid())).unwrap();
    assert!(!String::from_utf8_lossy(&commandline).contains("sk-0123456789"));
    world.end().await;
}

// Spec: SPEC D-12
#[tokio::test]
async fn principals_have_homes_of_their_own_and_share_caches() {
    let world = World::new();
    let mut found = Vec::new();
    let mut children = Vec::new();
    for who in ["alice", "bob"] {
        let (connection, mut lines) = world.open(who, &sh("echo '{}'; cat")).await;
        next(&mut lines).await;
        found.push(environment(connection.pid()));
        children.push((connection, lines));
    }
    assert_ne!(found[0]["HOME"], found[1]["HOME"]);
    for cache in ["XDG_CACHE_HOME", "npm_config_cache", "UV_CACHE_DIR"] {
        assert_eq!(found[0][cache], found[1][cache]);
        assert_eq!(
            std::fs::metadata(&found[0][cache]).unwrap().mode() & 0o777,
            0o700
        );
    }
    assert_eq!(
        std::fs::metadata(&found[0]["HOME"]).unwrap().mode() & 0o777,
        0o700
    );
    world.end().await;
}

#[tokio::test]
async fn the_child_leads_its_group_and_starts_in_its_home() {
    let world = World::new();
    let script = "
import json, os, resource, signal
print(json.dumps([os.getpid() == os.getpgid(0), os.getcwd() == os.environ['HOME'],
    resource.getrlimit(resource.RLIMIT_NOFILE), sorted(map(int, os.listdir('/proc/self/fd')))[:3],
    signal.getsignal(signal.SIGTERM) == signal.SIG_DFL]))
";
    let upstream = tuned(python(script), |carrier| {
        carrier.rlimits.insert("nofile".to_owned(), 99);
    });
    let (_connection, mut lines) = world.open("alice", &upstream).await;
    let line = next(&mut lines).await.unwrap();
    assert_eq!(line, "[true, true, [99, 99], [0, 1, 2], true]");
    world.end().await;
}

#[tokio::test]
async fn no_descriptor_of_the_gateway_reaches_a_child() {
    let world = World::new();
    let (_first, _lines) = world.open("alice", &sh("exec cat")).await;
    let script = "import os\nprint(sorted(map(int, os.listdir('/proc/self/fd'))))";
    // Descriptors inherited by the test itself are no leak of the gateway.
    let plain = std::process::Command::new("python3")
        .args(["-c", script])
        .output()
        .unwrap();
    let (_connection, mut lines) = world.open("alice", &python(script)).await;
    let line = next(&mut lines).await.unwrap();
    assert_eq!(line, String::from_utf8(plain.stdout).unwrap().trim());
    world.end().await;
}

// Spec: SPEC D-14: no shell reads a command line, and no request has a part in it.
#[tokio::test]
async fn shell_characters_are_text_to_a_child_and_no_request_names_a_program() {
    let directory = tempfile::tempdir().unwrap();
    let harm = |name: &str| {
        let file = directory.path().join(name);
        let file = file.display();
        format!("x\"; touch {file}; $(touch {file}) `touch {file}` | touch {file} & '\n* ~ $HOME")
    };
    let name = harm("by-argument");
    let gw = Setup::open().stub("stub", &["--name", &name]).start().await;
    let user = gw.anonymous().open("/mcp/stub").await;
    assert_eq!(user.hello["serverInfo"]["name"], json!(name));
    let command = |pid: u32| std::fs::read(format!("/proc/{pid}/cmdline")).unwrap();
    let commands = || {
        let children = gw.children().into_iter();
        children.map(|child| command(child.pid)).collect::<Vec<_>>()
    };
    let before = commands();
    let text = harm("by-request");
    assert_eq!(user.text("echo", json!({"text": text})).await, text);
    user.call(&text, json!({})).await.expect_err("no such tool");
    let read = user.request("resources/read", json!({"uri": text})).await;
    read.expect_err("no such resource");
    for path in ["/mcp/stub;id", "/mcp/$(id)", "/mcp/..%2Fbin%2Fsh"] {
        let hello = crate::harness::http::initialize(1, "2025-11-25", &json!({}));
        let answer = gw.anonymous().post(path, &[], &hello).await;
        assert_eq!(answer.status(), 404, "{path}");
    }
    assert_eq!(commands(), before);
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    // Each start logs a line, with its principal.
    let started = eventually("a line about the start", async || {
        let mut records = gw.log_records().into_iter();
        records.find(|line| line["message"] == "started an upstream process")
    })
    .await;
    assert_eq!(started["upstream"], "stub", "{started}");
    assert!(
        started["principal"].is_string() && started["pid"].is_u64(),
        "{started}"
    );
    gw.stop().await;
}
