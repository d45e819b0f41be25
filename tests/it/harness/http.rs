//! An HTTP client that trusts nothing: every response header must be on the list below.

use bytes::Bytes;
use http::header::{self, HeaderName, HeaderValue};
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};

use super::events::EventStream;
use super::session::Session;
use super::within;

/// Response headers that a gateway may send, whatever the upstream sent.
const ALLOWED: &[&str] = &[
    "accept-encoding",
    "access-control-allow-headers",
    "access-control-allow-methods",
    "access-control-allow-origin",
    "access-control-expose-headers",
    "access-control-max-age",
    "allow",
    "cache-control",
    "connection",
    "content-length",
    "content-type",
    "date",
    "mcp-protocol-version",
    "mcp-session-id",
    "retry-after",
    "transfer-encoding",
    "vary",
    "www-authenticate",
    "x-accel-buffering",
    "x-content-type-options",
    "x-request-id",
];

/// Both answers that a POST may get. Spec: SPEC T-10.
pub(crate) const BOTH: &str = "application/json, text/event-stream";

/// A client of the gateway, with or without a token.
#[derive(Clone)]
pub(crate) struct Actor {
    client: Client<HttpConnector, Full<Bytes>>,
    base: String,
    token: Option<String>,
}

impl Actor {
    /// `base` is scheme, host and port.
    pub(crate) fn new(base: &str, token: Option<String>) -> Self {
        let client = Client::builder(TokioExecutor::new()).build_http();
        Self {
            client,
            base: base.trim_end_matches('/').to_owned(),
            token,
        }
    }

    /// The token it presents.
    pub(crate) fn token(&self) -> Option<&str> {
        self.token.as_deref()
    }

    /// Any request. `headers` replace the defaults: `Authorization` from the token, and for a POST
    /// `Content-Type: application/json` and an `Accept` of both kinds; an empty value removes one.
    pub(crate) async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Answer {
        let what = format!("an answer to {method} {path}");
        within(&what, self.try_send(method, path, headers, body.into()))
            .await
            .unwrap()
    }

