//! Identity assertions: the ID token of a login becomes an assertion, and that a token of the upstream. Below the
//! gateway's configuration: the login is not there yet. Spec: MCP, enterprise-managed authorization; RFC 7523.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use drawbridge::call::{OwnerKey, Principal};
use drawbridge::config::{
    AccountConfig, AccountKind, ClientKey, EgressConfig, HttpCarrier, TokenPlace, TransportKind,
};
use drawbridge::egress::EgressRules;
use drawbridge::grants::{
    Challenge, DocumentClients, IdTokens, IdentityProvider, Renewal, SharedClients, TokenFailure,
    TokenSource, UpstreamAccount,
};
use drawbridge::runtime::lifecycle::TaskSpawner;
use drawbridge::secret::Secret;
use futures_util::future::{BoxFuture, join_all};
use http::header::AUTHORIZATION;
use http::{HeaderMap, StatusCode};
use rstest::rstest;
use serde_json::{Value, json};

use super::personal::claims;
use super::world::{Answering, AuthServer, GuardedUpstream};
use crate::harness::peers;

/// The same ID token for all.
#[derive(Debug)]
struct OneToken(String);

impl OneToken {
    fn new(token: &str) -> Arc<Self> {
        Arc::new(Self(token.to_owned()))
    }
}

impl IdTokens for OneToken {
    fn id_token(&self, _owner: OwnerKey) -> BoxFuture<'_, Result<Secret, TokenFailure>> {
        Box::pin(async { Ok(Secret::new(self.0.clone())) })
    }
}

/// A first ID token, which the identity provider does not take, and another one.
#[derive(Debug)]
struct TwoTokens;

impl IdTokens for TwoTokens {
    fn id_token(&self, _owner: OwnerKey) -> BoxFuture<'_, Result<Secret, TokenFailure>> {
        Box::pin(async { Ok(Secret::new("first")) })
    }

    fn another<'a>(
        &'a self,
        _owner: OwnerKey,
        refused: &'a Secret,
    ) -> BoxFuture<'a, Result<Option<Secret>, TokenFailure>> {
        assert_eq!(refused.expose(), "first");
        Box::pin(async { Ok(Some(Secret::new("second"))) })
    }
}

fn alice() -> OwnerKey {
    person("alice")
}

fn person(name: &str) -> OwnerKey {
    Principal::new("https://issuer", name, "c", Vec::new(), None).owner()
}

/// The account at `upstream`, whose authorization server `issuer` knows the gateway as `client` with `secret`.
fn account(upstream: &GuardedUpstream, issuer: &str, client: (&str, &str)) -> Arc<UpstreamAccount> {
    let config = AccountConfig {
        kind: AccountKind::IdJag,
        issuer: Some(issuer.to_owned()),
        client_id: client.0.to_owned(),
        client_key: ClientKey::Secret(Secret::new(client.1)),
        scopes: Vec::new(),
        resource: None,
        audience: None,
        place: TokenPlace::Header {
            name: AUTHORIZATION,
            prefix: "Bearer ".to_owned(),
        },
    };
    let carrier = HttpCarrier {
        url: upstream.url().parse().unwrap(),
        transport: TransportKind::Streamable,
        headers: Vec::new(),
        ca_file: None,
        proxy: None,
        pool_idle: Duration::from_secs(4),
    };
    let shared = SharedClients::new(EgressRules::new(&EgressConfig::default())).unwrap();
    let clients = DocumentClients::new(shared, &carrier).unwrap();
    let parts = (clients, HeaderMap::new());
    UpstreamAccount::new("up".into(), carrier.url, config, parts, TaskSpawner::new()).unwrap()
}

/// An identity provider that gives assertions, and an upstream with its authorization server.
struct Servers {
    idp: AuthServer,
    server: AuthServer,
    upstream: GuardedUpstream,
}

impl Servers {
    async fn start() -> Self {
        let (idp, server) = (AuthServer::start().await, AuthServer::start().await);
        idp.answers(Answering::Made(Arc::new(|_, _| assertion())));
        let upstream = GuardedUpstream::start(&server, &[]).await;
        Self {
            idp,
            server,
            upstream,
        }
    }

    fn account(&self) -> Arc<UpstreamAccount> {
        let client = ("at-server", "secret-of-server");
        account(&self.upstream, &self.server.origin, client)
    }

    /// The identity provider, with the ID tokens of `tokens`.
    fn provider(&self, tokens: Arc<dyn IdTokens>) -> Arc<IdentityProvider> {
        provider(&self.idp.origin, ("at-idp", "secret-of-idp"), tokens)
    }

    /// The tokens of alice, whose ID tokens are those of `tokens`.
    fn source_of(&self, tokens: Arc<dyn IdTokens>) -> Arc<TokenSource> {
        TokenSource::of_person(self.account(), self.provider(tokens), alice())
    }

    /// The tokens of alice.
    fn source(&self) -> Arc<TokenSource> {
        self.source_of(OneToken::new("id-token"))
    }
}

/// What an identity provider answers.
fn assertion() -> Value {
    let kind = "urn:ietf:params:oauth:token-type:id-jag";
    json!({"access_token": "assertion", "token_type": "N_A", "issued_token_type": kind, "expires_in": 300})
}

