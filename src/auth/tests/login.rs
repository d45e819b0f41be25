//! Logins for the connect pages: which principal a token names, and which tokens name none.

use super::*;

const CLIENT: &str = "drawbridge";
const NONCE: &str = "a-nonce";

fn check() -> IdTokenCheck<'static> {
    IdTokenCheck {
        issuer: ISSUER,
        client_id: CLIENT,
        nonce: NONCE,
        subject_claim: None,
    }
}

/// An ID token with these members of its header and claims replaced, or removed where the value is null.
fn id_token(world: &World, header: &Value, changes: &Value) -> String {
    let header = merged(
        merged(world.signer.header(), &json!({"typ": "JWT"})),
        header,
    );
    let claims = json!({
        "iss": ISSUER, "sub": "alice", "aud": CLIENT, "nonce": NONCE, "iat": NOW, "exp": NOW + 600,
        "email": "alice@one.test",
    });
    let claims = merged(claims, changes);
    world.signer.sign(&header.to_string(), &claims.to_string())
}

async fn identify(world: &World, token: &str) -> Result<PersonLogin, &'static str> {
    let found = world
        .authenticator
        .identify_by_id_token(token, &check())
        .await;
    found.map_err(|refusal| refusal.reason)
}

#[tokio::test]
async fn person_of_an_id_token_owns_what_their_calls_own() {
    let world = World::new();
    let caller = world
        .present(&world.signer.mint(ISSUER))
        .await
        .expect("a good token");
    let token = id_token(&world, &json!({}), &json!({}));
    let person = identify(&world, &token).await.expect("a good ID token");
    assert_eq!(person.principal.owner(), caller.owner());
    assert_eq!(person.name.as_deref(), Some("alice@one.test"));
}

// OpenID Connect Core §3.1.3.7; RFC 8725 §3.12
#[rstest]
#[case::other_nonce(json!({}), json!({"nonce": "another"}), "token_nonce")]
#[case::no_nonce(json!({}), json!({"nonce": null}), "token_nonce")]
#[case::other_client(json!({}), json!({"aud": "another"}), "token_audience")]
#[case::other_party(json!({}), json!({"azp": "another"}), "token_party")]
#[case::shared(json!({}), json!({"aud": [CLIENT, "another"]}), "token_party")]
#[case::shared_by_another(json!({}), json!({"aud": [CLIENT, "another"], "azp": "another"}), "token_party")]
#[case::other_issuer(json!({}), json!({"iss": "https://two.test"}), "token_issuer")]
#[case::expired(json!({}), json!({"exp": NOW - 61}), "token_expired")]
#[case::endless(json!({}), json!({"exp": null}), "token_claim")]
#[case::no_subject(json!({}), json!({"sub": null}), "token_subject")]
#[case::access_token(json!({"typ": "at+jwt"}), json!({}), "token_type")]
#[case::keycloak_access_token(json!({}), json!({"typ": "Bearer"}), "token_type")]
#[case::logout_token(json!({}), json!({"events": {}}), "token_type")]
#[case::other_key(json!({"kid": "k2"}), json!({}), "token_unknown_key")]
#[case::unsigned(json!({"alg": "none"}), json!({}), "token_algorithm")]
#[tokio::test]
async fn bad_id_token_is_nobodys(
    #[case] header: Value,
    #[case] claims: Value,
    #[case] reason: &str,
) {
    let world = World::new();
    let token = id_token(&world, &header, &claims);
    assert_eq!(identify(&world, &token).await.expect_err("refused"), reason);
}

#[rstest]
#[case::ours_alone(json!({"aud": [CLIENT]}))]
#[case::shared(json!({"aud": ["another", CLIENT], "azp": CLIENT}))]
#[case::keycloak(json!({"typ": "ID", "azp": CLIENT}))]
#[tokio::test]
async fn good_id_token_may_look_so(#[case] claims: Value) {
    let world = World::new();
    let token = id_token(&world, &json!({}), &claims);
    identify(&world, &token).await.expect("a good ID token");
}

#[tokio::test]
async fn forged_signature_is_nobodys() {
    let world = World::new();
    let mut token = id_token(&world, &json!({}), &json!({}));
    let other = id_token(&world, &json!({}), &json!({"sub": "bob"}));
    token.truncate(token.rfind('.').expect("a signature"));
    token.push_str(&other[other.rfind('.').expect("a signature")..]);
    assert_eq!(
        identify(&world, &token).await.expect_err("refused"),
        "token_signature"
    );
}

// Else a person who writes another's address into a profile is that other.
#[rstest]
#[case::verified(json!({"email_verified": true}), Ok("alice@one.test"))]
#[case::verified_in_words(json!({"email_verified": "true"}), Ok("alice@one.test"))]
#[case::not_verified(json!({"email_verified": false}), Err("token_unverified"))]
#[case::nothing_said(json!({}), Err("token_unverified"))]
#[tokio::test]
async fn address_names_the_subject_once_it_is_verified(
    #[case] claims: Value,
    #[case] expected: Result<&str, &str>,
) {
    let world = World::new();
    let token = id_token(&world, &json!({}), &claims);
    let check = IdTokenCheck {
        subject_claim: Some("email"),
        ..check()
    };
    let found = world
        .authenticator
        .identify_by_id_token(&token, &check)
        .await;
    let found = found.map_err(|refusal| refusal.reason);
    let subject = found.as_ref().map(|person| person.principal.subject());
    assert_eq!(subject.map_err(|reason| *reason), expected);
}

#[tokio::test]
async fn claim_of_the_login_names_the_subject() {
    let world = World::with(|config| config.issuers[0].subject_claim = Some("oid".to_owned()));
    let token = id_token(&world, &json!({}), &json!({"oid": "1234"}));
    let person = identify(&world, &token).await.expect("a good ID token");
    assert_eq!(person.principal.subject(), "1234");
    let check = IdTokenCheck {
        subject_claim: Some("sub"),
        ..check()
    };
    let person = world
        .authenticator
        .identify_by_id_token(&token, &check)
        .await;
    assert_eq!(
        person.expect("a good ID token").principal.subject(),
        "alice"
    );
}

#[tokio::test]
async fn access_token_of_the_login_names_the_caller_whatever_its_scopes() {
    let world = World::new();
    let endpoint = endpoint();
    let identify = async |token: String, issuer| {
        let found = world
            .authenticator
            .identify_by_access_token(&token, (issuer, &endpoint))
            .await;
        found.map_err(|refusal| refusal.reason)
    };
    let plain = world.changed(&json!({}), &json!({"scope": null}));
    let person = identify(plain, ISSUER).await.expect("a good token");
    assert_eq!(person.principal.subject(), "alice");
    let foreign = world.changed(&json!({}), &json!({"aud": "https://other.test/mcp"}));
    assert_eq!(
        identify(foreign, ISSUER).await.expect_err("refused"),
        "token_audience"
    );
    let good = world.signer.mint(ISSUER);
    assert_eq!(
        identify(good, "https://two.test")
            .await
            .expect_err("refused"),
        "token_issuer"
    );
    let id = id_token(&world, &json!({}), &json!({"aud": "https://gw.test/mcp"}));
    assert_eq!(
        identify(id, ISSUER).await.expect_err("refused"),
        "token_type"
    );
}
