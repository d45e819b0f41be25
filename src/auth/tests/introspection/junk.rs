//! Junk tokens of strangers, which an issuer or a firewall in front of it refuses to be asked about.

use super::*;

/// Tokens with this in them are answered by the firewall.
const JUNK: &str = "etc/passwd";

fn junk(n: usize) -> String {
    format!("../../{n}/{JUNK}")
}

// SPEC A-23. Five different junk tokens come before any good one, and one before each.
#[rstest]
#[case::firewall(403)]
#[case::too_large(413)]
#[case::bad_request(400)]
#[case::broken(500)]
#[case::reset(0)]
#[tokio::test]
async fn junk_tokens_refuse_no_good_token(#[case] status: u16) {
    let world = World::new().await;
    world.server.refuses(JUNK, status);
    for n in 0..5 {
        world.present(&junk(n)).await.expect_err("junk");
    }
    for n in 0..40 {
        world.present(&junk(5 + n)).await.expect_err("junk");
        let good = world.present(&format!("good-{n}")).await;
        good.expect("a good token");
    }
}

#[tokio::test]
async fn a_refused_question_refuses_its_token_for_ten_seconds() {
    let world = World::new().await;
    world.server.refuses(JUNK, 403);
    world.present("good").await.expect("active");
    for _ in 0..3 {
        assert_invalid(world.present(&junk(0)).await, "token_question_refused");
    }
    assert_eq!(world.server.questions().len(), 2);
    world.clock.advance(Duration::from_secs(10));
    assert_invalid(world.present(&junk(0)).await, "token_question_refused");
    assert_eq!(world.server.questions().len(), 3);
}

// A 403 for every token looks as if the gateway may not introspect at all.
#[tokio::test]
async fn an_issuer_that_refuses_every_question_makes_no_further_token_bad() {
    let world = World::new().await;
    world.server.answers(403, "");
    for n in 0..2 {
        assert_invalid(world.present(&junk(n)).await, "token_question_refused");
    }
    for n in 2..5 {
        assert_unavailable(world.present(&junk(n)).await);
    }
}

#[tokio::test]
async fn an_answer_outlives_the_issuer_that_gave_it() {
    let world = World::new().await;
    world.present("good").await.expect("active");
    world.server.answers(401, "{\"error\":\"invalid_client\"}");
    assert_unavailable(world.present("another").await);
    world.clock.advance(Duration::from_secs(29));
    world.present("good").await.expect("remembered");
}
