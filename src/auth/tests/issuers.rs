//! Broken issuers: each fault has a line of its own, with the address that was asked and what to do; `/status` says the
//! same, and callers hear none of it.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::PrivateKeyDer;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::*;
use crate::telemetry::captured::LogCapture;

/// What a server answers to a path; nothing where it never answers.
type Answer = Box<dyn Fn(&str) -> Option<(u16, String)> + Send>;

/// A server that answers each request by `answer`, without TLS.
#[expect(clippy::disallowed_methods, reason = "a server of the test")]
async fn server(answer: impl FnOnce(SocketAddr) -> Answer) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let answer = answer(address);
    tokio::spawn(async move {
        let mut silent = Vec::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut head = [0; 4096];
            let read = stream.read(&mut head).await.unwrap_or_default();
            let head = String::from_utf8_lossy(&head[..read]).into_owned();
            let path = head.split(' ').nth(1).unwrap_or_default();
            match answer(path) {
                None => silent.push(stream),
                Some((status, body)) => {
                    let length = body.len();
                    let answer = format!(
                        "HTTP/1.1 {status} X\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
                    );
                    drop(stream.write_all(answer.as_bytes()).await);
                }
            }
        }
    });
    address
}

/// A server with a certificate that it has signed itself.
#[expect(clippy::disallowed_methods, reason = "a server of the test")]
async fn self_signed() -> SocketAddr {
    let key = KeyPair::generate().expect("a key");
    let params = CertificateParams::new(["localhost".to_owned()]).expect("a name");
    let certificate = params.self_signed(&key).expect("a certificate");
    let key = PrivateKeyDer::try_from(key.serialize_der()).expect("a key");
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let tls = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key)
        .expect("a configuration");
    let acceptor = TlsAcceptor::from(Arc::new(tls));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            drop(acceptor.accept(stream).await);
        }
    });
    address
}

/// Metadata of the issuer `http://address`, whose keys are `keys`.
fn healthy(address: SocketAddr, keys: &'static str) -> Answer {
    Box::new(move |path| {
        let metadata =
            format!(r#"{{"issuer":"http://{address}","jwks_uri":"http://{address}/keys"}}"#);
        let body = if path == "/keys" {
            keys.to_owned()
        } else {
            metadata
        };
        Some((200, body))
    })
}

fn always(status: u16, body: &'static str) -> Answer {
    Box::new(move |_| Some((status, body.to_owned())))
}

/// Broken issuers, each with words that its line has to have.
async fn broken() -> Vec<(String, Vec<String>)> {
    let closed = {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        listener.local_addr().expect("an address")
    };
    let plain = server(|_| always(404, "")).await;
    let signed = self_signed().await.port();
    let failing = server(|_| always(500, "")).await;
    let page = server(|_| always(200, "<!doctype html><title>Sign in</title>")).await;
    let other = server(|_| always(200, r#"{"issuer":"https://other.test"}"#)).await;
    let moved = server(|_| always(302, "")).await;
    let empty = server(|address| healthy(address, r#"{"keys":[]}"#)).await;
    let keyless = server(|address| healthy(address, "<html>")).await;
    let silent = server(|_| Box::new(|_| None)).await;
    let case = |issuer: String, words: &[&str]| {
        let words = words.iter().map(|word| (*word).to_owned()).collect();
        (issuer, words)
    };
    vec![
        case(
            format!("http://{closed}"),
            &["Connection refused", "start the issuer"],
        ),
        case(
            "https://no-such-host.invalid".to_owned(),
            &["dns error", "DNS of this machine"],
        ),
        case(
            format!("http://{plain}/realms/mispelt"),
            &["HTTP 404", "realm or tenant"],
        ),
        case(
            format!("https://{plain}"),
            &["corrupt message", "speaks no TLS"],
        ),
        case(
            format!("https://localhost:{signed}"),
            &["UnknownIssuer", "SSL_CERT_FILE"],
        ),
        case(
            format!("http://{failing}"),
            &["HTTP 500", "the issuer's own log"],
        ),
        case(
            format!("http://{page}"),
            &["expected value", "no authorization server"],
        ),
        case(
            format!("http://{other}"),
            &["\"https://other.test\"", "exactly as the metadata"],
        ),
        case(
            format!("http://{moved}"),
            &["HTTP 302", "redirections are not followed"],
        ),
        case(
            format!("http://{empty}"),
            &["/keys cannot be used: the set is empty", "publish a key"],
        ),
        case(
            format!("http://{keyless}"),
            &[
                "/keys cannot be used: the document is not a JWK set",
                "RFC 7517",
            ],
        ),
        case(format!("http://{silent}"), &["timed out", "firewall"]),
    ]
}

/// All that callers with a token of a broken issuer hear: status, challenge and body have nothing else.
const HEARD: (u16, bool, &str) = (503, false, "keys_unavailable");

/// The same of an issuer that publishes a set without a key: that is an answer, and verifies no token.
const HEARD_WITHOUT_KEYS: (u16, bool, &str) = (401, true, "token_unknown_key");

/// Status, challenge and reason for a caller with this token.
async fn told(authenticator: &Authenticator, token: &str) -> (u16, bool, &'static str) {
    let endpoint = endpoint();
    let headers = bearer(token);
    let judged = authenticator.authenticate(&headers, None, FROM, &endpoint);
    let denied = judged.await.expect_err("no keys");
    (
        denied.status.as_u16(),
        denied.challenge.is_some(),
        denied.reason,
    )
}

#[tokio::test]
async fn each_broken_issuer_has_its_own_line() {
    let broken = broken().await;
    let ids: Vec<&str> = broken.iter().map(|(issuer, _)| issuer.as_str()).collect();
    let caught = LogCapture::begin();
    let (authenticator, _) = authenticator(&auth(&ids));
    for issuer in &authenticator.issuers {
        // The load began with the authenticator.
        issuer.refresh(&TaskSpawner::new()).await;
    }
    let lines = caught.of_level("WARN");
    assert_eq!(lines.len(), broken.len(), "{lines:#?}");
    let mut different = BTreeSet::new();
    let shown = authenticator.status();
    let signer = Signer::new("k1");
    for (at, ((issuer, words), (_, cause))) in
        broken.iter().zip(authenticator.last_causes()).enumerate()
    {
        let line = lines.iter().find(|line| line["issuer"] == **issuer);
        let line = line.unwrap_or_else(|| panic!("no line of {issuer}: {lines:#?}"));
        let text = |field: &str| line[field].as_str().unwrap_or_default().to_owned();
        let (error, remedy) = (text("error"), text("remedy"));
        for word in words {
            assert!(
                error.contains(word) || remedy.contains(word),
                "no {word} in {line}"
            );
        }
        assert!(
            error.contains(&format!("{issuer}/")),
            "no address in {line}"
        );
        let cause = cause.expect("a cause");
        assert_eq!(cause.text, error);
        assert_eq!(cause.remedy.as_deref(), Some(remedy.as_str()));
        let shown = shown[at].cause.as_ref().expect("a cause");
        assert_eq!(
            (&shown.text, shown.remedy.as_ref()),
            (&error, Some(&remedy))
        );
        let heard = if error.contains("the set is empty") {
            HEARD_WITHOUT_KEYS
        } else {
            HEARD
        };
        assert_eq!(told(&authenticator, &signer.mint(issuer)).await, heard);
        different.insert(remedy);
    }
    assert_eq!(different.len(), broken.len(), "{different:#?}");
}
