//! An upstream that says the user's name in all that it sends, and a gateway that exchanges callers' tokens for it.

use std::sync::{Arc, Mutex};

use axum::body::to_bytes;
use axum::extract::Request;
use axum::response::Response;
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use http::header::{AUTHORIZATION, WWW_AUTHENTICATE};
use serde_json::{Value, json};

use super::world::{Answering, AuthServer, SECRET, answer};
use crate::harness::upstream::serve;
use crate::harness::{Gateway, Setup};

/// The claims of a JWT.
pub(super) fn claims(token: &str) -> Option<Value> {
    let claims = token.split('.').nth(1)?;
    serde_json::from_slice(&BASE64_URL_SAFE_NO_PAD.decode(claims).ok()?).ok()
}

/// Has `server` exchange tokens for others that last for `seconds`: `for-<subject>-<number>`.
pub(super) fn exchanges(server: &AuthServer, seconds: u64) {
    server.answers(Answering::Made(Arc::new(move |form, number| {
        let subject = claims(&form["subject_token"]).unwrap()["sub"].clone();
        let token = format!("for-{}-{number}", subject.as_str().unwrap());
        json!({
            "access_token": token, "token_type": "Bearer", "expires_in": seconds,
            "issued_token_type": "urn:ietf:params:oauth:token-type:access_token",
        })
    })));
}

/// The table of the exchange at `server`.
pub(crate) fn exchange(server: &AuthServer, keys: &str) -> String {
    format!(
        "[upstreams.up.auth]\nkind = \"token_exchange\"\nissuer = \"{}\"\nclient_id = \"drawbridge\"\n\
         client_secret = \"{SECRET}\"\n{keys}\n",
        server.origin
    )
}

/// A gateway that exchanges callers' tokens at `server` for the upstream at `url`; `keys` are further ones of it.
pub(super) async fn exchanging(server: &AuthServer, url: &str, keys: &str) -> Gateway {
    Setup::secured()
        .url("up", url, keys)
        .toml(&exchange(server, ""))
        .start()
        .await
}

/// `Authorization` and method of each request.
type SeenRequests = Mutex<Vec<(Option<String>, String)>>;

/// The upstream; clones are the same one.
#[derive(Clone)]
pub(super) struct PersonalUpstream {
    pub(super) origin: String,
    seen: Arc<SeenRequests>,
}

impl PersonalUpstream {
    /// Takes tokens that `exchanges` makes at `server`, which its metadata names, and speaks both eras unless
    /// `is_legacy`.
    pub(super) async fn start(server: &AuthServer, is_legacy: bool) -> Self {
        let seen: Arc<SeenRequests> = Arc::default();
        let (requests, named) = (Arc::clone(&seen), server.origin.clone());
        let origin = serve(move |request: Request| {
            let (requests, named) = (Arc::clone(&requests), named.clone());
            async move { respond(request, &requests, &named, is_legacy).await }
        })
        .await;
        Self { origin, seen }
    }

    pub(super) fn url(&self) -> String {
        format!("{}/mcp", self.origin)
    }

    /// `Authorization` and method of each request so far.
    pub(super) fn seen(&self) -> Vec<(Option<String>, String)> {
        self.seen.lock().unwrap().clone()
    }
}

async fn respond(request: Request, seen: &SeenRequests, server: &str, is_legacy: bool) -> Response {
    let (head, body) = request.into_parts();
    let origin = format!("http://{}", head.headers["host"].to_str().unwrap());
    if head.uri.path().starts_with("/.well-known/") {
        let metadata = json!({
            "resource": format!("{origin}/mcp"), "authorization_servers": [server],
            "scopes_supported": ["notes:read"],
        });
        return answer(200, &metadata.to_string());
    }
    let body = to_bytes(body, 1 << 20).await.unwrap();
    let message: Value = serde_json::from_slice(&body).unwrap_or_default();
    let method = message["method"].as_str().unwrap_or_default().to_owned();
    let header = head.headers.get(AUTHORIZATION);
    let header = header.map(|value| value.to_str().unwrap().to_owned());
    seen.lock().unwrap().push((header.clone(), method.clone()));
    let user = header.as_deref().and_then(user);
    let Some(user) = user else {
        let mut refused = answer(401, "{}");
        let place = format!("{origin}/.well-known/oauth-protected-resource/mcp");
        let challenge = format!("Bearer resource_metadata=\"{place}\"");
        let headers = refused.headers_mut();
        headers.insert(WWW_AUTHENTICATE, challenge.parse().unwrap());
        return refused;
    };
    if message.get("id").is_none() {
        return answer(if method.is_empty() { 405 } else { 202 }, "");
    }
    let mut reply = json!({"jsonrpc": "2.0", "id": message["id"]});
    if let Some(result) = result(&method, user, is_legacy) {
        reply["result"] = result;
    } else {
        reply["error"] = json!({"code": -32601, "message": "Method not found"});
    }
    answer(200, &reply.to_string())
}

/// The user of a token that `exchanges` makes.
fn user(header: &str) -> Option<&str> {
    header.strip_prefix("Bearer for-")?.split('-').next()
}

fn result(method: &str, user: &str, is_legacy: bool) -> Option<Value> {
    let info = json!({"name": format!("server of {user}"), "version": "1"});
    let instructions = format!("Hello {user}");
    let capabilities = json!({"tools": {}});
    let tool = json!({
        "name": format!("greet_{user}"), "description": format!("Greets {user}"), "inputSchema": {"type": "object"},
    });
    let mut result = match method {
        "initialize" => json!({
            "protocolVersion": "2025-11-25", "capabilities": capabilities, "serverInfo": info,
            "instructions": instructions,
        }),
        "server/discover" if !is_legacy => json!({
            "supportedVersions": ["2026-07-28", "2025-11-25"], "capabilities": capabilities,
            "instructions": instructions, "ttlMs": 60_000, "cacheScope": "private",
        }),
        "tools/list" => json!({"tools": [tool], "ttlMs": 60_000, "cacheScope": "private"}),
        "tools/call" => json!({"content": [{"type": "text", "text": format!("I am {user}")}]}),
        _ => return None,
    };
    if !is_legacy {
        result["resultType"] = "complete".into();
        result["_meta"] = json!({"io.modelcontextprotocol/serverInfo": info});
    }
    Some(result)
}
