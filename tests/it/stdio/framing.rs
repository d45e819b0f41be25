//! Messages both ways (SPEC D-01, D-02).

use super::world::{ECHO, MAX_MESSAGE, World, next, python, send, sh};

#[tokio::test]
async fn a_message_comes_back_from_an_echo() {
    let world = World::new();
    let (connection, mut lines) = world.open("alice", &sh(ECHO)).await;
    send(&connection, r#"{"id":1}"#).await;
    assert_eq!(next(&mut lines).await.as_deref(), Some(r#"{"id":1}"#));
    connection.close().await;
    assert_eq!(next(&mut lines).await, None);
    world.end().await;
}

// Spec: SPEC D-01
#[tokio::test]
async fn line_breaks_between_tokens_do_not_break_the_line() {
    let world = World::new();
    let (connection, mut lines) = world.open("alice", &sh(ECHO)).await;
    send(&connection, "{\n  \"id\":\r\n1}").await;
    assert_eq!(next(&mut lines).await.as_deref(), Some("{   \"id\":  1}"));
    world.end().await;
}

// Spec: SPEC D-02
#[tokio::test]
async fn banners_and_blank_lines_are_passed_over() {
    let world = World::new();
    let script = "echo 'Server v1 ready'; echo; echo '  {\"id\":1} '; echo null; echo '[2]'";
    let (_connection, mut lines) = world.open("alice", &sh(script)).await;
    assert_eq!(next(&mut lines).await.as_deref(), Some("{\"id\":1}"));
    assert_eq!(next(&mut lines).await.as_deref(), Some("[2]"));
    assert_eq!(next(&mut lines).await, None);
    world.end().await;
}

#[tokio::test]
async fn a_line_in_pieces_is_one_message() {
    let world = World::new();
    let script = "
import sys, time
for piece in ['{\"a', '\":', '1}\\n{\"b\":2}\\n']:
    sys.stdout.write(piece); sys.stdout.flush(); time.sleep(0.02)
";
    let (_connection, mut lines) = world.open("alice", &python(script)).await;
    assert_eq!(next(&mut lines).await.as_deref(), Some("{\"a\":1}"));
    assert_eq!(next(&mut lines).await.as_deref(), Some("{\"b\":2}"));
    world.end().await;
}

// Spec: SPEC D-02
#[tokio::test]
async fn a_line_that_is_too_long_is_skipped_to_its_end() {
    let world = World::new();
    let script = format!(
        "import sys\nprint('{{\"big\":\"' + 'x' * {} + '\"}}')\nprint('{{\"id\":2}}')\n\
         sys.stdin.read()",
        MAX_MESSAGE * 20
    );
    let (_connection, mut lines) = world.open("alice", &python(&script)).await;
    assert_eq!(next(&mut lines).await.as_deref(), Some("{\"id\":2}"));
    world.end().await;
}

#[tokio::test]
async fn the_largest_message_passes_both_ways() {
    let world = World::new();
    let (connection, mut lines) = world.open("alice", &sh("exec cat")).await;
    let text = format!("{{\"a\":\"{}\"}}", "x".repeat(MAX_MESSAGE - 8));
    assert_eq!(text.len(), MAX_MESSAGE);
    send(&connection, &text).await;
    assert_eq!(next(&mut lines).await, Some(text));
    world.end().await;
}

#[tokio::test]
async fn a_crash_within_a_line_ends_the_lines() {
    let world = World::new();
    let (_connection, mut lines) = world
        .open("alice", &sh("printf '{\"id\":'; kill -9 $$"))
        .await;
    assert_eq!(next(&mut lines).await, None);
    world.end().await;
}