    /// Any request, where the connection may be refused or closed.
    pub(crate) async fn try_send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Bytes,
    ) -> Result<Answer, hyper_util::client::legacy::Error> {
        let mut all = HeaderMap::new();
        if let Some(token) = &self.token {
            all.insert(
                header::AUTHORIZATION,
                format!("Bearer {token}").parse().unwrap(),
            );
        }
        if method == Method::POST {
            all.insert(
                header::CONTENT_TYPE,
                HeaderValue::from_static("application/json"),
            );
            all.insert(header::ACCEPT, HeaderValue::from_static(BOTH));
        } else if method == Method::GET {
            all.insert(
                header::ACCEPT,
                HeaderValue::from_static("text/event-stream"),
            );
        }
        for (name, _) in headers {
            all.remove(*name);
        }
        for (name, value) in headers.iter().filter(|(_, value)| !value.is_empty()) {
            let name: HeaderName = name.parse().unwrap();
            all.append(name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        let uri = format!("{}{path}", self.base);
        let mut request = Request::builder().method(method).uri(uri);
        *request.headers_mut().unwrap() = all;
        let response = self
            .client
            .request(request.body(Full::new(body)).unwrap())
            .await?;
        for name in response.headers().keys() {
            assert!(
                ALLOWED.contains(&name.as_str()),
                "unexpected response header {name}"
            );
        }
        Ok(Answer(response))
    }

    /// POSTs a JSON value.
    pub(crate) async fn post(&self, path: &str, headers: &[(&str, &str)], body: &Value) -> Answer {
        self.send(Method::POST, path, headers, body.to_string())
            .await
    }

    /// POSTs exactly these bytes.
    pub(crate) async fn post_raw(
        &self,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Answer {
        self.send(Method::POST, path, headers, body).await
    }

    /// GETs a path.
    pub(crate) async fn get(&self, path: &str, headers: &[(&str, &str)]) -> Answer {
        self.send(Method::GET, path, headers, Bytes::new()).await
    }

    /// GETs a path, where the port may be closed.
    pub(crate) async fn try_get(
        &self,
        path: &str,
    ) -> Result<Answer, hyper_util::client::legacy::Error> {
        self.try_send(Method::GET, path, &[("accept", "*/*")], Bytes::new())
            .await
    }

    /// The body of a path on a server other than the gateway: no header is checked.
    pub(crate) async fn try_get_any(&self, path: &str) -> String {
        let uri = format!("{}{path}", self.base).parse().unwrap();
        let response = self.client.get(uri).await.unwrap();
        let body = response.into_body().collect().await.unwrap();
        String::from_utf8(body.to_bytes().to_vec()).unwrap()
    }

    /// A session of the newest legacy revision that can be asked everything.
    pub(crate) async fn open(&self, path: &str) -> Session {
        self.open_as(path, "2025-11-25", everything()).await
    }

    /// A session of this revision with these client capabilities, initialised.
    pub(crate) async fn open_as(&self, path: &str, revision: &str, caps: Value) -> Session {
        let answer = self.post(path, &[], &initialize(1, revision, &caps)).await;
        Session::begin(self.clone(), path, answer).await
    }
}

/// Every client capability of 2025-11-25 but tasks.
pub(crate) fn everything() -> Value {
    json!({
        "sampling": {}, "elicitation": {"form": {}, "url": {}}, "roots": {"listChanged": true},
    })
}

/// An `initialize` request.
pub(crate) fn initialize(id: i64, revision: &str, capabilities: &Value) -> Value {
    json!({
        "jsonrpc": "2.0", "id": id, "method": "initialize",
        "params": {
            "protocolVersion": revision, "capabilities": capabilities,
            "clientInfo": {"name": "harness", "version": "1"},
        },
    })
}

/// Removes the request id from an error of the gateway, so that errors of several requests can be compared; fails if
/// the error has no request id.
pub(crate) fn without_request_id(error: &mut Value) {
    let data = error["data"].as_object_mut().expect("data");
    data.remove("requestId").expect("the id of its request");
}

/// A response whose body has not been read.
pub(crate) struct Answer(http::Response<Incoming>);

impl Answer {
    pub(crate) fn status(&self) -> u16 {
        self.0.status().as_u16()
    }

    /// Fails the test on any other status, showing the body.
    pub(crate) async fn expect(self, status: StatusCode) -> Self {
        if self.0.status() == status {
            return self;
        }
        let found = self.0.status();
        panic!("{found} instead of {status}: {}", self.text().await);
    }

    /// The only value of a header.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut values = self.0.headers().get_all(name).iter();
        let value = values.next().map(|value| value.to_str().unwrap());
        assert!(values.next().is_none(), "{name} comes more than once");
        value
    }

    /// Whether the body is an event stream.
    pub(crate) fn is_stream(&self) -> bool {
        self.header("content-type")
            .is_some_and(|kind| kind.starts_with("text/event-stream"))
    }

    /// The first message, in either form.
    pub(crate) async fn message(self) -> Value {
        if self.is_stream() {
            self.events().message().await.expect("a message")
        } else {
            self.json().await
        }
    }

    pub(crate) async fn bytes(self) -> Bytes {
        within("the whole body", self.0.into_body().collect())
            .await
            .unwrap()
            .to_bytes()
    }

    pub(crate) async fn text(self) -> String {
        String::from_utf8(self.bytes().await.to_vec()).unwrap()
    }

    pub(crate) async fn json(self) -> Value {
        let text = self.text().await;
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text:?}"))
    }

    /// The JSON-RPC error of a refusal.
    pub(crate) async fn error(self) -> Value {
        let mut body = self.json().await;
        assert!(body["error"].is_object(), "{body} is no error");
        body["error"].take()
    }

    /// The body as events.
    pub(crate) fn events(self) -> EventStream {
        assert!(
            self.is_stream(),
            "content type {:?}",
            self.header("content-type")
        );
        EventStream::new(self.0.into_body())
    }
}
