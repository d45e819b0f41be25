//! HTTP+SSE of 2024-11-05: the upstream's messages come on one event stream, ours are posted to
//! the URL that its first event names. Spec: SPEC H-01, H-02, H-06, H-07.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::header::COOKIE;
use http::{StatusCode, Uri};
use http_body_util::{BodyExt, Limited};
use tokio::sync::{Semaphore, oneshot};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use url::Url;

use super::refused::refused;
use crate::cause::chain;
use crate::protocol::sse::{SseDecoder, SseEvent};
use crate::runtime::lifecycle::TaskSpawner;
use crate::upstream::carrier::http::body::UpstreamBody;
use crate::upstream::carrier::http::client::HttpClient;
use crate::upstream::carrier::http::http_session::ResponseBounds;
use crate::upstream::carrier::http::message_headers::MessageHeaders;
use crate::upstream::carrier::http::response_head::is_event_stream;
use crate::upstream::carrier::http::sticky_cookies::StickyCookies;
use crate::upstream::error::LinkError;
use crate::upstream::room::ArrivingMessage;

/// Bytes read of the answer to a post, whose body has no meaning.
const ANSWER_BYTES: usize = 64 * 1024;
/// Messages from destructors on their way at once.
const FAREWELLS: usize = 64;
/// Posts that may go on at once after their caller has left: of requests, and of answers and notifications, each. A
/// further one is dropped.
const LINGERING: usize = 64;
/// How long the post of an answer or notification is awaited: some upstreams keep the post waiting, or never end its
/// answer. A post also has this long to finish after the stream is over.
const TAKEN: Duration = Duration::from_secs(1);
/// How long a post may go on after its caller has left. A cancelled post may stop the work that it started upstream.
const LINGER: Duration = Duration::from_secs(5);

/// The sending half: posts to one URL.
#[derive(Debug)]
pub(crate) struct PostSender {
    way: Arc<PostRoute>,
    farewells: Arc<Semaphore>,
    /// Permits for posts of requests that were answered on the stream.
    asked: Arc<Semaphore>,
    /// Permits for posts of answers and notifications: separate from `asked`, as requests are many.
    told: Arc<Semaphore>,
    tasks: TaskSpawner,
}

/// Whether a post may go on after its caller has left.
#[derive(Debug, Clone, Default)]
pub(super) struct PostRelease(Arc<AtomicBool>);

impl PostRelease {
    /// Lets the post go on.
    pub(super) fn give(&self) {
        self.0.store(true, Ordering::Release);
    }

