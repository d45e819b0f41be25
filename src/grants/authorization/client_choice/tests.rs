use http::HeaderMap;
use rstest::rstest;

use super::*;
use crate::audit::AuditSink;
use crate::call::Principal;
use crate::clock::SystemClock;
use crate::config::{CarrierConfig, UpstreamAuth};
use crate::egress::EgressRules;
use crate::grants::{DocumentClients, SharedClients};
use crate::runtime::lifecycle::TaskSpawner;
use crate::vault::GrantKind;
use crate::vault::samples::vault;

fn key() -> GrantKey {
    GrantKey::new(Principal::anonymous().owner(), "up")
}

pub(in super::super) async fn account(
    dir: &tempfile::TempDir,
    registration: &str,
) -> Arc<UserAccount> {
    account_with(dir, &format!("registration = {registration:?}")).await
}

/// Keeps registrations of `choice` waiting until the result is dropped.
pub(in super::super) async fn registering(choice: &ClientChoice) -> impl Sized {
    choice.registering.lock().await
}

/// The accounts of an upstream with these further keys in its table, and after it.
pub(in crate::grants) async fn account_with(
    dir: &tempfile::TempDir,
    keys: &str,
) -> Arc<UserAccount> {
    account_at(dir, "https://up.test/mcp", keys).await
}

/// The same for an upstream at `url`.
pub(in crate::grants) async fn account_at(
    dir: &tempfile::TempDir,
    url: &str,
    keys: &str,
) -> Arc<UserAccount> {
    let text = format!(
        "[auth]\nmode = \"none\"\n[upstreams.up]\nurl = \"{url}\"\n[upstreams.up.auth]\n\
         kind = \"user\"\n{keys}\n"
    );
    let config = crate::config::parse(&text, "test.toml", &|_| None).unwrap();
    let upstream = &config.upstreams[0];
    let (CarrierConfig::Http(carrier), Some(UpstreamAuth::User(auth))) =
        (&upstream.carrier, &upstream.auth)
    else {
        panic!("reached by HTTP, with accounts of users");
    };
    let vault = vault(dir).await;
    let shared = SharedClients::new(EgressRules::new(&config.egress)).unwrap();
    let clients = DocumentClients::new(shared, carrier).unwrap();
    UserAccount::new(
        GrantKind::User,
        "up".into(),
        carrier.url.clone(),
        auth.clone(),
        (clients, HeaderMap::new()),
        (
            vault,
            AuditSink::idle(Arc::new(SystemClock)),
            TaskSpawner::new(),
        ),
    )
    .unwrap()
}

/// A server that reads documents of clients, and registers none.
pub(in super::super) fn server(methods: &[&str]) -> ServerMetadata {
    let endpoint = Url::parse("https://as.test/token").unwrap();
    let mut server = ServerMetadata::remembered("https://as.test", endpoint, None);
    server.client_auth = Some(methods.iter().map(|one| (*one).to_owned()).collect());
    server.consent.reads_client_documents = true;
    server.consent.names_issuer = true;
    server
}

// SPEC B-07, B-08
#[rstest]
#[case::public("https://mcp.example.com", "auto", &["none"], true)]
#[case::dynamic_alone("https://mcp.example.com", "dcr", &["none"], false)]
#[case::no_public_clients("https://mcp.example.com", "auto", &["client_secret_basic"], false)]
#[case::loopback("http://127.0.0.1:8000", "auto", &["none"], false)]
#[case::private("https://10.1.2.3", "auto", &["none"], false)]
#[tokio::test]
async fn document_is_used_where_servers_can_fetch_it(
    #[case] public_url: &str,
    #[case] registration: &str,
    #[case] methods: &[&str],
    #[case] is_used: bool,
) {
    let dir = tempfile::tempdir().unwrap();
    let account = account(&dir, registration).await;
    let gateway = GatewayClient::new(&Url::parse(public_url).unwrap());
    let choice = ClientChoice::default();
    let chosen = choice
        .choose(&account, &gateway, (&server(methods), &key()), &[])
        .await;
    match chosen {
        Ok(client) => {
            assert!(is_used);
            assert_eq!(client.id, format!("{public_url}/connect/client.json"));
            assert_eq!(client.auth_method, "none");
        }
        Err(error) => assert!(
            !is_used && matches!(error, AuthorizationError::NoClient { .. }),
            "{error:?}"
        ),
    }
}

