//! How children end: by themselves, by the ladder, with everything they started (SPEC D-04, D-05).

use std::time::{Duration, Instant};

use rstest::rstest;

use super::world::{
    ECHO, MAX_MESSAGE, World, exists, is_alive, next, python, send, sh, tuned, upstream,
};
use crate::harness::process::is_asleep;
use crate::harness::{eventually, within};

/// Tells its pid and the pid of a grandchild that ignores signals, then waits for input to end.
const WITH_GRANDCHILD: &str = "
sh -c 'trap \"\" TERM HUP; echo \"{\\\"pid\\\":$$}\"; while :; do sleep 1; done' &
cat >/dev/null
";

fn pid_in(line: &str) -> u32 {
    let digits: String = line.chars().filter(char::is_ascii_digit).collect();
    digits.parse().unwrap()
}

// Spec: SPEC D-04
#[tokio::test]
async fn closed_input_ends_a_polite_child() {
    let world = World::new();
    let (connection, mut lines) = world
        .open("alice", &sh("echo '{}'; cat; echo '{\"bye\":1}'"))
        .await;
    assert_eq!(next(&mut lines).await.as_deref(), Some("{}"));
    let pid = connection.pid();
    let closing = connection.clone();
    let ((), line) = tokio::join!(closing.close(), next(&mut lines));
    assert_eq!(
        line.as_deref(),
        Some("{\"bye\":1}"),
        "what it says last is still read"
    );
    assert!(!exists(pid), "it was reaped");
    assert!(connection.closed().is_cancelled());
    world.end().await;
}

// Spec: SPEC D-04
#[tokio::test]
async fn a_child_that_ignores_closed_input_gets_a_signal() {
    let world = World::new();
    let script =
        "trap 'echo \"{\\\"term\\\":1}\"; exit' TERM; echo '{}'; while :; do sleep 0.05; done";
    let (connection, mut lines) = world.open("alice", &sh(script)).await;
    assert_eq!(next(&mut lines).await.as_deref(), Some("{}"));
    let started = Instant::now();
    let ((), line) = tokio::join!(connection.close(), next(&mut lines));
    assert_eq!(line.as_deref(), Some("{\"term\":1}"));
    assert!(
        started.elapsed() >= Duration::from_millis(300),
        "it was given time first"
    );
    world.end().await;
}

// Spec: SPEC D-04
#[tokio::test]
async fn a_child_that_ignores_sigterm_is_killed() {
    let world = World::new();
    let script = "trap '' TERM; echo '{}'; while :; do sleep 0.05; done";
    let (connection, mut lines) = world.open("alice", &sh(script)).await;
    assert_eq!(next(&mut lines).await.as_deref(), Some("{}"));
    let pid = connection.pid();
    connection.close().await;
    assert!(!exists(pid));
    world.end().await;
}

#[tokio::test]
async fn children_are_ended_politely_after_the_hard_stop_of_everything_else() {
    let world = World::new();
    let script = "echo '{}'; cat >/dev/null; sleep 0.1; echo done > \"$HOME/flushed\"";
    let patient = tuned(sh(script), |carrier| {
        carrier.stop_eof = Duration::from_secs(10);
    });
    let (connection, mut lines) = world.open("alice", &patient).await;
    assert_eq!(next(&mut lines).await.as_deref(), Some("{}"));
    world.tasks.shut_down(Duration::ZERO).await;
    assert!(is_alive(connection.pid()));
    world
        .runtime
        .shut_down(crate::stdio::world::in_a_minute())
        .await;
    let homes = std::fs::read_dir(world.state.join("0/homes/up")).unwrap();
    let kept: Vec<_> = homes
        .map(|home| home.unwrap().path().join("flushed").exists())
        .collect();
    assert_eq!(kept, [true]);
    world.end().await;
}

