//! Refreshes while another process writes the same grant, and with answers that are not as the RFC has them.

use std::sync::Mutex;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::super::super::authorization::account_with;
use super::super::super::discovery::DiscoveredServer;
use super::*;
use crate::call::Principal;
use crate::lock::lock;
use crate::vault::samples::{user_grant, vault};
use crate::vault::{TokenPlacement, Vault};

pub(in super::super) fn key() -> GrantKey {
    GrantKey::new(Principal::anonymous().owner(), "up")
}

/// A grant whose access token is `access` and ends at `ends`, milliseconds since the Unix epoch.
pub(in super::super) fn record(access: &str, ends: Option<u64>, endpoint: &str) -> GrantRecord {
    GrantRecord {
        token_endpoint: Some(endpoint.to_owned()),
        access_ends: ends,
        refresh_token: Some(Secret::new(format!("refresh-{access}"))),
        ..user_grant(access)
    }
}

/// Whether `outcome` says that the account has ended, and that its user is asked.
fn has_ended(outcome: &Result<(), RefreshFailure>) -> bool {
    matches!(outcome, Err(RefreshFailure::Ended(failure)) if failure.asks_user())
}

/// The access token that the database has.
pub(in super::super) async fn stored(account: &UserAccount) -> Option<String> {
    let grant = account.vault.read_grant(&key()).await.unwrap()?;
    let token = grant.record.access_token?;
    Some(token.expose().to_owned())
}

/// Whether `request` has come with all of its body.
fn is_whole(request: &[u8]) -> bool {
    let text = String::from_utf8_lossy(request).to_ascii_lowercase();
    let Some((head, body)) = text.split_once("\r\n\r\n") else {
        return false;
    };
    let mut lengths = head
        .lines()
        .filter_map(|line| line.strip_prefix("content-length: "));
    lengths.next() == Some(&body.len().to_string())
}

/// Reads a whole request.
async fn read_request(client: &mut TcpStream) {
    let mut request = Vec::new();
    while !is_whole(&request) {
        assert_ne!(client.read_buf(&mut request).await.unwrap(), 0);
    }
}

/// A token endpoint that grants each request with the answer `body`.
async fn granting(body: &'static str) -> String {
    granting_after(body, || async {}).await
}

/// The same; `first` runs before each answer.
pub(in super::super) async fn granting_after<F: Future<Output = ()> + Send + 'static>(
    body: &'static str,
    first: impl Fn() -> F + Send + 'static,
) -> String {
    answering("200 OK", body, first).await
}

/// A token endpoint that answers each request with `status` and `body`; `first` runs before each answer.
async fn answering<F: Future<Output = ()> + Send + 'static>(
    status: &str,
    body: &'static str,
    first: impl Fn() -> F + Send + 'static,
) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/token", listener.local_addr().unwrap());
    let length = body.len();
    let answer = format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\
         Connection: close\r\n\r\n{body}"
    );
    #[expect(
        clippy::disallowed_methods,
        reason = "a server of the test's own ends with it"
    )]
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            read_request(&mut client).await;
            first().await;
            client.write_all(answer.as_bytes()).await.unwrap();
        }
    });
    url
}

