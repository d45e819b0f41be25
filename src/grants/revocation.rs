//! Token revocation at authorization servers. Spec: RFC 7009 §2
//!
//! The account is already removed here: revocation runs in the background, and is retried with growing pauses for a
//! week while the server does not answer.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream;
use http::{Request, StatusCode};
use url::Url;

use super::client_form;
use super::client_key::AssertionAudience;
use super::documents::is_passing;
use super::extension_grant::RequestingClient;
use super::user_account::UserAccount;
use crate::audit::{AccountEvent, AccountRecord, AuditOutcome};
use crate::call::OwnerKey;
use crate::cause::chain;
use crate::vault::{DueRevocation, RevocationRecord, Vault};

/// Pause between two polls of the queue.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Tokens revoked per poll, all at the same time: a server that does not answer delays no other.
const BATCH: i64 = 16;

/// The accounts of each upstream that has user accounts, by upstream name.
pub type UserAccounts = BTreeMap<Arc<str>, Arc<UserAccount>>;

/// Outcome of one revocation request.
enum RevocationOutcome {
    /// The server knows.
    Done,
    /// The server refuses for good: asking again changes nothing.
    Refused,
    /// There is nothing to tell, or no way to.
    Never,
    /// To be retried, and why.
    Later(String),
}

/// Revokes the tokens in the queue of `vault`, until the future is dropped.
///
/// # Cancel safety
/// A revocation under way is retried later.
pub async fn revoke_queued(vault: Vault, accounts: UserAccounts) {
    let (vault, accounts) = (&vault, &accounts);
    loop {
        // A failing database is already logged by `Vault::follow_changes`.
        let due = vault.revocations().due(BATCH).await.unwrap_or_default();
        stream::iter(due)
            .for_each_concurrent(None, |due| revoke(vault, accounts, due))
            .await;
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Sends one revocation request, which has a time limit of its own.
async fn revoke(vault: &Vault, accounts: &UserAccounts, due: DueRevocation) {
    let Some(account) = accounts.get(&*due.record.upstream) else {
        return;
    };
    let told = tell(account, &due.record).await;
    audit(account, &due.record, &told);
    match told {
        RevocationOutcome::Done | RevocationOutcome::Refused | RevocationOutcome::Never => {
            let finished = vault.revocations().finish(&due).await;
            tracing::debug!(
                upstream = %due.record.upstream, hint = %due.record.hint, kept = finished.is_err(),
                "asked an authorization server to revoke a token"
            );
        }
        RevocationOutcome::Later(cause) => tracing::info!(
            upstream = %due.record.upstream, issuer = %due.record.issuer, cause, tries = due.tries + 1,
            "cannot revoke a token at its authorization server: retrying later"
        ),
    }
}

/// Records what a server was told of a principal's token.
fn audit(account: &UserAccount, revoked: &RevocationRecord, told: &RevocationOutcome) {
    let outcome = match told {
        RevocationOutcome::Done => AuditOutcome::Ok,
        RevocationOutcome::Refused => AuditOutcome::Failed,
        RevocationOutcome::Never | RevocationOutcome::Later(_) => return,
    };
    let Some(owner) = revoked.owner.map(OwnerKey::from_bytes) else {
        return;
    };
    let record = AccountRecord::new(AccountEvent::Revoked, owner, &revoked.upstream);
    let record = record.server(&revoked.issuer);
    account
        .audit
        .account(record.reason(outcome, revoked.hint.clone()));
}

async fn tell(account: &UserAccount, record: &RevocationRecord) -> RevocationOutcome {
    let (client_id, method) = (record.client_id.as_deref(), record.auth_method.as_deref());
    let Some(client_id) = client_id else {
        return RevocationOutcome::Never;
    };
    let proof = match account.proof_of(&record.issuer, client_id, method).await {
        Ok(Some(proof)) => proof,
        // The gateway is no longer this client: nothing can authenticate the revocation.
        Ok(None) => return RevocationOutcome::Never,
        Err(error) => return RevocationOutcome::Later(chain(&error)),
    };
    let Ok(endpoint) = Url::parse(&record.endpoint) else {
        return RevocationOutcome::Never;
    };
    let server = account.remembered(&record.issuer, endpoint, method).await;
    let trusted = account.trusted();
    let client = RequestingClient {
        server: &server,
        client_id,
        proof: &proof,
        trusted: trusted.as_ref(),
    };
    let audience = proof.audience();
    let Some(request) = request_of(record, &client, audience) else {
        return RevocationOutcome::Never;
    };
    let mut answer = account.clients.post(request, client.trusted).await;
    let is_refused = matches!(&answer, Ok(answer) if answer.status == StatusCode::UNAUTHORIZED);
    if is_refused
        && let Some(other) = proof.other_audience(audience)
        && let Some(request) = request_of(record, &client, other)
    {
        answer = account.clients.post(request, client.trusted).await;
    }
    match answer {
        Ok(answer) if is_passing(answer.status.as_u16()) => {
            RevocationOutcome::Later(format!("HTTP {}", answer.status.as_u16()))
        }
        Ok(answer) if answer.status.is_success() => RevocationOutcome::Done,
        Ok(_) => RevocationOutcome::Refused,
        Err(error) => RevocationOutcome::Later(chain(&error)),
    }
}

/// The revocation request of a client; `None` where there is no token, or the client cannot authenticate.
fn request_of(
    record: &RevocationRecord,
    client: &RequestingClient<'_>,
    audience: AssertionAudience,
) -> Option<Request<Vec<u8>>> {
    let token = record.token.as_ref()?.expose();
    let fields = [("token", token), ("token_type_hint", &*record.hint)];
    let is_basic = record.auth_method.as_deref() == Some("client_secret_basic");
    client_form::request(client, (is_basic, audience), &fields).ok()
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;
    use tokio::time::timeout;

    use super::super::authorization::account_with;
    use super::super::client_key::ClientProof;
    use super::super::discovery::DiscoveredServer;
    use super::super::server_metadata::ServerMetadata;
    use super::*;
    use crate::call::Principal;
    use crate::config::ClientKey;
    use crate::secret::Secret;
    use crate::vault::samples::user_grant;
    use crate::vault::{GrantKey, GrantRecord};

    #[tokio::test]
    async fn hanging_server_delays_no_other_revocation() {
        let dir = tempfile::tempdir().unwrap();
        let account = account_with(&dir, "[egress]\nallow = [\"127.0.0.1\"]").await;
        let vault = account.vault.clone();
        let key = GrantKey::new(Principal::anonymous().owner(), "up");
        let hanging = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let other = TcpListener::bind("127.0.0.1:0").await.unwrap();
        for server in [&hanging, &other] {
            let endpoint = format!("http://{}/revoke", server.local_addr().unwrap());
            let grant = GrantRecord {
                revocation_endpoint: Some(endpoint),
                ..user_grant("token")
            };
            vault.put_grant(&key, &grant).await.unwrap();
            vault.remove_grant(&key).await.unwrap();
        }
        let accounts = UserAccounts::from([(Arc::from("up"), account)]);
        tokio::select! {
            () = revoke_queued(vault, accounts) => panic!("the queue is polled for ever"),
            // A revocation request fails after 10 s.
            asked = timeout(Duration::from_secs(5), other.accept()) => {
                asked.expect("a request").unwrap();
            }
        }
    }

    /// A refresh token of the client "g", which signs assertions.
    fn record(endpoint: &str) -> RevocationRecord {
        RevocationRecord {
            upstream: "up".to_owned(),
            owner: None,
            issuer: "https://as.test".to_owned(),
            endpoint: endpoint.to_owned(),
            client_id: Some("g".to_owned()),
            auth_method: Some("private_key_jwt".to_owned()),
            token: Some(Secret::new("t")),
            hint: "refresh_token".to_owned(),
        }
    }

    /// The server of `record`, as its metadata names the algorithms of assertions.
    fn server(record: &RevocationRecord, listed: &str) -> ServerMetadata {
        let endpoint = Url::parse(&record.endpoint).unwrap();
        let mut server = ServerMetadata::remembered(&record.issuer, endpoint, None);
        server.assertion_algorithms = Some(vec![listed.to_owned()]);
        server
    }

    #[tokio::test]
    async fn assertion_of_a_revocation_is_signed_as_the_metadata_says() {
        let pair = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
        let keys = format!(
            "client_id = \"g\"\nprivate_key = \"\"\"\n{}\"\"\"\n[egress]\nallow = [\"127.0.0.1\"]",
            pair.serialize_pem()
        );
        for (listed, is_asked) in [("ES256", true), ("PS256", false)] {
            let dir = tempfile::tempdir().unwrap();
            let account = account_with(&dir, &keys).await;
            // Nothing listens there: what is sent is to be sent again.
            let record = record("http://127.0.0.1:1/revoke");
            account.believe(DiscoveredServer {
                server: server(&record, listed),
                resource: "https://up.test/mcp".to_owned(),
                scopes: Vec::new(),
            });
            let told = tell(&account, &record).await;
            let is_later = matches!(told, RevocationOutcome::Later(_));
            let is_never = matches!(told, RevocationOutcome::Never);
            assert_eq!((is_later, is_never), (is_asked, !is_asked), "{listed}");
        }
    }

    #[test]
    fn assertion_is_signed_as_the_server_takes_it() {
        let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
        let key = ClientKey::PrivateKey(Secret::new(key.serialize_pem()));
        let proof = ClientProof::new(&key).unwrap();
        let record = record("https://as.test/revoke");
        for (listed, is_sent) in [("ES256", true), ("PS256", false)] {
            let client = RequestingClient {
                server: &server(&record, listed),
                client_id: "g",
                proof: &proof,
                trusted: None,
            };
            let request = request_of(&record, &client, proof.audience());
            assert_eq!(request.is_some(), is_sent, "{listed}");
        }
    }
}
