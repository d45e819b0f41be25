//! A scripted authorization server that asks persons: its user says yes at once.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::response::Response;
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use http::StatusCode;
use http::header::LOCATION;
use serde_json::{Value, json};
use url::{Url, form_urlencoded};

use super::super::world::answer;
use crate::harness::upstream::serve;

/// How the token endpoint answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mood {
    Good,
    /// After so many milliseconds.
    Slow(u64),
    Status(u16),
    Error(&'static str),
    /// It does what it is asked for, and its answer is lost on the way.
    Loses,
    /// Refreshes are never answered.
    HoldsRefreshes,
}

type Form = BTreeMap<String, String>;

#[derive(Default)]
struct State {
    mood: Option<Mood>,
    /// Members that replace members of the metadata; a null removes one.
    metadata: Vec<(&'static str, Value)>,
    /// The bodies of registrations.
    registered: Vec<Value>,
    /// Queries of authorization requests.
    asked: Vec<Form>,
    /// Whether answers to browsers have no `iss`, and what it is otherwise; empty for the server itself.
    is_nameless: bool,
    iss: String,
    lifetime: u64,
    /// Without them no refresh tokens are given.
    gives_refresh_tokens: bool,
    refuses_web_clients: bool,
    /// The scope that the server leaves out when it grants a request.
    withholds: &'static str,
    /// The error for requests for `offline_access`.
    refuses_offline: Option<&'static str>,
    /// The status of registrations with `scope`, where a client has the scopes that it registered with alone.
    named_scopes: Option<u16>,
    codes: BTreeMap<String, Form>,
    /// Refresh tokens that are good, with their scopes.
    refresh: BTreeMap<String, String>,
    access: Vec<String>,
    /// Scopes of access tokens.
    scopes: BTreeMap<String, String>,
    forms: Vec<Form>,
    revoked: Vec<Form>,
    /// How often the metadata was asked for.
    looked_up: usize,
    number: usize,
}

/// The error with which Keycloak refuses `offline_access`.
const NOT_ALLOWED: &str = "not_allowed";

impl State {
    /// The error for an authorization request, if it asks for `offline_access`, or for scopes that its client has not.
    fn refused(&self, asked: &Form) -> Option<&'static str> {
        let scope = asked.get("scope")?;
        let asks = scope.split(' ').any(|one| one == "offline_access");
        let mut clients = self.registered.iter();
        let client = clients.find(|one| one["client_id"] == asked["client_id"]);
        let named = client.and_then(|client| client["scope"].as_str());
        let named: Vec<&str> = named.unwrap_or_default().split(' ').collect();
        if self.named_scopes.is_some() && !scope.split(' ').all(|one| named.contains(&one)) {
            return Some("invalid_scope");
        }
        self.refuses_offline.filter(|_| asks)
    }
}

/// The client id that a server gives to its first client.
pub(super) fn first_client(server: &ConsentServer) -> String {
    format!("client-1-of-{}", server.origin.rsplit(':').next().unwrap())
}

/// The server; clones are the same one.
#[derive(Clone)]
pub(in crate::accounts) struct ConsentServer {
    pub(in crate::accounts) origin: String,
    state: Arc<Mutex<State>>,
}

impl ConsentServer {
    pub(in crate::accounts) async fn start() -> Self {
        let state = Arc::new(Mutex::new(State {
            lifetime: 600,
            gives_refresh_tokens: true,
            ..State::default()
        }));
        let shared = Arc::clone(&state);
        let origin = serve(move |request: Request| {
            let shared = Arc::clone(&shared);
            async move { handle(request, &shared).await }
        })
        .await;
        Self { origin, state }
    }

    pub(super) fn set_mood(&self, mood: Mood) {
        self.state.lock().unwrap().mood = Some(mood);
    }

    /// Replaces a member of the metadata.
    pub(super) fn publishes(&self, name: &'static str, value: Value) {
        self.state.lock().unwrap().metadata.push((name, value));
    }

    /// The life of its tokens; a millisecond with `0`, which would itself count as unsaid.
    pub(super) fn lifetime(&self, secs: u64) {
        self.state.lock().unwrap().lifetime = secs;
    }

    pub(super) fn gives_no_refresh_tokens(&self) {
        self.state.lock().unwrap().gives_refresh_tokens = false;
    }

    /// Registers no client with the application type `web`, as its addresses are on this machine.
    pub(super) fn refuses_web_clients(&self) {
        self.state.lock().unwrap().refuses_web_clients = true;
    }

    /// Answers requests for `offline_access` with the error `code`: for the code with `not_allowed`, as Keycloak does, else
    /// for the browser.
    pub(super) fn refuses_offline(&self, code: &'static str) {
        self.state.lock().unwrap().refuses_offline = Some(code);
    }

    /// Holds a client to the scopes that it registered with, as Ory Hydra does, and answers such registrations with `status`.
    pub(super) fn wants_named_scopes(&self, status: u16) {
        self.state.lock().unwrap().named_scopes = Some(status);
    }

