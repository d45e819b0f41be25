use http::header::{ALLOW, COOKIE, ORIGIN, SET_COOKIE};
use http::{HeaderMap, HeaderValue, Uri};

use super::*;
use crate::call::Principal;
use crate::clock::SystemClock;
use crate::consent::consent_url;
use crate::grants::authorization::state_digest;
use crate::runtime::lifecycle::TaskSpawner;
use crate::telemetry::captured::LogCapture;
use crate::vault::samples::vault;
use crate::vault::{GrantKey, PendingRecord};

const CONFIG: &str = "[auth]\nmode = \"none\"\n[upstreams.up]\nurl = \"https://up.test/mcp\"\n\
                      [upstreams.up.auth]\nkind = \"user_key\"\n";

async fn pages(dir: &tempfile::TempDir) -> Arc<ConnectPages> {
    let config = crate::config::parse(CONFIG, "test.toml", &|_| None).unwrap();
    let (clock, tasks) = (Arc::new(SystemClock), TaskSpawner::new());
    let auth = Authenticator::new(&config.auth, &config.egress, clock, tasks);
    let pages = ConnectPages::new(ConnectParts {
        settings: Arc::new(config),
        vault: vault(dir).await,
        audit: AuditSink::idle(Arc::new(SystemClock)),
        sealer: Arc::new(Sealer::new(&[]).unwrap()),
        clock: Arc::new(SystemClock),
        tokens: Vec::new(),
        withheld: HashMap::new(),
        auth: auth.unwrap(),
        endpoints: Vec::new(),
    });
    pages.unwrap()
}

/// Sends a request with this query; returns status, headers and text.
async fn send(
    pages: &ConnectPages,
    method: &Method,
    query: &str,
    (headers, form): (&HeaderMap, &str),
) -> (StatusCode, HeaderMap, String) {
    let request = PageRequest {
        method,
        query: Some(query),
        headers,
        form: form.as_bytes(),
        upstream: pages.upstreams().first(),
    };
    let response = pages.answer(&request).await;
    let (parts, body) = response.into_parts();
    let text = String::from_utf8(body.to_vec()).unwrap();
    (parts.status, parts.headers, text)
}

#[test]
fn debug_output_of_a_request_hides_form_and_cookie() {
    let headers = HeaderMap::from_iter([(COOKIE, HeaderValue::from_static("a=hunter2"))]);
    let request = PageRequest {
        method: &Method::POST,
        query: Some("for=hunter2"),
        headers: &headers,
        form: b"key=hunter2",
        upstream: None,
    };
    let shown = format!("{request:?}");
    assert!(
        shown.contains("POST") && !shown.contains("hunter2"),
        "{shown}"
    );
}

// RFC 9110 §10.2.1
#[tokio::test]
async fn page_with_fewer_methods_names_only_those() {
    let dir = tempfile::tempdir().unwrap();
    let pages = pages(&dir).await;
    let (uri, headers) = (Uri::from_static("/connect/up/callback"), HeaderMap::new());
    let refused = [
        (pages.callback(&Method::HEAD, &uri, &headers).await, "GET"),
        (
            pages.login_callback(&Method::POST, None, &headers).await,
            "GET",
        ),
        (pages.client_document(&Method::POST), "GET, HEAD"),
    ];
    for (response, methods) in refused {
        assert_eq!(response.status(), StatusCode::METHOD_NOT_ALLOWED);
        assert_eq!(response.headers()[ALLOW], methods);
    }
}