// RFC 9700 §4.4: the document is a client of every server
#[tokio::test]
async fn document_is_kept_from_servers_without_a_name_in_their_answers() {
    let dir = tempfile::tempdir().unwrap();
    let account = account(&dir, "auto").await;
    let gateway = GatewayClient::new(&Url::parse("https://mcp.example.com").unwrap());
    let mut server = server(&["none"]);
    server.consent.names_issuer = false;
    let choice = ClientChoice::default();
    let chosen = choice
        .choose(&account, &gateway, (&server, &key()), &[])
        .await;
    assert!(
        matches!(chosen, Err(AuthorizationError::NoClient { .. })),
        "{chosen:?}"
    );
}

#[tokio::test]
async fn failed_registration_is_the_answer_for_five_seconds() {
    let dir = tempfile::tempdir().unwrap();
    let account = account(&dir, "dcr").await;
    let gateway = GatewayClient::new(&Url::parse("https://mcp.example.com").unwrap());
    let mut server = server(&["none"]);
    // The egress rules forbid this address: no request is sent.
    server.consent.registration_endpoint = Url::parse("https://10.1.2.3/register").ok();
    let choice = ClientChoice::default();
    let source_after = async |ended: Instant| {
        *choice.registering.lock().await = Some(FailedRegistration {
            issuer: server.issuer.clone(),
            source: Arc::new(RegistrationError::Unreadable),
            ended,
        });
        let chosen = choice
            .choose(&account, &gateway, (&server, &key()), &[])
            .await;
        match chosen {
            Err(AuthorizationError::Registration { source, .. }) => source,
            other => panic!("{other:?}"),
        }
    };
    let now = Instant::now();
    let source = source_after(now).await;
    assert!(matches!(*source, RegistrationError::Unreadable));
    let source = source_after(now.checked_sub(AFTER_FAILURE).unwrap()).await;
    assert!(matches!(*source, RegistrationError::Request(_)));
}

// The server may have kept the document from before, or have fetched it at another replica.
#[tokio::test]
async fn document_is_used_again_where_the_server_registers_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let account = account(&dir, "auto").await;
    let gateway = GatewayClient::new(&Url::parse("https://mcp.example.com").unwrap());
    let mut server = server(&["none"]);
    // The egress rules forbid this address: no request is sent.
    server.consent.registration_endpoint = Url::parse("https://10.1.2.3/register").ok();
    let choice = ClientChoice::default();
    for _ in 0..3 {
        let chosen = choice
            .choose(&account, &gateway, (&server, &key()), &[])
            .await;
        let client = chosen.unwrap();
        assert_eq!(Some(&*client.id), gateway.document_id());
        assert_eq!(client.note, None);
    }
}

#[test]
fn attempt_without_fetch_and_callback_is_not_repeated() {
    let gateway = GatewayClient::new(&Url::parse("https://mcp.example.com").unwrap());
    let choice = ClientChoice::default();
    assert!(!choice.was_unread(&gateway, &key()));
    choice.used_document(&gateway, &key());
    assert!(choice.was_unread(&gateway, &key()));
    gateway.document().unwrap();
    assert!(!choice.was_unread(&gateway, &key()));
    let back = |client: &str| {
        choice.came_back(&gateway, (&key(), client));
        choice.used_document(&gateway, &key());
    };
    back("registered");
    assert!(choice.was_unread(&gateway, &key()));
    back("https://mcp.example.com/connect/client.json");
    assert!(!choice.was_unread(&gateway, &key()));
}

#[test]
fn fetches_of_others_hide_one_unread_attempt_alone() {
    let gateway = GatewayClient::new(&Url::parse("https://mcp.example.com").unwrap());
    let choice = ClientChoice::default();
    for is_unread in [false, true] {
        choice.used_document(&gateway, &key());
        gateway.document().unwrap();
        assert_eq!(choice.was_unread(&gateway, &key()), is_unread);
    }
    choice.came_back(&gateway, (&key(), "registered"));
    choice.used_document(&gateway, &key());
    gateway.document().unwrap();
    assert!(!choice.was_unread(&gateway, &key()));
}
