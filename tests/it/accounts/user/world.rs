//! A gateway whose user has accounts at an upstream, and the user's browser.

use std::collections::BTreeMap;
use std::path::Path;

use http::StatusCode;
use http::header::{COOKIE, LOCATION, ORIGIN, SET_COOKIE};
use serde_json::json;
use url::Url;

use super::super::world::{AuthServer, GuardedUpstream, Verdict};
use super::server::ConsentServer;
use crate::harness::session::{Session, text_of};
use crate::harness::{Gateway, Setup, eventually};

/// A gateway before an upstream that takes the tokens of a server.
pub(super) struct World {
    pub(super) gw: Gateway,
    pub(super) server: ConsentServer,
    pub(super) upstream: GuardedUpstream,
    pub(super) state: tempfile::TempDir,
}

/// An upstream that takes the tokens of `server`, which its metadata names.
pub(in crate::accounts) async fn upstream_of(server: &ConsentServer) -> GuardedUpstream {
    let unused = AuthServer::start().await;
    let upstream = GuardedUpstream::start(&unused, &["--era", "dual"]).await;
    upstream.publishes(json!({
        "resource": upstream.url(), "authorization_servers": [server.origin],
        "scopes_supported": ["notes:read"],
    }));
    let knows = server.clone();
    upstream.judges(move |token, _| Verdict::of(token.is_some_and(|token| knows.knows(token))));
    upstream
}

/// The tables of a gateway whose accounts are in `database`, under a key in `state`.
pub(super) fn tables(state: &Path, database: &str, keys: &str) -> String {
    let key = state.join("vault.key").display().to_string();
    std::fs::write(&key, "k".repeat(32)).unwrap();
    format!(
        "[upstreams.up.auth]\nkind = \"user\"\n{keys}\n[egress]\nallow = [\"127.0.0.1\"]\n\
         [database]\nurl = \"{database}\"\n[keys]\nvault = [{{ id = \"k1\", file = \"{key}\" }}]\n"
    )
}

/// A gateway before `upstream` whose accounts are in `state`, with further keys of the account.
pub(in crate::accounts) fn setup(upstream: &GuardedUpstream, state: &Path, keys: &str) -> Setup {
    let database = format!("sqlite:{}", state.join("test.db").display());
    Setup::open()
        .url("up", &upstream.url(), "")
        .toml(&tables(state, &database, keys))
}

impl World {
    pub(super) async fn start() -> Self {
        Self::with(&ConsentServer::start().await, "").await
    }

    /// With further keys of the account.
    pub(super) async fn with(server: &ConsentServer, keys: &str) -> Self {
        let upstream = upstream_of(server).await;
        let state = tempfile::tempdir().unwrap();
        Self {
            gw: setup(&upstream, state.path(), keys).start().await,
            server: server.clone(),
            upstream,
            state,
        }
    }

    pub(super) fn browser(&self) -> Browser {
        Browser::of(&self.gw)
    }

    /// Connects the account, from the page of the upstream to the end.
    pub(super) async fn connect(&self) {
        let text = self.browser().connect("/connect/up").await;
        assert!(text.contains("is connected"), "{text}");
    }

    /// A session of a client that cannot show URLs.
    pub(super) async fn plain(&self) -> Session {
        let user = self.gw.anonymous();
        user.open_as("/mcp/up", "2025-06-18", json!({})).await
    }

    /// Connects the account, and makes a call with it; the session.
    pub(super) async fn in_use(&self) -> Session {
        self.connect().await;
        let session = self.plain().await;
        assert_eq!(echo(&session, "before").await, "before");
        session
    }

    /// The tokens that the upstream was sent with the body that holds `text`.
    pub(super) fn tokens_of(&self, text: &str) -> Vec<String> {
        let seen = self.upstream.seen();
        let of = seen.into_iter().filter(|(_, body)| body.contains(text));
        of.map(|(header, _)| header.unwrap_or_default()).collect()
    }

    /// Fails if the files of the gateway hold one of `secrets`.
    pub(super) fn files_hold_none(&self, secrets: &[String]) {
        for file in std::fs::read_dir(self.state.path()).unwrap() {
            let path = file.unwrap().path();
            let bytes = std::fs::read(&path).unwrap();
            for secret in secrets {
                let mut windows = bytes.windows(secret.len());
                let holds = windows.any(|part| part == secret.as_bytes());
                assert!(!holds, "{secret} in {}", path.display());
            }
        }
    }
}

/// Calls `echo`; returns its text, or the text of the error.
pub(super) async fn echo(session: &Session, text: &str) -> String {
    match session.call("echo", json!({ "text": text })).await {
        Ok(result) => text_of(&result).to_owned(),
        Err(error) => error.to_string(),
    }
}

/// Calls `echo` with `text` until the user is asked to connect; what is said then.
pub(super) async fn asked(session: &Session, text: &str) -> String {
    eventually("the user is asked", async || {
        let said = echo(session, text).await;
        said.contains("/connect/up?for=").then_some(said)
    })
    .await
}

