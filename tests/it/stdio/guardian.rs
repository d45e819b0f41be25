//! A killed gateway leaves no child behind.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use super::world::{World, exists, is_alive, next, python, sh};
use crate::harness::eventually;

/// Runs [`stand_in`] in a process of its own.
const STAND_IN: &str = "DRAWBRIDGE_TEST_STAND_IN";

/// Variable with the stand-in's state directory.
const STATE: &str = "DRAWBRIDGE_TEST_STATE";

/// A child with a grandchild that ignores signals and carries no mark, and one that left the group.
const FAMILY: &str = "
import os, signal, sys, time
def say(): os.write(1, b'{\"pid\":%d}\\n' % os.getpid())
if os.fork() == 0:
    for s in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT): signal.signal(s, signal.SIG_IGN)
    say(); os.execve('/bin/sleep', ['sleep', '600'], {})
if os.fork() == 0:
    os.setsid()
    say(); time.sleep(600)
say()
sys.stdin.read(); time.sleep(600)
";

/// Plays the gateway for the tests below: opens children, tells all pids, and waits to be killed.
#[tokio::test]
#[ignore = "a part of other tests"]
async fn stand_in() {
    if std::env::var_os(STAND_IN).is_none() {
        return;
    }
    let state = std::path::PathBuf::from(std::env::var_os(STATE).unwrap());
    let world = World::at(&state, |_| {});
    let mut pids = vec![world.runtime.guardian_pid().unwrap()];
    let (_family, mut lines) = world.open("alice", &python(FAMILY)).await;
    for _ in 0..3 {
        let line = next(&mut lines).await.unwrap();
        let digits: String = line.chars().filter(char::is_ascii_digit).collect();
        pids.push(digits.parse().unwrap());
    }
    let (plain, _lines) = world
        .open("bob", &sh("trap '' TERM; while :; do sleep 1; done"))
        .await;
    pids.push(plain.pid());
    let text: Vec<String> = pids.iter().map(u32::to_string).collect();
    eprintln!("pids {}", text.join(" "));
    std::future::pending::<()>().await;
}

/// The stand-in's process, and all pids: guardian, family, plain child.
fn start_stand_in() -> (Child, Vec<u32>, TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let (stand_in, pids) = start_stand_in_at(directory.path());
    (stand_in, pids, directory)
}

fn start_stand_in_at(state: &Path) -> (Child, Vec<u32>) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([
        "--exact",
        "stdio::guardian::stand_in",
        "--ignored",
        "--nocapture",
    ]);
    command
        .env(STAND_IN, "1")
        .env(STATE, state)
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let mut stand_in = command.spawn().unwrap();
    let mut lines = BufReader::new(stand_in.stderr.take().unwrap()).lines();
    let line = lines.find_map(|line| Some(line.ok()?.strip_prefix("pids ")?.to_owned()));
    let pids: Vec<u32> = line
        .unwrap()
        .split(' ')
        .map(|pid| pid.parse().unwrap())
        .collect();
    assert!(
        pids.len() == 5 && pids.iter().all(|pid| is_alive(*pid)),
        "{pids:?}"
    );
    (stand_in, pids)
}

async fn nothing_is_left(pids: &[u32]) {
    eventually("everybody's end", async || {
        pids.iter().all(|pid| !is_alive(*pid)).then_some(())
    })
    .await;
}

#[tokio::test]
async fn killing_the_gateway_leaves_no_child_no_grandchild_and_no_guardian() {
    let (mut stand_in, pids, _directory) = start_stand_in();
    stand_in.kill().unwrap();
    stand_in.wait().unwrap();
    nothing_is_left(&pids).await;
}

#[tokio::test]
async fn a_gateway_that_is_started_again_keeps_its_directories_and_its_children() {
    let directory = tempfile::tempdir().unwrap();
    let (mut stand_in, pids) = start_stand_in_at(directory.path());
    stand_in.kill().unwrap();
    stand_in.wait().unwrap();
    let world = World::at(directory.path(), |_| {});
    let tell = sh("printf '{\"at\":\"%s\"}\\n' \"$PWD\"; cat");
    let (connection, mut lines) = world.open("alice", &tell).await;
    let told = next(&mut lines).await.unwrap();
    let homes = directory.path().join("0/homes");
    assert!(told.contains(homes.to_str().unwrap()), "{told}");
    nothing_is_left(&pids).await;
    assert!(is_alive(connection.pid()));
    connection.close().await;
    world.end().await;
}

#[tokio::test]
async fn signals_to_the_guardian_do_not_stop_it_guarding() {
    let (mut stand_in, pids, _directory) = start_stand_in();
    for signal in ["-TERM", "-INT", "-HUP"] {
        let sent = Command::new("kill")
            .args([signal, &pids[0].to_string()])
            .status();
        assert!(sent.unwrap().success());
    }
    assert!(is_alive(pids[0]));
    stand_in.kill().unwrap();
    stand_in.wait().unwrap();
    nothing_is_left(&pids).await;
}

#[tokio::test]
async fn a_guardian_that_dies_is_replaced_and_harms_nobody() {
    let world = World::new();
    let (connection, mut lines) = world.open("alice", &sh("echo '{}'; exec cat")).await;
    next(&mut lines).await;
    let first = world.runtime.guardian_pid().unwrap();
    let killed = Command::new("kill")
        .args(["-9", &first.to_string()])
        .status();
    assert!(killed.unwrap().success());
    let second = eventually("another guardian", async || {
        world.runtime.guardian_pid().filter(|pid| *pid != first)
    })
    .await;
    assert!(is_alive(second) && is_alive(connection.pid()) && !exists(first));
    assert!(!connection.closed().is_cancelled());
    world.end().await;
    eventually("the guardian's end", async || {
        (!is_alive(second)).then_some(())
    })
    .await;
}