/// A token endpoint that answers `invalid_grant`, and before the first answer writes the grant `next` into `vault`, as
/// another process does.
async fn refusing(vault: Vault, next: GrantRecord) -> String {
    let next = Mutex::new(Some(next));
    let write = move || {
        let (vault, next) = (vault.clone(), lock(&next).take());
        async move {
            if let Some(next) = next {
                vault.put_grant(&key(), &next).await.unwrap();
            }
        }
    };
    answering("400 Bad Request", r#"{"error":"invalid_grant"}"#, write).await
}

#[tokio::test]
async fn refused_grant_that_was_replaced_meanwhile_does_not_end() {
    let dir = tempfile::tempdir().unwrap();
    let account = account_with(&dir, "").await;
    let read = async || account.vault.read_grant(&key()).await.unwrap().unwrap();
    let put = async |access| {
        let record = record(access, Some(1), "https://as.test/token");
        account.vault.put_grant(&key(), &record).await.unwrap();
    };
    put("older").await;
    let refused = read().await;
    put("newer").await;
    end(&account, &refused).await.unwrap();
    assert_eq!(stored(&account).await.as_deref(), Some("newer"));
    assert!(has_ended(&end(&account, &read().await).await));
    assert_eq!(stored(&account).await, None);
}

#[tokio::test]
async fn token_of_another_process_is_used_where_the_own_was_refused() {
    let dir = tempfile::tempdir().unwrap();
    let account = account_with(&dir, "[egress]\nallow = [\"127.0.0.1\"]").await;
    let newer = record("newer", None, "https://as.test/token");
    let endpoint = refusing(vault(&dir).await, newer).await;
    let older = record("older", Some(1), &endpoint);
    account.vault.put_grant(&key(), &older).await.unwrap();
    let seen = (older.access_token.as_ref(), RefreshCause::Age);
    refresh(&account, &key(), seen).await.unwrap();
    assert_eq!(stored(&account).await.as_deref(), Some("newer"));
    // Without another process the account has ended.
    account.vault.put_grant(&key(), &older).await.unwrap();
    assert!(has_ended(&refresh(&account, &key(), seen).await));
    assert_eq!(stored(&account).await, None);
}

/// The refresh token that is kept of the answer `body`.
async fn kept_of(body: &'static str) -> String {
    let dir = tempfile::tempdir().unwrap();
    let account = account_with(&dir, "[egress]\nallow = [\"127.0.0.1\"]").await;
    let older = record("older", Some(1), &granting(body).await);
    account.vault.put_grant(&key(), &older).await.unwrap();
    let seen = (older.access_token.as_ref(), RefreshCause::Age);
    refresh(&account, &key(), seen).await.unwrap();
    assert_eq!(stored(&account).await.as_deref(), Some("newer"));
    let grant = account.vault.read_grant(&key()).await.unwrap().unwrap();
    grant.record.refresh_token.unwrap().expose().to_owned()
}

// The server has ended the token before by then.
#[tokio::test]
async fn rotated_token_is_kept_whatever_the_answer_says_of_its_life() {
    for body in [
        r#"{"access_token":"newer","token_type":"Bearer","refresh_token":"next","expires_in":"3600"}"#,
        r#"{"access_token":"newer","token_type":"Bearer","refresh_token":"next","expires_in":3600.0}"#,
        r#"{"access_token":"newer","token_type":"Bearer","refresh_token":"next","expires_in":-1}"#,
        r#"{"access_token":"newer","token_type":"Bearer","refresh_token":"next","scope":["a"]}"#,
    ] {
        assert_eq!(kept_of(body).await, "next", "{body}");
    }
}

#[tokio::test]
async fn empty_refresh_token_replaces_none() {
    let body = r#"{"access_token":"newer","token_type":"Bearer","refresh_token":""}"#;
    assert_eq!(kept_of(body).await, "refresh-older");
}

/// How a refresh ends whose answer is `status` and `body`.
async fn refreshed_by(
    status: &str,
    body: &'static str,
) -> (Result<(), RefreshFailure>, Option<String>) {
    let dir = tempfile::tempdir().unwrap();
    let account = account_with(&dir, "[egress]\nallow = [\"127.0.0.1\"]").await;
    let endpoint = answering(status, body, || async {}).await;
    let older = record("older", Some(1), &endpoint);
    account.vault.put_grant(&key(), &older).await.unwrap();
    let seen = (older.access_token.as_ref(), RefreshCause::Age);
    let outcome = refresh(&account, &key(), seen).await;
    (outcome, stored(&account).await)
}

#[tokio::test]
async fn server_that_wants_the_person_has_the_user_asked_and_ends_nothing() {
    for body in [
        r#"{"error":"invalid_request","error_description":"refresh_token is invalid"}"#,
        r#"{"error":"unauthorized_client","error_description":"refresh_token is invalid"}"#,
        r#"{"error":"invalid_token"}"#,
        r#"{"error":"access_denied"}"#,
        r#"{"error":"interaction_required"}"#,
        r#"{"error":"consent_required"}"#,
        r#"{"error":"login_required"}"#,
    ] {
        let (outcome, kept) = refreshed_by("400 Bad Request", body).await;
        let asks = |failure: &TokenFailure| failure.asks_user();
        assert!(
            matches!(&outcome, Err(RefreshFailure::Failed(failure)) if asks(failure)),
            "{body}: {outcome:?}"
        );
        assert_eq!(kept.as_deref(), Some("older"));
    }
}

#[tokio::test]
async fn log_has_why_a_refresh_token_is_refused() {
    let body = r#"{"error":"invalid_request","error_description":"refresh_token is invalid"}"#;
    let (outcome, _) = refreshed_by("400 Bad Request", body).await;
    let Err(RefreshFailure::Failed(failure)) = &outcome else {
        panic!("{outcome:?}");
    };
    let why = crate::cause::chain(failure);
    assert!(
        why.contains("invalid_request (refresh_token is invalid)"),
        "{why}"
    );
}

// GitHub refuses so.
#[tokio::test]
async fn refusal_with_status_200_ends_the_account() {
    let body = r#"{"error":"bad_refresh_token","error_description":"incorrect or expired"}"#;
    let (outcome, kept) = refreshed_by("200 OK", body).await;
    assert!(has_ended(&outcome), "{outcome:?}");
    assert_eq!(kept, None);
}

// Ory Hydra refuses a refresh token so that was used before, and ends the grant.
#[tokio::test]
async fn inactive_refresh_token_ends_the_account() {
    let body = r#"{"error":"token_inactive","error_description":"Token is inactive"}"#;
    let (outcome, kept) = refreshed_by("401 Unauthorized", body).await;
    assert!(has_ended(&outcome), "{outcome:?}");
    assert_eq!(kept, None);
}

// Some token endpoints are built on frameworks that answer each POST with 201.
#[tokio::test]
async fn token_is_taken_with_any_status_of_success_and_any_type() {
    for status in ["201 Created", "200 OK\r\nContent-Type: text/plain"] {
        let body = r#"{"access_token":"newer","token_type":"Bearer","refresh_token":"next"}"#;
        let (outcome, kept) = refreshed_by(status, body).await;
        assert!(outcome.is_ok(), "{status}: {outcome:?}");
        assert_eq!(kept.as_deref(), Some("newer"));
    }
}

// It may hold the only copy of the next refresh token.
#[tokio::test]
async fn token_beside_an_error_is_kept() {
    let body =
        r#"{"access_token":"newer","token_type":"Bearer","refresh_token":"next","error":""}"#;
    assert_eq!(kept_of(body).await, "next");
}

// Spec: OpenID Connect Core 1.0 §12.2
#[tokio::test]
async fn login_without_another_id_token_lasts_as_long_as_its_own() {
    const BODY: &str = r#"{"access_token":"opaque","token_type":"Bearer","refresh_token":"next"}"#;
    for (lasts, cause, is_kept) in [
        (60, RefreshCause::Age, true),
        (0, RefreshCause::Age, false),
        (60, RefreshCause::Refusal, false),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let mut account = account_with(&dir, "[egress]\nallow = [\"127.0.0.1\"]").await;
        Arc::get_mut(&mut account).unwrap().kind = GrantKind::Login;
        let ends = SystemClock.now() + Duration::from_secs(lasts);
        let ends = u64::try_from(ends.as_millis()).ok();
        let login = GrantRecord {
            kind: GrantKind::Login,
            placement: TokenPlacement::None,
            ..record("older", ends, &granting(BODY).await)
        };
        account.vault.put_grant(&key(), &login).await.unwrap();
        let outcome = refresh(&account, &key(), (login.access_token.as_ref(), cause)).await;
        assert_eq!(outcome.is_ok(), is_kept, "{outcome:?}");
        assert_eq!(has_ended(&outcome), !is_kept, "{outcome:?}");
        let kept = account.vault.read_grant(&key()).await.unwrap().unwrap();
        let kept = kept.record;
        assert_eq!(kept.access_ends, ends.filter(|_| is_kept));
        for (token, expected) in [(kept.access_token, "older"), (kept.refresh_token, "next")] {
            let token = token.map(|token| token.expose().to_owned());
            assert_eq!(token.as_deref(), is_kept.then_some(expected));
        }
    }
}

#[tokio::test]
async fn assertion_of_a_refresh_is_signed_as_the_server_takes_it() {
    const BODY: &str = r#"{"access_token":"newer","token_type":"Bearer","refresh_token":"next"}"#;
    let pair = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
    let keys = format!(
        "client_id = \"g\"\nprivate_key = \"\"\"\n{}\"\"\"\n[egress]\nallow = [\"127.0.0.1\"]",
        pair.serialize_pem()
    );
    for (listed, is_sent) in [("ES256", true), ("PS256", false)] {
        let dir = tempfile::tempdir().unwrap();
        let account = account_with(&dir, &keys).await;
        let endpoint = granting(BODY).await;
        let older = GrantRecord {
            client_id: Some("g".to_owned()),
            auth_method: Some("private_key_jwt".to_owned()),
            ..record("older", Some(1), &endpoint)
        };
        let endpoint = Url::parse(&endpoint).unwrap();
        let mut server = ServerMetadata::remembered(&older.issuer, endpoint, None);
        server.assertion_algorithms = Some(vec![listed.to_owned()]);
        account.believe(DiscoveredServer {
            server,
            resource: "https://up.test/mcp".to_owned(),
            scopes: Vec::new(),
        });
        account.vault.put_grant(&key(), &older).await.unwrap();
        let seen = (older.access_token.as_ref(), RefreshCause::Age);
        let outcome = refresh(&account, &key(), seen).await;
        assert_eq!(outcome.is_ok(), is_sent, "{listed}: {outcome:?}");
    }
}