fn provider(
    issuer: &str,
    client: (&str, &str),
    tokens: Arc<dyn IdTokens>,
) -> Arc<IdentityProvider> {
    let key = ClientKey::Secret(Secret::new(client.1));
    IdentityProvider::new(issuer, client.0, &key, tokens).unwrap()
}

const SERVICE: (&str, &str) = ("with-secret", "a service's secret: %&+");

// Two real servers: the identity provider, and the upstream's, which trusts it.
#[tokio::test]
async fn two_real_servers_turn_a_login_into_a_token_of_the_upstream() {
    if !peers::are_installed() {
        return;
    }
    let script = peers::script("as/server.mjs");
    let idp = peers::serve(&peers::node(), &[&script], &[]).await;
    let trusted = [("TRUSTED_ISSUER", idp.first_line.as_str())];
    let server = peers::serve(&peers::node(), &[&script], &trusted).await;
    let (idp, issuer) = (&idp.first_line, &server.first_line);
    let unused = AuthServer::start().await;
    let upstream = GuardedUpstream::start(&unused, &[]).await;
    upstream.publishes(json!({
        "resource": upstream.url(), "authorization_servers": [issuer], "scopes_supported": ["mcp:tools"],
    }));
    let url = format!("{idp}/test/id_token?sub=alice&client_id=with-secret");
    let id_token = reqwest::get(url).await.unwrap().text().await.unwrap();
    let account = account(&upstream, issuer, SERVICE);
    let source = TokenSource::of_person(
        account,
        provider(idp, SERVICE, OneToken::new(&id_token)),
        alice(),
    );
    let token = Arc::clone(&source).token().await.unwrap();
    let sent = token.headers()[AUTHORIZATION].to_str().unwrap();
    let said = claims(sent.strip_prefix("Bearer ").unwrap()).unwrap();
    assert_eq!(said["iss"], issuer.as_str());
    assert_eq!(said["sub"], "alice");
    assert_eq!(said["aud"], upstream.url());
    assert_eq!(said["scope"], "mcp:tools");
    let again = source.token().await.unwrap();
    assert!(Arc::ptr_eq(&token, &again), "it is held");
}

#[tokio::test]
async fn each_server_gets_its_own_part_alone() {
    let servers = Servers::start().await;
    servers.source().token().await.unwrap();
    let Servers {
        idp,
        server,
        upstream,
    } = servers;
    let (first, second) = (idp.forms(), server.forms());
    assert_eq!((first.len(), second.len()), (1, 1));
    let expected = [
        (
            "grant_type",
            "urn:ietf:params:oauth:grant-type:token-exchange",
        ),
        (
            "requested_token_type",
            "urn:ietf:params:oauth:token-type:id-jag",
        ),
        ("subject_token", "id-token"),
        (
            "subject_token_type",
            "urn:ietf:params:oauth:token-type:id_token",
        ),
        ("audience", &server.origin),
        ("resource", &upstream.url()),
        ("scope", "notes:read"),
    ];
    for (name, value) in expected {
        assert_eq!(first[0][name], value, "{name}");
    }
    assert_eq!(
        second[0]["grant_type"],
        "urn:ietf:params:oauth:grant-type:jwt-bearer"
    );
    assert_eq!(second[0]["assertion"], "assertion");
    assert!(!format!("{second:?}").contains("id-token"));
    assert_ne!(idp.authorization(), server.authorization());
}

// Columns: what the identity provider and the upstream's server answer, and what callers are told.
#[rstest]
#[case::login_over(
    400,
    r#"{"error":"invalid_grant"}"#,
    "the identity provider gives the gateway no assertion"
)]
#[case::no_assertion(
    200,
    r#"{"access_token":"hunter2","token_type":"Bearer"}"#,
    "the identity provider gives the gateway no assertion"
)]
#[case::down(503, "", "the identity provider does not answer")]
#[tokio::test]
async fn failure_at_the_identity_provider_names_it(
    #[case] status: u16,
    #[case] body: &str,
    #[case] told: &str,
) {
    let servers = Servers::start().await;
    let failing = Answering::Status(status, body.to_owned());
    servers.idp.answers(failing);
    let failure = servers.source().token().await.unwrap_err();
    assert!(failure.to_string().contains(told), "{failure}");
    assert!(
        failure.remedy().contains("identity provider"),
        "{}",
        failure.remedy()
    );
    assert!(servers.server.forms().is_empty(), "nothing is asked there");
    assert!(!format!("{failure:?}").contains("hunter2"));
}

#[tokio::test]
async fn refused_assertion_is_the_upstreams_servers_failure() {
    let servers = Servers::start().await;
    let refused = r#"{"error":"invalid_grant"}"#.to_owned();
    servers.server.answers(Answering::Status(400, refused));
    let failure = servers.source().token().await.unwrap_err();
    let told = "the authorization server gives the gateway no token";
    assert!(failure.to_string().contains(told), "{failure}");
    let remedy = failure.remedy();
    assert!(remedy.contains("trust the identity provider"), "{remedy}");
}

