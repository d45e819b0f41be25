//! A scripted issuer where people log in, a gateway that trusts it, and browsers.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use axum::body::to_bytes;
use axum::extract::Request;
use http::header::{AUTHORIZATION, SET_COOKIE};
use serde_json::{Value, json};
use url::Url;

use crate::accounts::user::server::ConsentServer;
use crate::accounts::user::world::upstream_of;
use crate::accounts::world::{AuthServer, GuardedUpstream, Verdict, answer};
use crate::harness::http::Actor;
use crate::harness::issuer::{Issuer, unix_now};
use crate::harness::upstream::serve;
use crate::harness::{Gateway, Setup};

pub(super) const SECRET: &str = "the-gateways-login-hunter2";
/// The client of the login.
pub(super) const CLIENT: &str =
    "client_id = \"drawbridge\"\nclient_secret = \"the-gateways-login-hunter2\"\n";
/// The key that the upstream takes.
pub(super) const KEY: &str = "a-pasted-hunter2-key";

pub(super) type Form = BTreeMap<String, String>;
/// Status and answer to a token request with this form.
pub(super) type MakeTokens = Arc<dyn Fn(&Form) -> (u16, Value) + Send + Sync>;
/// `Authorization` and form of each token request.
type TokenRequests = Vec<(Option<String>, Form)>;

/// An issuer whose token endpoint answers what the test says; clones are the same one.
#[derive(Clone)]
pub(super) struct LoginServer {
    pub(super) origin: String,
    keys: Arc<Issuer>,
    answer: Arc<Mutex<(u16, Value)>>,
    grants: Arc<Mutex<BTreeMap<&'static str, MakeTokens>>>,
    metadata: Arc<Mutex<Value>>,
    seen: Arc<Mutex<TokenRequests>>,
    revoked: Arc<Mutex<Vec<Form>>>,
}

impl LoginServer {
    pub(super) async fn start() -> Self {
        let mut keys = Issuer::new();
        let jwks = json!({"keys": [keys.public_key()]});
        let reply = Arc::new(Mutex::new((500, json!({}))));
        let metadata = Arc::new(Mutex::new(json!({})));
        let seen: Arc<Mutex<TokenRequests>> = Arc::default();
        let grants: Arc<Mutex<BTreeMap<&'static str, MakeTokens>>> = Arc::default();
        let (replies, published, requests) =
            (Arc::clone(&reply), Arc::clone(&metadata), Arc::clone(&seen));
        let special = Arc::clone(&grants);
        let revoked: Arc<Mutex<Vec<Form>>> = Arc::default();
        let revocations = Arc::clone(&revoked);
        let origin = serve(move |request: Request| {
            let (replies, published, requests) = (
                Arc::clone(&replies),
                Arc::clone(&published),
                Arc::clone(&requests),
            );
            let (jwks, special) = (jwks.clone(), Arc::clone(&special));
            let revocations = Arc::clone(&revocations);
            async move {
                match request.uri().path() {
                    "/jwks" => answer(200, &jwks.to_string()),
                    "/.well-known/oauth-authorization-server" => {
                        answer(200, &published.lock().unwrap().to_string())
                    }
                    "/token" => {
                        let header = request.headers().get(AUTHORIZATION);
                        let header = header.map(|value| value.to_str().unwrap().to_owned());
                        let body = to_bytes(request.into_body(), 1 << 20).await.unwrap();
                        let form: Form = url::form_urlencoded::parse(&body).into_owned().collect();
                        let made = special.lock().unwrap().get(&*form["grant_type"]).cloned();
                        let made = made.map(|make| make(&form));
                        requests.lock().unwrap().push((header, form));
                        let usual = || replies.lock().unwrap().clone();
                        let (status, body) = made.unwrap_or_else(usual);
                        answer(status, &body.to_string())
                    }
                    "/revoke" => {
                        let body = to_bytes(request.into_body(), 1 << 20).await.unwrap();
                        let form = url::form_urlencoded::parse(&body).into_owned().collect();
                        revocations.lock().unwrap().push(form);
                        answer(200, "")
                    }
                    _ => answer(404, ""),
                }
            }
        })
        .await;
        keys.name.clone_from(&origin);
        *metadata.lock().unwrap() = json!({
            "issuer": origin, "jwks_uri": format!("{origin}/jwks"),
            "authorization_endpoint": format!("{origin}/auth"),
            "token_endpoint": format!("{origin}/token"),
            "code_challenge_methods_supported": ["S256"],
            "authorization_response_iss_parameter_supported": true,
            "subject_types_supported": ["public"],
        });
        Self {
            origin,
            keys: Arc::new(keys),
            answer: reply,
            grants,
            metadata,
            seen,
            revoked,
        }
    }

