//! Two upstreams whose authorization server takes assertions of the issuer where people log in.

use std::sync::Arc;

use serde_json::{Value, json};

use super::world::{Begun, Browser, Form, LoginServer, Page, SECRET};
use crate::accounts::personal::{PersonalUpstream, claims};
use crate::accounts::world::{Answering, AuthServer};
use crate::harness::http::Actor;
use crate::harness::issuer::unix_now;
use crate::harness::session::{Session, text_of};
use crate::harness::{Gateway, Setup};

pub(super) const EXCHANGE: &str = "urn:ietf:params:oauth:grant-type:token-exchange";
pub(super) const ID_JAG: &str = "urn:ietf:params:oauth:token-type:id-jag";
pub(super) const AT_SERVER: &str = "the-secret-at-the-server-hunter2";
pub(super) const REFRESH: &str = "a-refresh-hunter2-token";

/// Two upstreams whose authorization server takes assertions of the issuer where people log in.
pub(super) struct AssertedWorld {
    pub(super) gw: Gateway,
    pub(super) idp: LoginServer,
    pub(super) server: AuthServer,
    pub(super) upstreams: [PersonalUpstream; 2],
    pub(super) state: tempfile::TempDir,
}

/// The assertion for the subject of an ID token.
pub(super) fn asserted(form: &Form) -> (u16, Value) {
    let subject = claims(&form["subject_token"]).unwrap()["sub"].clone();
    let assertion = format!("assertion-hunter2-of-{}", subject.as_str().unwrap());
    let answer = json!({
        "access_token": assertion, "token_type": "N_A", "issued_token_type": ID_JAG, "expires_in": 300,
    });
    (200, answer)
}

/// A gateway before the upstreams; `login` has further members.
fn setup(
    idp: &LoginServer,
    (server, upstreams): (&AuthServer, &[PersonalUpstream; 2]),
    state: &tempfile::TempDir,
    login: &str,
) -> Setup {
    let at = |name: &str| state.path().join(name).display().to_string();
    std::fs::write(at("vault.key"), "k".repeat(32)).unwrap();
    let mut setup = Setup::behind_issuer(&idp.origin);
    for (name, upstream) in ["up", "two"].into_iter().zip(upstreams) {
        setup = setup.url(name, &upstream.url(), "").toml(&format!(
            "[upstreams.{name}.auth]\nkind = \"id_jag\"\nissuer = {:?}\nclient_id = \"at-server\"\n\
             client_secret = \"{AT_SERVER}\"\n",
            server.origin
        ));
    }
    setup.toml(&format!(
        "[database]\nurl = \"sqlite:{}\"\n[keys]\nvault = [{{ id = \"k1\", file = \"{}\" }}]\n\
         [connect.login]\nissuer = {:?}\nclient_id = \"drawbridge\"\nclient_secret = \"{SECRET}\"\n{login}\n",
        at("test.db"),
        at("vault.key"),
        idp.origin
    ))
}

impl AssertedWorld {
    pub(super) async fn start() -> Self {
        Self::with("").await
    }

    /// `login` has further members.
    pub(super) async fn with(login: &str) -> Self {
        let (idp, server) = (LoginServer::start().await, AuthServer::start().await);
        idp.answers_grant(EXCHANGE, asserted);
        let known = json!(["openid", "offline_access"]);
        idp.publishes("scopes_supported", known);
        idp.revokes();
        server.answers(Answering::Made(Arc::new(|form, number| {
            let subject = form["assertion"].strip_prefix("assertion-hunter2-of-");
            let token = format!("for-{}-{number}", subject.unwrap());
            json!({"access_token": token, "token_type": "Bearer", "expires_in": 600})
        })));
        let upstreams = [
            PersonalUpstream::start(&server, true).await,
            PersonalUpstream::start(&server, false).await,
        ];
        let state = tempfile::tempdir().unwrap();
        Self {
            gw: setup(&idp, (&server, &upstreams), &state, login)
                .start()
                .await,
            idp,
            server,
            upstreams,
            state,
        }
    }