#[tokio::test]
async fn dropping_the_last_handle_stops_the_child() {
    let world = World::new();
    let (connection, lines) = world.open("alice", &sh("cat")).await;
    let pid = connection.pid();
    let clone = connection.clone();
    drop(connection);
    assert!(is_alive(pid) && !clone.closed().is_cancelled());
    drop(clone);
    eventually("the child's end", async || (!exists(pid)).then_some(())).await;
    drop(lines);
    let (connection, lines) = world.open("alice", &sh("cat")).await;
    drop(lines);
    eventually("the child's end", async || {
        (!exists(connection.pid())).then_some(())
    })
    .await;
    world.end().await;
}

// Spec: SPEC D-04
#[tokio::test]
async fn grandchildren_end_with_the_child_that_is_stopped() {
    let world = World::new();
    let (connection, mut lines) = world.open("alice", &sh(WITH_GRANDCHILD)).await;
    let grandchild = pid_in(&next(&mut lines).await.unwrap());
    assert!(is_alive(grandchild));
    connection.close().await;
    assert!(
        !exists(grandchild),
        "killed and reaped before close returns"
    );
    world.end().await;
}

#[tokio::test]
async fn grandchildren_end_with_the_child_that_crashes() {
    let world = World::new();
    let (connection, mut lines) = world.open("alice", &sh(WITH_GRANDCHILD)).await;
    let grandchild = pid_in(&next(&mut lines).await.unwrap());
    kill(connection.pid());
    assert_eq!(
        next(&mut lines).await,
        None,
        "also while the grandchild holds the output"
    );
    eventually("the grandchild's end", async || {
        (!exists(grandchild)).then_some(())
    })
    .await;
    world.end().await;
}

/// A grandchild that leaves the group and is orphaned.
const ESCAPE: &str = "
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        print('{\"pid\":%d}' % os.getpid(), flush=True)
        time.sleep(600)
    os._exit(0)
sys.stdin.read()
";

#[tokio::test]
async fn a_grandchild_that_left_the_group_ends_too() {
    let world = World::new();
    let (connection, mut lines) = world.open("alice", &python(ESCAPE)).await;
    let (_other, _lines) = world.open("bob", &sh("cat")).await;
    let grandchild = pid_in(&next(&mut lines).await.unwrap());
    connection.close().await;
    eventually("the grandchild's end", async || {
        (!exists(grandchild)).then_some(())
    })
    .await;
    world.end().await;
}

#[tokio::test]
async fn orphans_of_a_living_child_leave_no_zombie() {
    let world = World::new();
    let script = "
import os, sys
for _ in range(20):
    if os.fork() == 0:
        if os.fork() == 0:
            os._exit(0)
        os._exit(0)
for _ in range(20):
    os.wait()
print('{}', flush=True)
sys.stdin.read()
";
    let (_connection, mut lines) = world.open("alice", &python(script)).await;
    assert_eq!(next(&mut lines).await.as_deref(), Some("{}"));
    eventually("no zombies", async || zombies().is_empty().then_some(())).await;
    world.end().await;
}

/// Children of this process that have exited and were not reaped.
fn zombies() -> Vec<u32> {
    let own = std::process::id().to_string();
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    processes
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let mut fields = stat.rsplit(") ").next().unwrap_or_default().split(' ');
            fields.next() == Some("Z") && fields.next() == Some(&own)
        })
        .collect()
}

// Spec: SPEC D-05
#[tokio::test]
async fn a_child_that_closes_its_output_is_ended() {
    let world = World::new();
    let script = "exec 1>&-; while :; do sleep 0.05; done";
    let (connection, mut lines) = world.open("alice", &sh(script)).await;
    assert_eq!(next(&mut lines).await, None);
    assert!(connection.closed().is_cancelled());
    assert!(connection.send("{}".into()).await.is_err());
    assert!(!connection.try_send("{}".into()));
    eventually("the child's end", async || {
        (!exists(connection.pid())).then_some(())
    })
    .await;
    world.end().await;
}