    fn is_given(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// The URL for posts, with its client.
#[derive(Debug)]
struct PostRoute {
    client: HttpClient,
    to: Uri,
    /// Those of the stream: posts have to reach its instance.
    cookies: StickyCookies,
    closed: CancellationToken,
}

/// The receiving half: the events after the first one.
#[derive(Debug)]
pub(crate) struct EventReader {
    body: UpstreamBody,
    decoder: SseDecoder,
    closed: CancellationToken,
}

/// Opens the stream and waits for its `endpoint` event.
pub(super) async fn open(
    client: &HttpClient,
    bounds: ResponseBounds,
    tasks: &TaskSpawner,
) -> Result<(PostSender, EventReader), LinkError> {
    let response = client.listen(MessageHeaders::default()).await?;
    if !response.status().is_success() {
        return Err(refused(&response));
    }
    if !is_event_stream(&response) {
        return Err(LinkError::Invalid("it opens no event stream".to_owned()));
    }
    let closed = CancellationToken::new();
    let (head, body) = response.into_parts();
    let mut reader = EventReader {
        body,
        decoder: SseDecoder::new(bounds.event),
        closed: closed.clone(),
    };
    let announced = loop {
        let event = reader.event(&mut ArrivingMessage::uncounted()).await;
        let event = event.ok_or(LinkError::Lost { last_words: None })?;
        if event.event.as_deref() == Some(b"endpoint") {
            break event.data;
        }
    };
    let to = resolve(client.uri(), &announced)?;
    let cookies = StickyCookies::default();
    cookies.begin(&head.headers, to.path());
    let way = PostRoute {
        to,
        client: client.clone(),
        cookies,
        closed,
    };
    let posts = PostSender {
        way: Arc::new(way),
        farewells: Arc::new(Semaphore::new(FAREWELLS)),
        asked: Arc::new(Semaphore::new(LINGERING)),
        told: Arc::new(Semaphore::new(LINGERING)),
        tasks: tasks.clone(),
    };
    Ok((posts, reader))
}

/// The URL for posts. Must be of the stream's own origin, as posts carry the configured headers. Spec: SPEC H-06, X-01.
fn resolve(stream: &Uri, announced: &[u8]) -> Result<Uri, LinkError> {
    let bad = |what: &str| LinkError::Invalid(format!("its endpoint event {what}"));
    let announced = std::str::from_utf8(announced).map_err(|_| bad("is no text"))?;
    let stream = Url::parse(&stream.to_string()).map_err(|_| bad("stands below no URL"))?;
    let mut to = stream
        .join(announced.trim())
        .map_err(|_| bad("is no URL"))?;
    if to.origin() != stream.origin() || !to.username().is_empty() || to.password().is_some() {
        return Err(bad("points to another origin"));
    }
    to.set_fragment(None);
    to.as_str().parse().map_err(|_| bad("is no URL"))
}

impl PostRoute {
    /// Posts one message, and reads the answer to the end, so that the connection can be used again.
    async fn post(&self, message: Bytes) -> Result<(), LinkError> {
        let headers = MessageHeaders::default().with(COOKIE, self.cookies.header());
        let response = self.client.post_to(&self.to, message, headers).await?;
        self.cookies.renew(response.headers());
        match response.status() {
            status if status.is_success() => {}
            StatusCode::NOT_FOUND | StatusCode::GONE => {
                self.closed.cancel();
                return Err(LinkError::SessionGone);
            }
            _ => return Err(refused(&response)),
        }
        let body = Limited::new(response.into_body(), ANSWER_BYTES);
        drop(body.collect().await);
        Ok(())
    }
}

impl PostSender {
    pub(super) fn closed(&self) -> &CancellationToken {
        &self.way.closed
    }

    /// Posts one request; its answer comes on the stream, maybe before this is ready: some upstreams keep
    /// the post waiting for as long as they work, or never end its answer.
    ///
    /// # Cancel safety
    /// The post is dropped, so that a request cancelled before it was sent is not sent afterwards. With `release` given
    /// before, the post goes on for a moment.
    pub(super) async fn send(
        &self,
        message: Bytes,
        release: &PostRelease,
    ) -> Result<(), LinkError> {
        self.post(message, release, &self.asked).await
    }

    async fn post(
        &self,
        message: Bytes,
        release: &PostRelease,
        lingering: &Arc<Semaphore>,
    ) -> Result<(), LinkError> {
        if self.closed().is_cancelled() {
            return Err(LinkError::SessionGone);
        }
        let (mut sender, outcome) = oneshot::channel();
        let (way, release) = (Arc::clone(&self.way), release.clone());
        let lingering = Arc::clone(lingering);
        self.tasks.spawn_service(async move {
            let stream_over = async {
                way.closed.cancelled().await;
                sleep(TAKEN).await;
            };
            let in_vain = async {
                tokio::select! {
                    () = sender.closed() => {
                        let place = lingering.try_acquire();
                        if release.is_given() && place.is_ok() {
                            sleep(LINGER).await;
                        }
                    }
                    () = stream_over => {}
                }
            };
            tokio::select! {
                biased;
                sent = way.post(message) => drop(sender.send(sent)),
                () = in_vain => {}
            }
        });
        let lost = |_| LinkError::Lost { last_words: None };
        outcome.await.map_err(lost)?
    }

    /// Posts a notification or a response. A post without a refusal in time counts as taken.
    pub(super) async fn tell(&self, message: Bytes) -> Result<(), LinkError> {
        let release = PostRelease::default();
        release.give();
        timeout(TAKEN, self.post(message, &release, &self.told))
            .await
            .unwrap_or(Ok(()))
    }

    /// Posts the cancellation of a request in the background, as soon as fewer than `FAREWELLS` messages are on their
    /// way; an upstream that takes none of them for `LINGER` does not get it.
    pub(super) fn cancel(&self, message: Bytes) {
        let (way, farewells) = (Arc::clone(&self.way), Arc::clone(&self.farewells));
        self.tasks.spawn_service(async move {
            let Ok(Ok(_place)) = timeout(LINGER, farewells.acquire()).await else {
                return;
            };
            if !way.closed.is_cancelled() {
                drop(timeout(LINGER, way.post(message)).await);
            }
        });
    }

    /// Posts a message in the background.
    pub(super) fn try_send(&self, message: Bytes) -> bool {
        let Ok(place) = Arc::clone(&self.farewells).try_acquire_owned() else {
            return false;
        };
        if self.closed().is_cancelled() {
            return false;
        }
        let way = Arc::clone(&self.way);
        self.tasks.spawn_service(async move {
            drop(timeout(LINGER, way.post(message)).await);
            drop(place);
        });
        true
    }
}

impl Drop for PostSender {
    fn drop(&mut self) {
        self.closed().cancel();
    }
}

impl EventReader {
    /// The next message. Comments and events of other names are skipped.
    pub(super) async fn next(&mut self, room: &mut ArrivingMessage) -> Option<Bytes> {
        loop {
            let event = self.event(room).await?;
            let is_message = event.event.as_deref().is_none_or(|name| name == b"message");
            if is_message && !event.data.is_empty() {
                return Some(event.data);
            }
        }
    }

    async fn event(&mut self, room: &mut ArrivingMessage) -> Option<SseEvent> {
        loop {
            match self.decoder.next() {
                Ok(Some(event)) => return Some(event),
                Ok(None) => {}
                Err(error) => {
                    tracing::warn!(error = chain(&error), "upstream event stream is invalid");
                    self.closed.cancel();
                    return None;
                }
            }
            let held = self.decoder.held();
            let frame = async {
                room.grow_to(held).await;
                self.body.frame().await
            };
            let frame = tokio::select! {
                () = self.closed.cancelled() => None,
                frame = frame => frame.and_then(Result::ok),
            };
            let Some(frame) = frame else {
                self.closed.cancel();
                return None;
            };
            if let Ok(data) = frame.into_data() {
                self.decoder.feed(data);
            }
        }
    }
}

impl Drop for EventReader {
    fn drop(&mut self) {
        self.closed.cancel();
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::config::{HttpCarrier, TransportKind};

    /// Reads a request up to `end`, and answers it.
    async fn answer(listener: &TcpListener, end: &[u8], response: &str) -> (String, TcpStream) {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut read = Vec::new();
        while !read.ends_with(end) {
            assert_ne!(stream.read_buf(&mut read).await.unwrap(), 0, "it is gone");
        }
        stream.write_all(response.as_bytes()).await.unwrap();
        (String::from_utf8(read).unwrap(), stream)
    }

    // Behind a balancer, only the instance of the stream knows the session of the post.
    #[tokio::test]
    async fn post_carries_the_cookie_of_its_stream() {
        const STREAM: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\
                              set-cookie: route=b; Path=/\r\n\r\nevent: endpoint\ndata: /m\n\n";
        const ACCEPTED: &str = "HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n";
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/sse", listener.local_addr().unwrap());
        let carrier = HttpCarrier {
            url: url.parse().unwrap(),
            transport: TransportKind::Streamable,
            headers: Vec::new(),
            ca_file: None,
            proxy: None,
            pool_idle: Duration::from_secs(4),
        };
        let client = HttpClient::new(&carrier).unwrap();
        let bounds = ResponseBounds {
            message: 1 << 20,
            event: 1 << 20,
            depth: 64,
        };
        let tasks = TaskSpawner::new();
        let ask = async {
            let (posts, reader) = open(&client, bounds, &tasks).await.unwrap();
            let message = Bytes::from_static(b"{}");
            let sent = posts.send(message, &PostRelease::default()).await;
            (sent, posts, reader)
        };
        let play = async {
            let (first, stream) = answer(&listener, b"\r\n\r\n", STREAM).await;
            let (second, _) = answer(&listener, b"{}", ACCEPTED).await;
            drop(stream);
            [first, second]
        };
        let ((sent, ..), heads) = tokio::join!(ask, play);
        assert!(sent.is_ok(), "{sent:?}");
        let with_cookie = heads.map(|head| head.contains("cookie: route=b\r\n"));
        assert_eq!(with_cookie, [false, true]);
    }

    fn resolved(announced: &str) -> Result<String, LinkError> {
        let stream = Uri::from_static("https://up.test:8443/a/sse?x=1");
        resolve(&stream, announced.as_bytes()).map(|to| to.to_string())
    }

    #[test]
    fn the_url_for_posts_is_resolved_against_the_stream() {
        for (announced, to) in [
            ("/messages?s=1", "https://up.test:8443/messages?s=1"),
            ("messages", "https://up.test:8443/a/messages"),
            ("?s=2", "https://up.test:8443/a/sse?s=2"),
            ("https://up.test:8443/m#x", "https://up.test:8443/m"),
        ] {
            assert_eq!(resolved(announced).unwrap(), to, "{announced}");
        }
    }

    // SPEC H-06.
    #[test]
    fn another_origin_is_refused() {
        for announced in [
            "http://169.254.169.254/latest",
            "//evil.test/m",
            "http://up.test:8443/m",
            "https://up.test/m",
            "https://user:pass@up.test:8443/m",
            "file:///etc/passwd",
        ] {
            assert!(resolved(announced).is_err(), "{announced}");
        }
    }
}
