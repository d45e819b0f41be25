//! Opaque tokens of strangers in front of an issuer whose firewall refuses some of them.

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::{get, post};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::harness::http::{BOTH, initialize};
use crate::harness::upstream::HttpStub;
use crate::harness::{Gateway, Setup};

/// An issuer of opaque tokens; its firewall answers 403 where a question names `etc/passwd`.
#[derive(Clone, Default)]
struct Issuer {
    origin: String,
    /// The one audience of all tokens.
    audience: Arc<Mutex<String>>,
}

impl Issuer {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let origin = format!("http://{}", listener.local_addr().unwrap());
        let issuer = Self {
            origin,
            ..Self::default()
        };
        let router = Router::new()
            .route(
                "/.well-known/oauth-authorization-server",
                get(async |State(issuer): State<Self>| issuer.metadata().to_string()),
            )
            .route(
                "/introspect",
                post(async |State(issuer): State<Self>, form: String| issuer.answer(&form)),
            )
            .with_state(issuer.clone());
        tokio::spawn(axum::serve(listener, router).into_future());
        issuer
    }

    fn metadata(&self) -> Value {
        json!({"issuer": self.origin, "introspection_endpoint": format!("{}/introspect", self.origin)})
    }

    fn answer(&self, form: &str) -> (StatusCode, String) {
        if form.contains("etc%2Fpasswd") {
            return (StatusCode::FORBIDDEN, "<html>blocked</html>".to_owned());
        }
        let said = json!({
            "active": true, "sub": "alice", "aud": *self.audience.lock().unwrap(),
            "scope": "mcp:tools", "client_id": "c",
        });
        (StatusCode::OK, said.to_string())
    }
}

async fn open(gw: &Gateway, token: &str) -> u16 {
    let body = initialize(1, "2025-11-25", &json!({}));
    let headers = [("accept", BOTH)];
    gw.bearer(token)
        .post("/mcp/stub", &headers, &body)
        .await
        .status()
}

// SPEC A-23. Junk tokens and valid tokens alternate, and each valid token is new to the gateway.
#[tokio::test]
async fn strangers_junk_tokens_refuse_no_good_token() {
    let issuer = Issuer::start().await;
    let stub = HttpStub::start(&[]).await;
    let gw = Setup::behind_issuer(&issuer.origin)
        .toml("introspection = { client_id = \"gateway\", client_secret = \"s\" }")
        .http("stub", &stub, "")
        .start()
        .await;
    *issuer.audience.lock().unwrap() = format!("{}/mcp/stub", gw.url);
    let mut good = Vec::new();
    for n in 0..40 {
        open(&gw, &format!("../../{n}/etc/passwd")).await;
        good.push(open(&gw, &format!("good-{n}")).await);
    }
    assert_eq!(good, vec![200; 40]);
    gw.stop().await;
}