    /// The same with a gateway that kills itself at `point`.
    pub(super) async fn doomed(point: &str) -> Self {
        let world = Self::start().await;
        let setup = world.setup();
        world.gw.stop().await;
        let gw = setup.start_doomed(point).await;
        Self { gw, ..world }
    }

    /// The same with the next gateway, at the address of the one that has killed itself.
    pub(super) async fn restarted(self) -> Self {
        let setup = self.setup().listen(self.gw.address());
        let mut dead = self.gw;
        assert_eq!(dead.exit().await, None, "it was killed by a signal");
        let gw = setup.start().await;
        Self { gw, ..self }
    }

    fn setup(&self) -> Setup {
        let servers = (&self.server, &self.upstreams);
        setup(&self.idp, servers, &self.state, "")
    }

    pub(super) fn caller(&self, subject: &str, upstream: &str) -> Actor {
        let resource = format!("{}/mcp/{upstream}", self.gw.url);
        self.gw.bearer(&self.idp.access_token(subject, &resource))
    }

    pub(super) async fn session(&self, subject: &str, upstream: &str) -> Session {
        let caller = self.caller(subject, upstream);
        let path = format!("/mcp/{upstream}");
        caller.open_as(&path, "2025-06-18", json!({})).await
    }

    pub(super) fn url(&self, path: &str) -> String {
        format!("{}{path}", self.gw.url)
    }

    /// The page at `path` for one who logs in as `subject`.
    pub(super) async fn page(&self, browser: &mut Browser, path: &str, subject: &str) -> Page {
        let page = browser.open(&self.url(path)).await;
        let begun = Begun::of(&browser.submit(&page, &[("action", "login")]).await);
        self.idp.logs_in(subject, &begun.nonce, &json!({}));
        let done = self.back(browser, &begun).await;
        browser.open(&done.goes_on()).await
    }

    pub(super) async fn back(&self, browser: &mut Browser, begun: &Begun) -> Page {
        let query = [
            ("state", &*begun.state),
            ("code", "a-code-hunter2"),
            ("iss", &*self.idp.origin),
        ];
        let url = url::Url::parse_with_params(&self.url("/connect/callback/login"), query);
        browser.open(url.unwrap().as_str()).await
    }

    /// The answer to the code of the login that is kept: an ID token with these claims and, where it is told, a refresh
    /// token.
    pub(super) fn answers_login(
        &self,
        begun: &Begun,
        subject: &str,
        (changes, refresh): (&Value, Option<&str>),
    ) {
        let mut body = json!({
            "access_token": "opaque-hunter2", "token_type": "Bearer",
            "id_token": self.idp.id_token(subject, &begun.nonce, changes),
        });
        if let Some(refresh) = refresh {
            body["refresh_token"] = refresh.into();
        }
        self.idp.answers(200, body);
    }

    /// Connects `subject` from the page of `up`; what the last page says.
    pub(super) async fn connect(&self, subject: &str, tokens: (&Value, Option<&str>)) -> String {
        let mut browser = Browser::new();
        let page = self.page(&mut browser, "/connect/up", subject).await;
        let begun = Begun::of(&browser.submit(&page, &[("action", "connect")]).await);
        self.answers_login(&begun, subject, tokens);
        self.back(&mut browser, &begun).await.text
    }

    /// Forms of requests with this `grant_type` at the identity provider.
    pub(super) fn forms(&self, grant_type: &str) -> Vec<Form> {
        let forms = self.idp.seen().into_iter().map(|(_, form)| form);
        forms
            .filter(|form| form["grant_type"] == grant_type)
            .collect()
    }
}

/// An ID token that the gateway takes, and has to refresh before it is used: clocks may differ by a minute.
pub(super) fn ended() -> Value {
    json!({"exp": unix_now() - 5})
}

/// What the tool of `subject` says.
pub(super) async fn greeting(session: &Session, subject: &str) -> String {
    let answer = session.call(&format!("greet_{subject}"), json!({})).await;
    text_of(&answer.unwrap()).to_owned()
}