    /// Publishes a revocation endpoint.
    pub(super) fn revokes(&self) {
        let endpoint = format!("{}/revoke", self.origin);
        self.publishes("revocation_endpoint", json!(endpoint));
    }

    /// The tokens in the revocation requests that the provider has received.
    pub(super) fn revoked(&self) -> Vec<String> {
        let forms = self.revoked.lock().unwrap();
        forms.iter().map(|form| form["token"].clone()).collect()
    }

    /// Answers requests with this `grant_type`.
    pub(super) fn answers_grant(
        &self,
        grant_type: &'static str,
        make: impl Fn(&Form) -> (u16, Value) + Send + Sync + 'static,
    ) {
        (self.grants.lock().unwrap()).insert(grant_type, Arc::new(make));
    }

    /// Changes one member of its metadata.
    pub(super) fn publishes(&self, name: &str, value: Value) {
        self.metadata.lock().unwrap()[name] = value;
    }

    /// Token requests so far.
    pub(super) fn seen(&self) -> TokenRequests {
        self.seen.lock().unwrap().clone()
    }

    pub(super) fn answers(&self, status: u16, body: Value) {
        *self.answer.lock().unwrap() = (status, body);
    }

    /// The next code is worth an ID token of `subject` with this nonce; `changes` replaces claims.
    pub(super) fn logs_in(&self, subject: &str, nonce: &str, changes: &Value) {
        let token = self.id_token(subject, nonce, changes);
        let body =
            json!({"access_token": "opaque-hunter2", "token_type": "Bearer", "id_token": token});
        self.answers(200, body);
    }

    /// An ID token of `subject`; `changes` replaces claims.
    pub(super) fn id_token(&self, subject: &str, nonce: &str, changes: &Value) -> String {
        let now = unix_now();
        let mut claims = json!({
            "iss": self.origin, "sub": subject, "aud": "drawbridge", "nonce": nonce, "iat": now,
            "exp": now + 600, "preferred_username": format!("{subject}@<b>home</b>"),
        });
        for (name, value) in changes.as_object().unwrap() {
            claims[name] = value.clone();
        }
        let mut header = Issuer::header();
        header.typ = Some("JWT".to_owned());
        self.keys.sign(&header, &claims)
    }

    /// An access token of `subject` for `resource`.
    pub(super) fn access_token(&self, subject: &str, resource: &str) -> String {
        self.keys.mint(subject, &[resource.to_owned()], "mcp:tools")
    }
}

/// A gateway that people log in to, before an upstream that takes [`KEY`].
pub(super) struct World<U = GuardedUpstream> {
    pub(super) gw: Gateway,
    pub(super) server: LoginServer,
    pub(super) upstream: U,
    pub(super) state: tempfile::TempDir,
}

impl World {
    pub(super) async fn start() -> Self {
        Self::with("", "").await
    }

    /// With further members of the login, and further tables.
    pub(super) async fn with(login: &str, tables: &str) -> Self {
        let server = LoginServer::start().await;
        let unused = AuthServer::start().await;
        let upstream = GuardedUpstream::start(&unused, &[]).await;
        upstream.judges(|token, _| Verdict::of(token == Some(KEY)));
        let state = tempfile::tempdir().unwrap();
        let login =
            format!("client_id = \"drawbridge\"\nclient_secret = \"{SECRET}\"\n{login}\n{tables}");
        let setup = before(&server.origin, ("user_key", &login), &upstream, &state);
        Self {
            gw: setup.start().await,
            server,
            upstream,
            state,
        }
    }

    /// Before an upstream that takes the tokens of `consents`, where persons agree.
    pub(super) async fn of_users(consents: &ConsentServer) -> Self {
        Self::of_users_at(upstream_of(consents).await).await
    }

    /// Before `upstream`, where persons have accounts.
    pub(super) async fn of_users_at(upstream: GuardedUpstream) -> Self {
        let url = upstream.url();
        Self::of_users_before(upstream, &url, "").await
    }
}

