//! An authorization server's public documents, as a test wants them to be.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::harness::issuer::Issuer;

/// Path of OAuth metadata. Spec: RFC 8414 §3
pub(super) const OAUTH: &str = "/.well-known/oauth-authorization-server";
/// Path of `OpenID` metadata.
pub(super) const OPENID: &str = "/.well-known/openid-configuration";
/// Path of the keys of these authorities.
pub(super) const KEYS: &str = "/keys";

/// Answers GETs on loopback from a table.
pub(super) struct Authority {
    pub(super) port: u16,
    path: &'static str,
    documents: Mutex<HashMap<String, (String, String)>>,
    asked: Mutex<Vec<String>>,
    serving: Mutex<Option<JoinHandle<()>>>,
}

impl Authority {
    /// Listens, and has no document yet.
    pub(super) async fn empty(path: &'static str) -> Arc<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let authority = Arc::new(Self {
            port: listener.local_addr().unwrap().port(),
            path,
            documents: Mutex::default(),
            asked: Mutex::default(),
            serving: Mutex::default(),
        });
        authority.serve(listener);
        authority
    }

    /// Has OAuth metadata and the keys of `issuer`, who takes the authority's name.
    pub(super) async fn of(issuer: &mut Issuer) -> Arc<Self> {
        let authority = Self::empty("").await;
        issuer.name = authority.issuer();
        authority.put(OAUTH, &authority.metadata());
        authority.put(KEYS, &keys(&[issuer]));
        authority
    }

    /// The issuer identifier.
    pub(super) fn issuer(&self) -> String {
        format!("http://127.0.0.1:{}{}", self.port, self.path)
    }

    /// Good metadata.
    pub(super) fn metadata(&self) -> Value {
        json!({
            "issuer": self.issuer(),
            "jwks_uri": format!("http://127.0.0.1:{}{KEYS}", self.port),
        })
    }

    /// Answers `path` with 200 and this document from now on.
    pub(super) fn put(&self, path: &str, document: &Value) {
        self.put_raw(
            path,
            "200 OK\r\ncontent-type: application/json",
            &document.to_string(),
        );
    }

    /// Answers `path` with this status line and headers, and this body.
    pub(super) fn put_raw(&self, path: &str, head: &str, body: &str) {
        let answer = (head.to_owned(), body.to_owned());
        self.documents
            .lock()
            .unwrap()
            .insert(path.to_owned(), answer);
    }

    /// The paths asked for so far.
    pub(super) fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }

    /// How often `path` was asked for.
    pub(super) fn count(&self, path: &str) -> usize {
        self.asked().iter().filter(|asked| *asked == path).count()
    }

    /// Stops listening.
    pub(super) async fn fall(&self) {
        let serving = self.serving.lock().unwrap().take().unwrap();
        serving.abort();
        assert!(serving.await.unwrap_err().is_cancelled());
    }

    /// Listens again, on the same port.
    pub(super) async fn rise(self: &Arc<Self>) {
        let listener = TcpListener::bind(("127.0.0.1", self.port)).await.unwrap();
        self.serve(listener);
    }

    fn serve(self: &Arc<Self>, listener: TcpListener) {
        let authority = Arc::clone(self);
        let serving = tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                authority.answer(socket).await;
            }
        });
        *self.serving.lock().unwrap() = Some(serving);
    }

    async fn answer(&self, socket: TcpStream) {
        let mut socket = BufReader::new(socket);
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            if socket.read_line(&mut line).await.unwrap_or(0) == 0 || line == "\r\n" {
                break;
            }
            lines.push(line);
        }
        let Some(path) = lines.first().and_then(|line| line.split(' ').nth(1)) else {
            return;
        };
        self.asked.lock().unwrap().push(path.to_owned());
        let found = self.documents.lock().unwrap().get(path).cloned();
        let (head, body) = found.unwrap_or_else(|| ("404 Not Found".into(), String::new()));
        let text = format!(
            "HTTP/1.1 {head}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        // A client that hangs up early is part of the tests.
        socket.write_all(text.as_bytes()).await.unwrap_or_default();
    }
}

impl Drop for Authority {
    fn drop(&mut self) {
        if let Some(serving) = self.serving.lock().unwrap().take() {
            serving.abort();
        }
    }
}

/// The key set of these issuers together.
pub(super) fn keys(issuers: &[&Issuer]) -> Value {
    let all: Vec<Value> = issuers.iter().map(|issuer| issuer.public_key()).collect();
    json!({ "keys": all })
}
