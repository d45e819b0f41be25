//! An authorization server with an introspection endpoint.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use url::form_urlencoded::byte_serialize;

use super::super::super::samples::NOW;
use super::super::super::*;

/// An authorization server that answers every question alike.
pub(super) struct Server {
    pub(super) origin: String,
    /// Ways to authenticate that its metadata lists; none where it is null.
    methods: Mutex<Value>,
    /// Status and body.
    answer: Mutex<(u16, String)>,
    /// Questions with this text are answered with this status; with 0 their connection is cut off.
    refused: Mutex<Option<(String, u16)>>,
    questions: Mutex<Vec<String>>,
    pub(super) open: AtomicUsize,
    /// Answers are given as long as there are permits.
    pub(super) gate: Semaphore,
}

impl Server {
    pub(super) async fn start() -> Arc<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let server = Arc::new(Self {
            origin: format!("http://127.0.0.1:{port}"),
            methods: Mutex::default(),
            answer: Mutex::default(),
            refused: Mutex::default(),
            questions: Mutex::default(),
            open: AtomicUsize::new(0),
            gate: Semaphore::new(Semaphore::MAX_PERMITS),
        });
        server.says(&server.good());
        let serving = Arc::clone(&server);
        TaskSpawner::new().spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let server = Arc::clone(&serving);
                TaskSpawner::new().spawn(async move { server.serve(socket).await });
            }
        });
        server
    }

    /// The introspection response for a good token.
    pub(super) fn good(&self) -> Value {
        json!({
            "active": true, "iss": self.origin, "sub": "alice", "aud": "https://gw.test/mcp",
            "client_id": "c", "iat": NOW, "exp": NOW + 600, "scope": "mcp:tools",
            "token_type": "Bearer",
        })
    }

    pub(super) fn says(&self, answer: &Value) {
        self.answers(200, &answer.to_string());
    }

    pub(super) fn answers(&self, status: u16, body: &str) {
        *self.answer.lock().expect("no panic") = (status, body.to_owned());
    }

    pub(super) fn lists(&self, methods: &[&str]) {
        *self.methods.lock().expect("no panic") = json!(methods);
    }

    /// Answers questions about tokens with `text` in them with `status` from now on, others as before.
    pub(super) fn refuses(&self, text: &str, status: u16) {
        let text = byte_serialize(text.as_bytes()).collect();
        *self.refused.lock().expect("no panic") = Some((text, status));
    }

    pub(super) fn questions(&self) -> Vec<String> {
        self.questions.lock().expect("no panic").clone()
    }

    async fn serve(&self, mut socket: TcpStream) {
        let mut text = String::new();
        while !is_whole(&text) {
            let mut part = [0; 4096];
            match socket.read(&mut part).await {
                Ok(length) if length > 0 => {
                    text.push_str(&String::from_utf8_lossy(&part[..length]));
                }
                _ => return,
            }
        }
        self.open.fetch_add(1, Ordering::SeqCst);
        let _permit = self.gate.acquire().await;
        let (status, body) = if text.starts_with("GET ") {
            let methods = self.methods.lock().expect("no panic").clone();
            let metadata = json!({
                "issuer": self.origin, "introspection_endpoint": format!("{}/ask", self.origin),
                "introspection_endpoint_auth_methods_supported": methods,
            });
            (200, metadata.to_string())
        } else {
            let refused = self.refused.lock().expect("no panic").clone();
            let refused = refused.filter(|(part, _)| text.contains(part));
            self.questions.lock().expect("no panic").push(text);
            match refused {
                Some((_, status)) => (status, String::new()),
                None => self.answer.lock().expect("no panic").clone(),
            }
        };
        if status == 0 {
            return;
        }
        let text = format!(
            "HTTP/1.1 {status} X\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        drop(socket.write_all(text.as_bytes()).await);
    }
}

fn is_whole(request: &str) -> bool {
    let Some((head, body)) = request.split_once("\r\n\r\n") else {
        return false;
    };
    let length = head.lines().find_map(|line| {
        line.to_ascii_lowercase()
            .strip_prefix("content-length: ")?
            .parse()
            .ok()
    });
    body.len() >= length.unwrap_or(0)
}