#[tokio::test]
async fn aimed_link_changes_nothing_and_is_told_so() {
    let dir = tempfile::tempdir().unwrap();
    let pages = pages(&dir).await;
    let link = ConsentLink {
        owner: Principal::new("issuer", "mallory", "", Vec::new(), None).owner(),
        program: "editor".to_owned(),
        lacking: None,
    };
    let sealing = (&*pages.parts.sealer, &pages.parts.clock);
    let public_url = &pages.parts.settings.server.public_url;
    let url: Uri = consent_url(sealing, public_url, "up", &link)
        .parse()
        .unwrap();
    let aimed = url.query().unwrap();
    let nothing = (&HeaderMap::new(), "");
    let (status, _, text) = send(&pages, &Method::GET, aimed, nothing).await;
    assert_eq!(status, StatusCode::FORBIDDEN);
    assert!(
        text.contains("another person") && !text.contains("<form"),
        "{text}"
    );

    // A valid form of the person's own, sent to the link of another.
    let (status, headers, text) = send(&pages, &Method::GET, "", nothing).await;
    assert_eq!(status, StatusCode::OK);
    let cookie = headers[SET_COOKIE].to_str().unwrap();
    let cookie = cookie.split(';').next().unwrap();
    let (_, token) = text.split_once("name=\"token\" value=\"").unwrap();
    let token = token.split('"').next().unwrap();
    let mut headers = HeaderMap::new();
    headers.insert(COOKIE, cookie.parse().unwrap());
    headers.insert(ORIGIN, HeaderValue::try_from(&pages.origin).unwrap());
    let form = format!("token={token}&action=connect&key=mine");
    let sent = (&headers, &*form);
    let (status, _, _) = send(&pages, &Method::POST, aimed, sent).await;
    assert_eq!(status, StatusCode::FORBIDDEN);
    let mine = GrantKey::new(Principal::anonymous().owner(), "up");
    let theirs = GrantKey::new(link.owner, "up");
    for key in [&mine, &theirs] {
        assert!(pages.parts.vault.grant(key).await.unwrap().is_none());
    }
    // The same form is accepted at the page itself.
    let (status, _, text) = send(&pages, &Method::POST, "", sent).await;
    assert_eq!(status, StatusCode::OK, "{text}");
    assert!(pages.parts.vault.grant(&mine).await.unwrap().is_some());
    assert!(pages.parts.vault.grant(&theirs).await.unwrap().is_none());
}

// RFC 6749 §10.12; RFC 9700 §4.4.2.2
#[tokio::test]
async fn answer_is_taken_from_who_began_and_at_the_address_of_the_client() {
    let dir = tempfile::tempdir().unwrap();
    let pages = pages(&dir).await;
    let (_, headers, _) = send(&pages, &Method::GET, "", (&HeaderMap::new(), "")).await;
    let cookie = headers[SET_COOKIE].to_str().unwrap();
    let cookie = cookie.split(';').next().unwrap().parse().unwrap();
    let headers = HeaderMap::from_iter([(COOKIE, cookie)]);
    let browser = Browser::of(&headers, (&pages.parts.sealer, &pages.parts.clock));
    let here = Principal::anonymous().owner();
    let mallory = Principal::new("issuer", "mallory", "", Vec::new(), None).owner();
    let place = "/connect/up/callback";
    for (owner, path, cookie_digest, status, text) in [
        (mallory, place, browser.digest(), 403, "another person"),
        (here, place, "another".to_owned(), 403, "another browser"),
        (
            here,
            "/connect/callback/document",
            browser.digest(),
            403,
            "thrown away",
        ),
        // All that was checked is right, and no such authorization can be begun here.
        (here, place, browser.digest(), 404, "no such page"),
    ] {
        let pending = PendingRecord {
            upstream: "up".to_owned(),
            issuer: "https://as.test".to_owned(),
            token_endpoint: "https://as.test/token".to_owned(),
            revocation_endpoint: None,
            resource: "https://up.test/mcp".to_owned(),
            client_id: "client".to_owned(),
            auth_method: None,
            names_issuer: false,
            redirect_uri: pages.gateway.url_of(place),
            scopes: Vec::new(),
            verifier: None,
            nonce: None,
            cookie_digest,
            program: None,
        };
        let state = "s".repeat(43);
        let digest = state_digest(&state);
        let kept = pages.parts.vault.pending().put(owner, &digest, &pending);
        kept.await.unwrap();
        let uri: Uri = format!("{path}?state={state}&code=c").parse().unwrap();
        let response = pages.callback(&Method::GET, &uri, &headers).await;
        assert_eq!(response.status().as_u16(), status);
        let shown = String::from_utf8(response.into_body().to_vec()).unwrap();
        assert!(shown.contains(text), "{text} in {shown}");
        // Each is used up.
        let again = pages.callback(&Method::GET, &uri, &headers).await;
        let shown = String::from_utf8(again.into_body().to_vec()).unwrap();
        assert!(shown.contains("Nothing waits for this answer"), "{shown}");
    }
}

// Visitors without a login can send them.
#[tokio::test]
async fn stray_callbacks_make_one_line_a_minute() {
    let dir = tempfile::tempdir().unwrap();
    let pages = pages(&dir).await;
    let capture = LogCapture::begin();
    let (uri, headers) = (Uri::from_static("/connect/callback/x"), HeaderMap::new());
    for _ in 0..3 {
        let answer = pages.callback(&Method::GET, &uri, &headers).await;
        assert_eq!(answer.status(), StatusCode::FORBIDDEN);
    }
    let warned = capture.of_level("WARN");
    let lines = warned.iter().map(ToString::to_string);
    let lines = lines.filter(|line| line.contains("callback of an authorization was refused"));
    assert_eq!(lines.count(), 1);
}
