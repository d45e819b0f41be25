//! What a child can do to its siblings and to the gateway (DESIGN §6).

use std::process::Stdio;

use rstest::rstest;

use super::world::{World, next, python, send, with_env};
use crate::harness::gateway::without_capabilities;
use crate::harness::{Gateway, Setup, eventually};

/// For each pid on its standard input, the names of what it can reach of that process.
const SPY: &str = "
import json, os, sys
def can(act):
    try:
        act()
        return True
    except OSError:
        return False
print('{}')
for line in sys.stdin:
    pid = json.loads(line)['pid']
    acts = {
        'environment': lambda: open(f'/proc/{pid}/environ', 'rb').read(),
        'memory': lambda: open(f'/proc/{pid}/mem', 'rb'),
        'files': lambda: os.readlink(f'/proc/{pid}/fd/0'),
        'signal': lambda: os.kill(pid, 0),
    }
    print(json.dumps([name for name, act in acts.items() if can(act)]))
";

#[rstest]
#[case::isolated(false, "[]", "[]")]
#[case::trusted(
    true,
    r#"["environment", "memory", "files", "signal"]"#,
    r#"["environment", "memory", "files", "signal"]"#
)]
#[tokio::test]
async fn a_child_reaches_others_only_where_it_is_trusted(
    #[case] trusted: bool,
    #[case] sibling: &str,
    #[case] parent: &str,
) {
    let world = World::with(|settings| settings.trust_children = trusted);
    let holder = with_env(python(SPY), "TOKEN", "bobs-own-token");
    let (bob, mut of_bob) = world.open("bob", &holder).await;
    next(&mut of_bob).await;
    let (alice, mut of_alice) = world.open("alice", &python(SPY)).await;
    next(&mut of_alice).await;

    send(&alice, &format!("{{\"pid\": {}}}", bob.pid())).await;
    assert_eq!(next(&mut of_alice).await.unwrap(), sibling);
    send(&alice, &format!("{{\"pid\": {}}}", std::process::id())).await;
    assert_eq!(next(&mut of_alice).await.unwrap(), parent);
    // A process of its own it reaches in any case: what it starts stays its own.
    send(&alice, &format!("{{\"pid\": {}}}", alice.pid())).await;
    let own = r#"["environment", "memory", "files", "signal"]"#;
    assert_eq!(next(&mut of_alice).await.unwrap(), own);
    drop((bob, of_bob, alice, of_alice));
    world.end().await;
}

/// Programs rename between directories, mount nothing, and use sockets, threads and pipes: a domain takes none of it.
#[tokio::test]
async fn an_isolated_child_works_with_files_as_before() {
    let world = World::new();
    let script = "
import json, os, subprocess, tempfile
one, two = tempfile.mkdtemp(), tempfile.mkdtemp()
open(one + '/file', 'w').write('text')
os.rename(one + '/file', two + '/file')
os.link(two + '/file', one + '/again')
inner = subprocess.run(['sh', '-c', 'kill -0 $PPID && cat ' + one + '/again'], capture_output=True, text=True)
print(json.dumps([open(two + '/file').read(), inner.stdout]))
";
    let (_connection, mut lines) = world.open("alice", &python(script)).await;
    assert_eq!(next(&mut lines).await.unwrap(), r#"["text", "text"]"#);
    world.end().await;
}

/// What a process of the same user reads of `/proc/<pid>/environ`.
fn environment(pid: u32) -> Option<Vec<u8>> {
    let mut reader = without_capabilities("cat");
    let output = reader.arg(format!("/proc/{pid}/environ")).output().unwrap();
    output.status.success().then_some(output.stdout)
}

#[tokio::test]
async fn no_process_of_the_user_reads_the_environment_of_the_gateway() {
    let mut sleep = without_capabilities("sleep");
    let mut other = sleep.arg("60").stdout(Stdio::piped()).spawn().unwrap();
    // Until the exec the process is another program, with other capabilities.
    let seen = eventually("an environment", async || environment(other.id())).await;
    other.kill().unwrap();
    other.wait().unwrap();
    assert!(!seen.is_empty(), "the way of reading works");

    let gw = Gateway::start_without_capabilities(&Setup::open().stub("stub", &[]).render()).await;
    assert_eq!(environment(gw.pid()), None);
}
