//! What children find around them (SPEC D-12, D-13).

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;

use super::world::{World, next, python, sh, tuned, with_env};

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
    // The shell adds these for what it starts.
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
    // What this test was itself started with is no secret of the gateway.
    let plain = std::process::Command::new("python3")
        .args(["-c", script])
        .output()
        .unwrap();
    let (_connection, mut lines) = world.open("alice", &python(script)).await;
    let line = next(&mut lines).await.unwrap();
    assert_eq!(line, String::from_utf8(plain.stdout).unwrap().trim());
    world.end().await;
}
