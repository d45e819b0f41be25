//! Standard error of children (SPEC D-03).

use super::world::{LENT, World, next, python, sh, with_env, with_inherited};

// Spec: SPEC D-03
#[tokio::test]
async fn a_flood_on_stderr_never_blocks_the_child() {
    let world = World::new();
    let script = "
import sys
for n in range(20):
    sys.stderr.write('noise ' * 20000 + '\\n' + 'x\\n' * 20000)
    print('{\"n\":%d}' % n)
";
    let (connection, mut lines) = world.open("alice", &python(script)).await;
    for n in 0..20 {
        assert_eq!(next(&mut lines).await, Some(format!("{{\"n\":{n}}}")));
    }
    assert_eq!(next(&mut lines).await, None);
    assert!(connection.last_words().unwrap().len() < 3000);
    world.end().await;
}

#[tokio::test]
async fn last_words_hold_no_secret_and_no_control_character() {
    let world = World::new();
    let script = "printf '\\033[31mbad key %s\\n' \"$API_KEY\" >&2; exit 3";
    let upstream = with_env(sh(script), "API_KEY", "sk-0123456789");
    let (connection, mut lines) = world.open("alice", &upstream).await;
    assert_eq!(next(&mut lines).await, None);
    let words = connection.last_words().unwrap();
    assert_eq!(words, "exit status: 3: [31mbad key …");
    world.end().await;
}

#[tokio::test]
async fn last_words_hold_no_value_that_was_inherited() {
    let world = World::new();
    let (name, value) = LENT;
    let script = format!("test \"${name}\" = '{value}' && echo \"bad key ${name}.\" >&2; exit 3");
    let upstream = with_inherited(sh(&script), name);
    let (connection, mut lines) = world.open("alice", &upstream).await;
    assert_eq!(next(&mut lines).await, None);
    let words = connection.last_words().unwrap();
    assert_eq!(words, "exit status: 3: bad key ….");
    world.end().await;
}

#[tokio::test]
async fn debug_output_shows_no_secret() {
    let world = World::new();
    let upstream = with_env(sh("cat"), "API_KEY", "sk-0123456789");
    let opened = world.open("alice", &upstream).await;
    let text = format!("{opened:?} {:?}", world.runtime);
    assert!(
        !text.contains("sk-0123456789") && !text.contains("PATH"),
        "{text}"
    );
    assert!(text.len() < 500, "{text}");
    world.end().await;
}