// Spec: SPEC D-05
#[rstest]
#[case::output("1>&-", "it closed its output: gone fishing")]
#[case::input("0<&-", "it closed its input: gone fishing")]
#[tokio::test]
async fn a_child_that_we_had_to_stop_is_not_said_to_have_died_of_our_signal(
    #[case] closes: &str,
    #[case] said: &str,
) {
    let world = World::new();
    let script = format!(
        "echo 'gone fishing' >&2; exec {closes}; echo '{{}}' 2>/dev/null; while :; do sleep 0.05; done"
    );
    let (connection, mut lines) = world.open("alice", &sh(&script)).await;
    while next(&mut lines).await.is_some() {
        assert!(connection.send("{}".into()).await.is_err());
    }
    connection.close().await;
    assert_eq!(connection.last_words().as_deref(), Some(said));
    assert!(connection.broke_off(), "that it was of no use is why");
    world.end().await;
}

// Spec: SPEC D-05: no later message is needed to notice it.
#[tokio::test]
async fn a_child_that_closes_its_input_before_it_has_read_everything_is_ended() {
    let world = World::new();
    let dir = tempfile::tempdir().unwrap();
    let now = dir.path().join("now");
    let script = format!(
        "echo '{{}}'; while [ ! -e {} ]; do sleep 0.05; done; exec 0<&-; while :; do sleep 0.05; done",
        now.display()
    );
    let (connection, mut lines) = world.open("alice", &sh(&script)).await;
    assert_eq!(next(&mut lines).await.as_deref(), Some("{}"));
    // Together more than a pipe holds.
    let message = "x".repeat(MAX_MESSAGE / 2);
    for _ in 0..8 {
        send(&connection, &message).await;
    }
    std::fs::write(&now, "").unwrap();
    assert_eq!(next(&mut lines).await, None);
    assert_eq!(
        connection.last_words().as_deref(),
        Some("it closed its input")
    );
    world.end().await;
}

// Spec: SPEC D-05: nothing is written to a child that has closed its output, while its end is still awaited.
#[tokio::test]
async fn a_child_that_has_closed_its_output_is_sent_nothing_more() {
    let world = World::new();
    let script = "exec 1>&-; while :; do sleep 0.05; done";
    let (connection, mut lines) = world.open("alice", &sh(script)).await;
    tokio::select! {
        biased;
        line = next(&mut lines) => panic!("{line:?} before its end is known"),
        () = connection.closed().cancelled() => {}
    }
    assert!(connection.send("{}".into()).await.is_err());
    let (line, ()) = tokio::join!(next(&mut lines), connection.close());
    assert_eq!(line, None);
    assert!(
        connection.broke_off(),
        "letting go of it is not why it ended"
    );
    world.end().await;
}

#[tokio::test]
async fn a_killed_child_tells_its_last_words_at_once() {
    let world = World::new();
    let script = "echo 'out of memory' >&2; echo '{}'; exec cat";
    let (connection, mut lines) = world.open("alice", &sh(script)).await;
    assert_eq!(next(&mut lines).await.as_deref(), Some("{}"));
    kill(connection.pid());
    assert_eq!(within("the end of its lines", next(&mut lines)).await, None);
    let words = connection.last_words().unwrap();
    assert!(
        words.contains("signal: 9") && words.ends_with("out of memory"),
        "{words}"
    );
    let refused = connection.send("{}".into()).await;
    assert!(refused.is_err());
    assert!(!connection.try_send("{}".into()));
    // Spec: SPEC D-06
    let (connection, mut lines) = world.open("alice", &sh(ECHO)).await;
    send(&connection, "{}").await;
    assert_eq!(next(&mut lines).await.as_deref(), Some("{}"));
    world.end().await;
}

#[tokio::test]
async fn a_traceback_is_complete_when_the_lines_end() {
    let world = World::new();
    let (connection, mut lines) = world.open("alice", &python("raise KeyError('nope')")).await;
    assert_eq!(next(&mut lines).await, None);
    let words = connection.last_words().unwrap();
    assert!(words.starts_with("exit status: 1: Traceback"), "{words}");
    assert!(words.ends_with("KeyError: 'nope'"), "{words}");
    world.end().await;
}

