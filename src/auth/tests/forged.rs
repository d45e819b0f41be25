//! Tokens that are no JWT, and JWTs that were forged or changed: each is refused, whatever its claims say.

use aws_lc_rs::hmac;
use rstest::rstest;
use serde_json::json;

use super::super::samples::{NOW, claims, encode};
use super::super::*;
use super::{ISSUER, World, assert_invalid, merged};

// RFC 8725 §2.1: the public key used as a shared secret
#[tokio::test]
async fn a_token_signed_with_the_public_key_as_secret_is_refused() {
    let world = World::new();
    let public = world.signer.public_bytes();
    let jwk = world.signer.jwk().to_string();
    for secret in [public, jwk.as_bytes()] {
        let header = json!({"alg": "HS256", "typ": "at+jwt", "kid": "k1"}).to_string();
        let claims = claims(ISSUER).to_string();
        let signed = format!(
            "{}.{}",
            encode(header.as_bytes()),
            encode(claims.as_bytes())
        );
        let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
        let tag = hmac::sign(&key, signed.as_bytes());
        let token = format!("{signed}.{}", encode(tag.as_ref()));
        assert_invalid(world.present(&token).await, "token_algorithm");
    }
}

#[rstest]
#[case::claims(1)]
#[case::signature(2)]
#[tokio::test]
async fn a_changed_token_is_refused(#[case] part: usize) {
    let world = World::new();
    let token = world.signer.mint(ISSUER);
    let mut parts: Vec<String> = token.split('.').map(str::to_owned).collect();
    if part == 1 {
        let claims = merged(claims(ISSUER), &json!({"sub": "mallory"}));
        parts[1] = encode(claims.to_string().as_bytes());
    } else {
        let flipped = if parts[2].starts_with('A') { "B" } else { "A" };
        parts[2].replace_range(..1, flipped);
    }
    assert_invalid(world.present(&parts.join(".")).await, "token_signature");
}

#[rstest]
#[case::word("garbage", "token_not_a_jwt")]
#[case::two_parts("e30.e30", "token_not_a_jwt")]
#[case::five_parts("e30.e30.e30.e30.e30", "token_not_a_jwt")]
#[case::empty_parts("..", "token_not_a_jwt")]
#[case::padded("e30=.e30.e30", "token_not_a_jwt")]
#[tokio::test]
async fn what_is_no_jwt_is_refused(#[case] token: &str, #[case] reason: &str) {
    let world = World::new();
    // Padding inside a token is not even a bearer token.
    let result = world.present(token).await;
    if token.contains('=') {
        assert_eq!(
            result.expect_err("malformed").status,
            StatusCode::BAD_REQUEST
        );
    } else {
        assert_invalid(result, reason);
    }
}

#[tokio::test]
async fn an_empty_signature_is_refused() {
    let world = World::new();
    let token = world.signer.mint(ISSUER);
    let (signed, _) = token.rsplit_once('.').expect("three parts");
    assert_invalid(
        world.present(&format!("{signed}.")).await,
        "token_signature",
    );
}

#[rstest]
#[case::claim("\"aud\":\"https://gw.test/mcp\",\"aud\":\"https://gw.test/mcp\"")]
#[case::escaped("\"aud\":\"https://gw.test/mcp\",\"\\u0061ud\":\"https://other.test\"")]
#[tokio::test]
async fn a_claim_that_stands_there_twice_is_refused(#[case] audiences: &str) {
    let world = World::new();
    let exp = NOW + 600;
    let claims = format!(
        "{{\"iss\":\"{ISSUER}\",\"sub\":\"a\",\"exp\":{exp},\"scope\":\"mcp:tools\",{audiences}}}"
    );
    let token = world
        .signer
        .sign(&world.signer.header().to_string(), &claims);
    assert_invalid(world.present(&token).await, "token_not_a_jwt");
}

#[tokio::test]
async fn a_header_parameter_that_stands_there_twice_is_refused() {
    let world = World::new();
    let header = "{\"alg\":\"ES256\",\"alg\":\"ES256\",\"typ\":\"at+jwt\",\"kid\":\"k1\"}";
    let token = world.signer.sign(header, &claims(ISSUER).to_string());
    assert_invalid(world.present(&token).await, "token_not_a_jwt");
}

#[tokio::test]
async fn a_huge_token_is_refused() {
    let world = World::new();
    let claims = json!({"padding": "x".repeat(16 * 1024)});
    assert_invalid(
        world.present_changed(json!({}), claims).await,
        "token_too_long",
    );
}