impl<U> World<U> {
    /// Before `upstream` at `url`, where persons have accounts; `keys` are further ones of the account.
    pub(super) async fn of_users_before(upstream: U, url: &str, keys: &str) -> Self {
        let server = LoginServer::start().await;
        let state = tempfile::tempdir().unwrap();
        let account = format!("kind = \"user\"\n{keys}");
        let login = format!("{CLIENT}[egress]\nallow = [\"127.0.0.1\"]\n");
        let setup = before_url(&server.origin, (&account, &login), url, &state);
        Self {
            gw: setup.start().await,
            server,
            upstream,
            state,
        }
    }

    /// One who calls.
    pub(super) fn caller(&self, subject: &str) -> Actor {
        self.caller_at(subject, "/mcp/up")
    }

    /// A caller of the endpoint at `path`.
    pub(super) fn caller_at(&self, subject: &str, path: &str) -> Actor {
        let resource = self.url(path);
        self.gw
            .bearer(&self.server.access_token(subject, &resource))
    }

    /// Opens `path`, and begins a login there.
    pub(super) async fn begin(&self, browser: &mut Browser, path: &str) -> Begun {
        let page = browser.open(&self.url(path)).await;
        let page = browser.submit(&page, &[("action", "login")]).await;
        Begun::of(&page)
    }

    /// Brings the answer of the issuer back.
    pub(super) async fn back(&self, browser: &mut Browser, begun: &Begun) -> Page {
        let query = [
            ("state", &*begun.state),
            ("code", "a-code-hunter2"),
            ("iss", &*self.server.origin),
        ];
        browser.open(&self.callback(&query)).await
    }

    /// Logs `subject` in from the page at `path`; returns the page after that.
    pub(super) async fn log_in(&self, browser: &mut Browser, path: &str, subject: &str) -> Page {
        let begun = self.begin(browser, path).await;
        self.server.logs_in(subject, &begun.nonce, &json!({}));
        let done = self.back(browser, &begun).await;
        assert!(
            done.text.contains("logged in for 15 minutes"),
            "{}",
            done.text
        );
        browser.open(&done.goes_on()).await
    }

    pub(super) fn url(&self, path: &str) -> String {
        format!("{}{path}", self.gw.url)
    }

    pub(super) fn callback(&self, query: &[(&str, &str)]) -> String {
        let url = self.url("/connect/callback/login");
        Url::parse_with_params(&url, query).unwrap().into()
    }
}

/// The setup of a gateway that trusts `issuer`, with accounts of this kind, where people log in with these members and
/// tables.
pub(super) fn before(
    issuer: &str,
    (kind, login): (&str, &str),
    upstream: &GuardedUpstream,
    state: &tempfile::TempDir,
) -> Setup {
    let account = format!("kind = \"{kind}\"");
    before_url(issuer, (&account, login), &upstream.url(), state)
}

/// The same before the upstream at `url`, with these keys of the account.
fn before_url(
    issuer: &str,
    (account, login): (&str, &str),
    url: &str,
    state: &tempfile::TempDir,
) -> Setup {
    let at = |name: &str| state.path().join(name).display().to_string();
    std::fs::write(at("vault.key"), "k".repeat(32)).unwrap();
    Setup::behind_issuer(issuer)
        .url("up", url, "")
        .toml(&format!(
            "[upstreams.up.auth]\n{account}\n[database]\nurl = \"sqlite:{}\"\n[keys]\n\
             vault = [{{ id = \"k1\", file = \"{}\" }}]\n[connect.login]\nissuer = {issuer:?}\n{login}",
            at("test.db"),
            at("vault.key")
        ))
}

/// The same before an upstream whose authorization server `issuer` is told who calls by the identity provider `idp`.
pub(super) fn asserted_before(
    idp: &str,
    login: &str,
    (upstream, issuer): (&GuardedUpstream, &str),
    state: &tempfile::TempDir,
) -> Setup {
    let at = |name: &str| state.path().join(name).display().to_string();
    std::fs::write(at("vault.key"), "k".repeat(32)).unwrap();
    Setup::behind_issuer(idp)
        .url("up", &upstream.url(), "")
        .toml(&format!(
            "[upstreams.up.auth]\nkind = \"id_jag\"\nissuer = {issuer:?}\nclient_id = \"with-secret\"\n\
             client_secret = \"a service's secret: %&+\"\n[database]\nurl = \"sqlite:{}\"\n[keys]\n\
             vault = [{{ id = \"k1\", file = \"{}\" }}]\n[connect.login]\nissuer = {idp:?}\n{login}",
            at("test.db"),
            at("vault.key")
        ))
}