#[tokio::test]
async fn a_program_that_cannot_run_says_why_and_to_callers_not_where() {
    let world = World::new();
    let missing = world
        .try_open("alice", &upstream("/no/such/program", &[]))
        .await;
    let error = missing.unwrap_err();
    let text = error.to_string();
    assert_eq!(text, "its program \"program\" cannot be found");
    let source = std::error::Error::source(&error).unwrap().to_string();
    assert!(source.contains("/no/such/program"), "{source}");
    let broken = tuned(sh("cat"), |carrier| carrier.cwd = Some("/nowhere".into()));
    let error = world.try_open("alice", &broken).await.unwrap_err();
    assert_eq!(error.to_string(), "its working directory cannot be entered");
    let source = std::error::Error::source(&error).unwrap().to_string();
    assert!(source.contains("/nowhere: No such file"), "{source}");
    world.end().await;
}

#[tokio::test]
async fn a_child_that_stops_reading_holds_nobody_but_its_senders() {
    let world = World::new();
    let script = "import time\nprint('{}')\ntime.sleep(600)";
    let (connection, mut lines) = world.open("alice", &python(script)).await;
    assert_eq!(next(&mut lines).await.as_deref(), Some("{}"));
    let message = bytes::Bytes::from(format!("{{\"a\":\"{}\"}}", "x".repeat(60_000)));
    let mut sent = 0;
    while connection.try_send(message.clone()) {
        sent += 1;
        assert!(sent < 100, "the queue has a bound");
    }
    let waiting = connection.send(message.clone());
    let waited = tokio::time::timeout(Duration::from_millis(50), waiting).await;
    assert!(waited.is_err(), "a sender waits");
    let sender = connection.clone();
    let (sent, ()) = tokio::join!(sender.send(message), connection.close());
    assert!(sent.is_err(), "closing tells it");
    world.end().await;
}

#[tokio::test]
async fn an_unread_child_is_paused_not_lost() {
    let world = World::new();
    let script = "i=0; while [ $i -lt 20000 ]; do echo \"{\\\"n\\\":$i}\"; i=$((i+1)); done";
    let (connection, mut lines) = world.open("alice", &sh(script)).await;
    eventually("the child waits for a reader", async || {
        is_asleep(connection.pid()).then_some(())
    })
    .await;
    for n in 0..20_000 {
        assert_eq!(next(&mut lines).await, Some(format!("{{\"n\":{n}}}")));
    }
    assert_eq!(next(&mut lines).await, None);
    world.end().await;
}

#[tokio::test]
async fn an_unused_child_is_stopped_and_a_busy_one_is_not() {
    let world = World::with(|settings| settings.idle = Duration::from_millis(200));
    let script = "echo '{}'; exec cat";
    let (idle, mut idle_lines) = world.open("alice", &sh(script)).await;
    let (busy, mut busy_lines) = world.open("alice", &sh(script)).await;
    let guard = busy.busy();
    next(&mut idle_lines).await;
    next(&mut busy_lines).await;
    idle.closed().cancelled().await;
    assert_eq!(next(&mut idle_lines).await, None);
    assert!(idle.last_words().unwrap().contains("not used"));
    // The whole time has passed once more when one that came later is stopped too.
    let (later, _later_lines) = world.open("alice", &sh(script)).await;
    later.closed().cancelled().await;
    assert!(!busy.closed().is_cancelled());
    drop(guard);
    busy.closed().cancelled().await;
    world.end().await;
}

fn kill(pid: u32) {
    let status = std::process::Command::new("kill")
        .args(["-9", &pid.to_string()])
        .status();
    assert!(status.unwrap().success());
}

// The child reads stdin only once started, and would not notice that stdin is closed.
#[tokio::test]
async fn child_that_never_spoke_is_sent_sigterm_at_once() {
    let world = World::new();
    let directory = tempfile::tempdir().unwrap();
    let ready = directory.path().join("ready");
    let script = format!(": > {}; exec sleep 1000", ready.display());
    let patient = tuned(sh(&script), |carrier| {
        carrier.stop_eof = Duration::from_mins(10);
    });
    let (connection, _lines) = world.open("alice", &patient).await;
    eventually("it runs", async || ready.exists().then_some(())).await;
    within("its end", connection.close()).await;
    assert_eq!(world.runtime.counts().children, 0, "its place is free");
    world.end().await;
}