// A remedy that named the upstream's `issuer` would have its secret sent to the identity provider.
#[tokio::test]
async fn remedy_for_the_providers_metadata_names_the_login() {
    let servers = Servers::start().await;
    let idp = &servers.idp;
    for metadata in [
        json!({"issuer": "https://other.test", "token_endpoint": format!("{}/token", idp.origin)}),
        json!({"issuer": idp.origin}),
        json!([]),
    ] {
        idp.publishes(metadata);
        let failure = servers.source().token().await.unwrap_err();
        let (told, remedy) = (failure.to_string(), failure.remedy());
        assert!(told.contains("its identity provider"), "{told}");
        assert!(remedy.contains("identity provider"), "{remedy}");
        assert!(!remedy.contains("[upstreams."), "{remedy}");
    }
}

// RFC 8693 §2.2.2 wants `invalid_request` for a subject token that has ended; others say `invalid_grant`.
#[rstest]
#[case::of_the_rfc("invalid_request")]
#[case::of_others("invalid_grant")]
#[case::of_bearers("invalid_token")]
#[tokio::test]
async fn refused_id_token_is_replaced_by_another(#[case] code: &'static str) {
    let servers = Servers::start().await;
    let judge = move |form: &BTreeMap<String, String>| match &*form["subject_token"] {
        "first" => (400, json!({"error": code})),
        _ => (200, assertion()),
    };
    servers.idp.answers(Answering::Judged(Arc::new(judge)));
    let source = servers.source_of(Arc::new(TwoTokens));
    source.token().await.unwrap();
    let forms = servers.idp.forms();
    let sent: Vec<_> = forms.iter().map(|form| &*form["subject_token"]).collect();
    assert_eq!(sent, ["first", "second"]);
}

#[tokio::test]
async fn persons_share_one_look_at_the_identity_provider() {
    let servers = Servers::start().await;
    let idp = &servers.idp;
    let account = servers.account();
    let provider = servers.provider(OneToken::new("id-token"));
    let token = async |name: &str| {
        let (account, provider) = (Arc::clone(&account), Arc::clone(&provider));
        let source = TokenSource::of_person(account, provider, person(name));
        source.token().await
    };
    let names: Vec<String> = (0..20).map(|number| format!("person {number}")).collect();
    let tokens = join_all(names.iter().map(|name| token(name))).await;
    assert!(tokens.iter().all(Result::is_ok), "{tokens:?}");
    assert_eq!(idp.looks(), 1);
    // Nor does the refusal of one person make the next one's look again, however old the metadata is.
    tokio::time::pause();
    tokio::time::advance(Duration::from_mins(2)).await;
    tokio::time::resume();
    let refused = r#"{"error":"access_denied"}"#.to_owned();
    idp.answers(Answering::Status(400, refused));
    token("refused").await.unwrap_err();
    idp.answers(Answering::Made(Arc::new(|_, _| assertion())));
    token("another").await.unwrap();
    assert_eq!(idp.looks(), 1);
}

// Links send the token that they remember as long as the count is the same.
#[tokio::test]
async fn replaced_token_is_counted() {
    let servers = Servers::start().await;
    let account = servers.account();
    let provider = servers.provider(OneToken::new("id-token"));
    let source = TokenSource::of_person(Arc::clone(&account), provider, alice());
    let token = Arc::clone(&source).token().await.unwrap();
    let before = account.tokens();
    let challenge = Challenge::of(&HeaderMap::new());
    let answered = source.answered(token, StatusCode::UNAUTHORIZED, challenge);
    assert_eq!(answered.await.unwrap(), Renewal::Renewed);
    assert_eq!(account.tokens(), before + 1);
}

/// A token that is there once, and cannot be had again.
#[derive(Debug)]
struct CountedToken {
    is_at_hand: bool,
    asked: AtomicUsize,
}

impl IdTokens for CountedToken {
    fn id_token(&self, _owner: OwnerKey) -> BoxFuture<'_, Result<Secret, TokenFailure>> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        Box::pin(async { Ok(Secret::new("id-token")) })
    }

    fn is_at_hand(&self, _owner: OwnerKey) -> bool {
        self.is_at_hand
    }
}

// Columns: whether the login has an ID token, and how often one is taken.
#[rstest]
#[case::kept(true, 2)]
#[case::ended(false, 1)]
#[tokio::test]
async fn refresh_ahead_needs_a_login_that_has_not_ended(
    #[case] is_at_hand: bool,
    #[case] times: usize,
) {
    let servers = Servers::start().await;
    servers.server.answers(Answering::Tokens(Some(1000)));
    let tokens = Arc::new(CountedToken {
        is_at_hand,
        asked: AtomicUsize::new(0),
    });
    let source = servers.source_of(tokens.clone());
    let token = Arc::clone(&source).token().await.unwrap();
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(950)).await;
    tokio::time::resume();
    assert!(Arc::ptr_eq(&source.held().unwrap(), &token));
    // The refresh would be another task of this thread, which asks for the ID token first.
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert_eq!(tokens.asked.load(Ordering::Relaxed), times);
}