/// Path and query of the first URL in `text`.
pub(super) fn path_in(text: &str) -> String {
    let mut words = text.split_whitespace();
    let url = words.find(|word| word.starts_with("http"));
    let url = url.unwrap_or_else(|| panic!("no URL in {text}"));
    let url = Url::parse(url).unwrap();
    format!("{}?{}", url.path(), url.query().unwrap_or_default())
}

/// A browser with the one cookie of the gateway.
pub(super) struct Browser {
    client: reqwest::Client,
    origin: String,
    pub(super) cookie: Option<String>,
}

/// A page, or where a browser is sent.
pub(super) struct Seen {
    pub(super) status: StatusCode,
    pub(super) text: String,
}

impl Browser {
    pub(super) fn of(gw: &Gateway) -> Self {
        let client = reqwest::Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .build();
        Self {
            client: client.unwrap(),
            origin: Url::parse(&gw.url).unwrap().origin().ascii_serialization(),
            cookie: None,
        }
    }

    async fn sent(&mut self, mut request: reqwest::RequestBuilder) -> Seen {
        if let Some(cookie) = &self.cookie {
            request = request.header(COOKIE, cookie);
        }
        let answer = request.send().await.unwrap();
        if let Some(cookie) = answer.headers().get(SET_COOKIE) {
            let cookie = cookie.to_str().unwrap();
            self.cookie = cookie.split(';').next().map(str::to_owned);
        }
        Seen {
            status: answer.status(),
            text: answer.text().await.unwrap(),
        }
    }

    /// Opens a page of the gateway.
    pub(super) async fn open(&mut self, path: &str) -> Seen {
        let request = self.client.get(format!("{}{path}", self.origin));
        self.sent(request).await
    }

    /// Opens the page at `path` and sends its form with `action`.
    pub(super) async fn submit(&mut self, path: &str, action: &str) -> Seen {
        let page = self.open(path).await;
        let token = page.text.split_once("name=\"token\" value=\"");
        let token = token
            .unwrap_or_else(|| panic!("no form in {}", page.text))
            .1;
        let token = token.split('"').next().unwrap().to_owned();
        let body = url::form_urlencoded::Serializer::new(String::new())
            .extend_pairs([("token", &*token), ("action", action)])
            .finish();
        let request = self.client.post(format!("{}{path}", self.origin));
        let request = request.header(ORIGIN, self.origin.clone()).body(body);
        self.sent(request).await
    }

    /// Begins an authorization at `path`; where the page leads.
    pub(super) async fn begin(&mut self, path: &str) -> Url {
        self.begin_by(path, "connect").await
    }

    /// [`begin`](Self::begin) by the button with `action`.
    pub(super) async fn begin_by(&mut self, path: &str, action: &str) -> Url {
        let page = self.submit(path, action).await;
        assert_eq!(page.status, StatusCode::OK, "{}", page.text);
        let url = page
            .text
            .split_once("http-equiv=\"refresh\" content=\"1;url=");
        let url = url
            .unwrap_or_else(|| panic!("leads nowhere: {}", page.text))
            .1;
        let url = url.split('"').next().unwrap().replace("&amp;", "&");
        Url::parse(&url).unwrap()
    }

    /// Follows redirects from `url` until they lead to the callback; its path and query.
    pub(super) async fn agree(&self, mut url: Url) -> String {
        let mut cookies = BTreeMap::new();
        for _ in 0..20 {
            let pairs = cookies
                .iter()
                .map(|(name, value)| format!("{name}={value}"));
            let header = pairs.collect::<Vec<_>>().join("; ");
            let request = self.client.get(url.clone()).header(COOKIE, header);
            let answer = request.send().await.unwrap();
            for cookie in answer.headers().get_all(SET_COOKIE) {
                let pair = cookie.to_str().unwrap().split(';').next().unwrap();
                let (name, value) = pair.split_once('=').unwrap();
                cookies.insert(name.to_owned(), value.to_owned());
            }
            let status = answer.status();
            let location = answer.headers().get(LOCATION).cloned();
            let Some(location) = location else {
                panic!(
                    "{url} leads nowhere: {status} {}",
                    answer.text().await.unwrap()
                );
            };
            url = url.join(location.to_str().unwrap()).unwrap();
            if url.origin().ascii_serialization() == self.origin {
                return format!("{}?{}", url.path(), url.query().unwrap_or_default());
            }
        }
        panic!("no end of redirects");
    }

    /// From the page at `path` to the end; the last page.
    pub(super) async fn connect(mut self, path: &str) -> String {
        let url = self.begin(path).await;
        let callback = self.agree(url).await;
        self.open(&callback).await.text
    }
}

/// The members of the query of `path`, with one of them replaced, or taken out.
pub(super) fn with_query(path: &str, name: &str, value: Option<&str>) -> String {
    let (place, query) = path.split_once('?').unwrap();
    let pairs = url::form_urlencoded::parse(query.as_bytes()).into_owned();
    let mut pairs: Vec<(String, String)> = pairs.filter(|(found, _)| found != name).collect();
    pairs.extend(value.map(|value| (name.to_owned(), value.to_owned())));
    let query = url::form_urlencoded::Serializer::new(String::new())
        .extend_pairs(pairs)
        .finish();
    format!("{place}?{query}")
}