    /// Leaves `scope` out of every grant.
    pub(super) fn withholds(&self, scope: &'static str) {
        self.state.lock().unwrap().withholds = scope;
    }

    /// Answers browsers with another `iss`, or with none.
    pub(super) fn names(&self, iss: Option<&str>) {
        let mut state = self.state.lock().unwrap();
        state.is_nameless = iss.is_none();
        iss.unwrap_or_default().clone_into(&mut state.iss);
    }

    /// Ends all grants.
    pub(super) fn forgets_all(&self) {
        let mut state = self.state.lock().unwrap();
        state.refresh.clear();
        state.access.clear();
    }

    /// Ends the access tokens, and not the grants.
    pub(super) fn forgets_access_tokens(&self) {
        self.state.lock().unwrap().access.clear();
    }

    pub(in crate::accounts) fn knows(&self, token: &str) -> bool {
        self.state
            .lock()
            .unwrap()
            .access
            .iter()
            .any(|one| one == token)
    }

    /// The scopes of a token.
    pub(super) fn scopes_of(&self, token: &str) -> String {
        let state = self.state.lock().unwrap();
        state.scopes.get(token).cloned().unwrap_or_default()
    }

    pub(super) fn registered(&self) -> Vec<Value> {
        self.state.lock().unwrap().registered.clone()
    }

    pub(super) fn asked(&self) -> Vec<Form> {
        self.state.lock().unwrap().asked.clone()
    }

    /// How often its metadata was asked for.
    pub(in crate::accounts) fn looked_up(&self) -> usize {
        self.state.lock().unwrap().looked_up
    }

    pub(super) fn revoked(&self) -> Vec<Form> {
        self.state.lock().unwrap().revoked.clone()
    }

    /// Forms of token requests of this grant type.
    pub(in crate::accounts) fn forms(&self, grant_type: &str) -> Vec<Form> {
        let state = self.state.lock().unwrap();
        let of = state
            .forms
            .iter()
            .filter(|form| form["grant_type"] == grant_type);
        of.cloned().collect()
    }

    /// All values that only the gateway and the upstream may see.
    pub(super) fn secrets(&self) -> Vec<String> {
        let state = self.state.lock().unwrap();
        let verifiers = state
            .forms
            .iter()
            .filter_map(|form| form.get("code_verifier"));
        let secrets = state
            .registered
            .iter()
            .filter_map(|one| one["client_secret"].as_str());
        (state.access.iter().cloned())
            .chain(state.refresh.keys().cloned())
            .chain(state.codes.keys().cloned())
            .chain(verifiers.cloned())
            .chain(secrets.map(str::to_owned))
            .collect()
    }
}

async fn handle(request: Request, state: &Mutex<State>) -> Response {
    let (head, body) = request.into_parts();
    let host = head.headers["host"].to_str().unwrap();
    let origin = format!("http://{host}");
    let body = to_bytes(body, 1 << 20).await.unwrap();
    let query = head.uri.query().unwrap_or_default().as_bytes();
    match head.uri.path() {
        "/.well-known/oauth-authorization-server" => metadata(&origin, state),
        "/register" => register(&origin, &body, state),
        "/authorize" => authorize(&origin, read(query), state),
        "/token" => {
            let mood = state.lock().unwrap().mood.unwrap_or(Mood::Good);
            let form = read(&body);
            match mood {
                Mood::Slow(millis) => tokio::time::sleep(Duration::from_millis(millis)).await,
                Mood::HoldsRefreshes if form["grant_type"] == "refresh_token" => {
                    std::future::pending::<()>().await;
                }
                _ => {}
            }
            token(&form, mood, state)
        }
        "/revoke" => {
            let mut state = state.lock().unwrap();
            let form = read(&body);
            state.refresh.remove(&form["token"]);
            state.access.retain(|one| *one != form["token"]);
            state.revoked.push(form);
            answer(200, "")
        }
        _ => answer(404, ""),
    }
}

fn read(text: &[u8]) -> Form {
    form_urlencoded::parse(text).into_owned().collect()
}

fn metadata(origin: &str, state: &Mutex<State>) -> Response {
    let mut document = json!({
        "issuer": origin,
        "authorization_endpoint": format!("{origin}/authorize"),
        "token_endpoint": format!("{origin}/token"),
        "registration_endpoint": format!("{origin}/register"),
        "revocation_endpoint": format!("{origin}/revoke"),
        "code_challenge_methods_supported": ["S256"],
        "token_endpoint_auth_methods_supported": ["client_secret_post", "none"],
        "authorization_response_iss_parameter_supported": true,
        "scopes_supported": ["notes:read", "notes:write", "offline_access"],
    });
    let mut state = state.lock().unwrap();
    state.looked_up += 1;
    for (name, value) in &state.metadata {
        if value.is_null() {
            document.as_object_mut().unwrap().remove(*name);
        } else {
            document[*name] = value.clone();
        }
    }
    answer(200, &document.to_string())
}