/// A login that was begun.
pub(super) struct Begun {
    pub(super) state: String,
    pub(super) nonce: String,
    pub(super) url: Url,
}

impl Begun {
    pub(super) fn of(page: &Page) -> Self {
        let url = Url::parse(&page.goes_on()).unwrap();
        let query: Form = url.query_pairs().into_owned().collect();
        Self {
            state: query["state"].clone(),
            nonce: query.get("nonce").cloned().unwrap_or_default(),
            url,
        }
    }
}

/// A browser: it keeps cookies, and goes nowhere by itself.
#[derive(Clone)]
pub(super) struct Browser {
    client: reqwest::Client,
    pub(super) cookies: BTreeMap<String, String>,
}

/// A page that a browser shows.
pub(super) struct Page {
    pub(super) url: Url,
    pub(super) status: u16,
    pub(super) headers: http::HeaderMap,
    pub(super) text: String,
}

impl Page {
    /// Where it goes on by itself.
    pub(super) fn goes_on(&self) -> String {
        let found = self.text.split_once("http-equiv=\"refresh\" content=\"");
        let found = found.and_then(|(_, rest)| rest.split_once(";url="));
        let (_, rest) = found.unwrap_or_else(|| panic!("goes nowhere: {}", self.text));
        let url = rest.split('"').next().unwrap().replace("&amp;", "&");
        self.url.join(&url).unwrap().into()
    }

    /// The value of the first hidden field of this name.
    pub(super) fn field(&self, name: &str) -> String {
        let found = self.text.split_once(&format!("name=\"{name}\" value=\""));
        let (_, rest) = found.unwrap_or_else(|| panic!("no {name}: {}", self.text));
        rest.split('"').next().unwrap().to_owned()
    }
}

impl Browser {
    pub(super) fn new() -> Self {
        let client = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none());
        Self {
            client: client.build().unwrap(),
            cookies: BTreeMap::new(),
        }
    }

    fn cookie(&self) -> String {
        let pairs = self
            .cookies
            .iter()
            .map(|(name, value)| format!("{name}={value}"));
        pairs.collect::<Vec<_>>().join("; ")
    }

    async fn send(&mut self, request: reqwest::RequestBuilder, url: &str) -> Page {
        let answer = request
            .header("cookie", self.cookie())
            .send()
            .await
            .unwrap();
        let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
        for line in headers.get_all(SET_COOKIE) {
            let pair = line.to_str().unwrap().split(';').next().unwrap();
            let (name, value) = pair.split_once('=').unwrap();
            if value.is_empty() {
                self.cookies.remove(name);
            } else {
                self.cookies.insert(name.to_owned(), value.to_owned());
            }
        }
        Page {
            url: Url::parse(url).unwrap(),
            status,
            headers,
            text: answer.text().await.unwrap(),
        }
    }

    pub(super) async fn open(&mut self, url: &str) -> Page {
        let request = self.client.get(url);
        self.send(request, url).await
    }

    /// Opens `url` for one who logs in as `user` wherever that is asked, until a page is shown or it leads to `end`.
    pub(super) async fn walk(&mut self, url: &str, user: &str, end: &str) -> String {
        let mut url = url.to_owned();
        for _ in 0..20 {
            let request = self.client.get(&url).header("x-user", user);
            let page = self.send(request, &url).await;
            let next = page
                .headers
                .get("location")
                .unwrap_or_else(|| panic!("{}: {}", page.status, page.text));
            url = page.url.join(next.to_str().unwrap()).unwrap().into();
            if url.starts_with(end) {
                return url;
            }
        }
        panic!("it goes in circles at {url}");
    }

    /// Sends the first form of `page` with these fields, as a browser does under the policy of these pages.
    pub(super) async fn submit(&mut self, page: &Page, fields: &[(&str, &str)]) -> Page {
        let mut form = vec![("token", page.field("token"))];
        if page.text.contains("name=\"issuer\"") {
            form.push(("issuer", page.field("issuer")));
        }
        form.extend(
            fields
                .iter()
                .map(|(name, value)| (*name, (*value).to_owned())),
        );
        let body = url::form_urlencoded::Serializer::new(String::new())
            .extend_pairs(form)
            .finish();
        let url = page.url.to_string();
        let request = self.client.post(&url).body(body);
        let request = request
            .header("origin", "null")
            .header("sec-fetch-site", "same-origin");
        self.send(request, &url).await
    }
}