fn register(origin: &str, body: &[u8], state: &Mutex<State>) -> Response {
    let mut state = state.lock().unwrap();
    let mut client: Value = serde_json::from_slice(body).unwrap();
    if state.refuses_web_clients && client["application_type"] == "web" {
        return answer(400, &json!({"error": "invalid_redirect_uri"}).to_string());
    }
    let status = state.named_scopes.filter(|_| !client["scope"].is_null());
    if let Some(status @ 400..) = status {
        let refusal = json!({"error": "invalid_client_metadata"});
        return answer(status, &refusal.to_string());
    }
    let number = state.registered.len() + 1;
    let port = origin.rsplit(':').next().unwrap();
    client["client_id"] = format!("client-{number}-of-{port}").into();
    if client["token_endpoint_auth_method"] != "none" {
        client["client_secret"] = format!("registered-hunter2-{number}-of-{port}").into();
    }
    state.registered.push(client.clone());
    answer(201, &client.to_string())
}

fn authorize(origin: &str, query: Form, state: &Mutex<State>) -> Response {
    let mut state = state.lock().unwrap();
    state.number += 1;
    let code = format!("code-hunter2-{}", state.number);
    let mut back = Url::parse(&query["redirect_uri"]).unwrap();
    let refused = state.refused(&query).filter(|code| *code != NOT_ALLOWED);
    let (name, value) = refused.map_or(("code", &*code), |error| ("error", error));
    back.query_pairs_mut()
        .append_pair(name, value)
        .append_pair("state", &query["state"]);
    if refused.is_some() {
        let why = "offline_access is not of this client";
        back.query_pairs_mut().append_pair("error_description", why);
    }
    let iss = Some(&*state.iss).filter(|iss| !iss.is_empty());
    if !state.is_nameless {
        let iss = iss.unwrap_or(origin);
        back.query_pairs_mut().append_pair("iss", iss);
    }
    state.asked.push(query.clone());
    state.codes.insert(code, query);
    Response::builder()
        .status(StatusCode::FOUND)
        .header(LOCATION, back.as_str())
        .body(Body::empty())
        .unwrap()
}

fn token(form: &Form, mood: Mood, state: &Mutex<State>) -> Response {
    let mut state = state.lock().unwrap();
    state.forms.push(form.clone());
    match mood {
        Mood::Status(status) => return answer(status, ""),
        Mood::Error(code) => return answer(400, &json!({ "error": code }).to_string()),
        Mood::Good | Mood::Slow(_) | Mood::Loses | Mood::HoldsRefreshes => {}
    }
    let refused = || answer(400, &json!({"error": "invalid_grant"}).to_string());
    let scope = match &*form["grant_type"] {
        "authorization_code" => {
            let Some(asked) = state.codes.remove(&form["code"]) else {
                return refused();
            };
            let challenge = digest(&SHA256, form["code_verifier"].as_bytes());
            let is_proven = BASE64_URL_SAFE_NO_PAD.encode(challenge) == asked["code_challenge"];
            let is_same = ["redirect_uri", "client_id", "resource"]
                .iter()
                .all(|name| asked[*name] == form[*name]);
            if !is_proven || !is_same {
                return refused();
            }
            if state.refused(&asked) == Some(NOT_ALLOWED) {
                let why = "Offline tokens not allowed for the user or client";
                return answer(
                    400,
                    &json!({"error": NOT_ALLOWED, "error_description": why}).to_string(),
                );
            }
            let asked = asked.get("scope").cloned().unwrap_or_default();
            let granted = asked.split(' ').filter(|one| *one != state.withholds);
            granted.collect::<Vec<_>>().join(" ")
        }
        // Each is good once.
        "refresh_token" => match state.refresh.remove(&form["refresh_token"]) {
            Some(scope) => scope,
            None => return refused(),
        },
        _ => return answer(400, &json!({"error": "unsupported_grant_type"}).to_string()),
    };
    state.number += 1;
    let access = format!("access-hunter2-{}", state.number);
    state.access.push(access.clone());
    state.scopes.insert(access.clone(), scope.clone());
    let lifetime = match state.lifetime {
        0 => json!(0.001),
        secs => json!(secs),
    };
    let mut body = json!({
        "access_token": access, "token_type": "Bearer", "expires_in": lifetime, "scope": scope,
    });
    if state.gives_refresh_tokens {
        let refresh = format!("refresh-hunter2-{}", state.number);
        body["refresh_token"] = refresh.clone().into();
        state.refresh.insert(refresh, scope);
    }
    if mood == Mood::Loses {
        let lost =
            futures_util::stream::once(async { Err::<bytes::Bytes, _>(io::Error::other("lost")) });
        return Response::new(Body::from_stream(lost));
    }
    answer(200, &body.to_string())
}
