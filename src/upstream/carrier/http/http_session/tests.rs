use http::header::{DATE, RETRY_AFTER};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::config::{HttpCarrier, TransportKind};
use crate::protocol::ProgressNotice;
use crate::upstream::carrier::http::get_stream::NoGetStream;

/// The largest event that is read, bytes.
const EVENT: usize = 1 << 10;

fn wire(listener: &TcpListener) -> HttpSession {
    let url = format!("http://{}/mcp", listener.local_addr().unwrap());
    let carrier = HttpCarrier {
        url: url.parse().unwrap(),
        transport: TransportKind::Streamable,
        headers: Vec::new(),
        ca_file: None,
        proxy: None,
        pool_idle: Duration::from_secs(4),
    };
    let bounds = ResponseBounds {
        message: 1 << 20,
        event: EVENT,
        depth: 64,
    };
    HttpSession::new("up".into(), HttpClient::new(&carrier).unwrap(), bounds)
}

/// Reads one request and answers it with a stream of `events`, ignoring write errors.
async fn answer_with(stream: &mut TcpStream, events: &str) {
    answer_as(stream, "text/event-stream", events).await;
}

/// [`answer_with`] with a body of any media type.
async fn answer_as(stream: &mut TcpStream, media: &str, events: &str) {
    let mut read = Vec::new();
    while !read.ends_with(b"{}") {
        assert_ne!(stream.read_buf(&mut read).await.unwrap(), 0, "it is gone");
    }
    let response = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: {media}\r\n\
         transfer-encoding: chunked\r\n\r\n{:x}\r\n{events}\r\n0\r\n\r\n",
        events.len()
    );
    // The other side may have had enough.
    stream
        .write_all(response.as_bytes())
        .await
        .unwrap_or_default();
}

/// The same with one notice and the reply.
async fn answer(stream: &mut TcpStream) {
    let events = concat!(
        "data: {\"jsonrpc\":\"2.0\",\"method\":\"a\"}\n\n",
        "data: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n\n"
    );
    answer_with(stream, events).await;
}

#[tokio::test]
async fn a_reply_on_a_stream_leaves_its_connection_to_the_next_request() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let wire = wire(&listener);
    let ask = async {
        let take = &mut |message: Message| message.id().is_some().then_some(message);
        let body = || Bytes::from_static(b"{}");
        wire.request(body(), CallOrigin::default(), take)
            .await
            .unwrap();
        let answer = wire.post(body(), MessageHeaders::default()).await.unwrap();
        wire.read(answer, take).await.unwrap();
        wire.request(body(), CallOrigin::default(), take)
            .await
            .unwrap();
    };
    let play = async {
        let mut stream = listener.accept().await.unwrap().0;
        for _ in 0..3 {
            answer(&mut stream).await;
        }
    };
    tokio::join!(ask, play);
}

// Spec: RFC 8259 §8.1.
#[tokio::test]
async fn a_byte_order_mark_hides_no_reply() {
    let reply = "\u{feff}{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}";
    let (_, reply) = asked("application/json", reply, |_| {}).await;
    assert_eq!(reply.unwrap().number(), Some(1));
}

// Spec: SPEC U-12. The idle clock of a call begins again with each.
#[tokio::test]
async fn piece_of_a_whole_body_is_a_sign_of_life() {
    let reply = r#"{"jsonrpc":"2.0","id":1,"result":{}}"#;
    let (taken, reply) = asked("application/json", reply, |_| {}).await;
    assert!(reply.is_ok(), "{reply:?}");
    assert_eq!(taken, ["taken", "reply"]);
}

// Spec: SPEC U-12: the status alone is an answer.
#[tokio::test]
async fn refusal_without_end_of_its_body_is_one() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let wire = wire(&listener);
    let ask = async {
        let message = Bytes::from_static(b"{}");
        let answer = wire.post(message, MessageHeaders::default()).await.unwrap();
        tokio::time::pause();
        let mut record = Record::default();
        let reply = wire.read(answer, &mut record);
        tokio::time::timeout(Duration::from_mins(1), reply).await
    };
    let play = async {
        let mut stream = listener.accept().await.unwrap().0;
        let mut read = Vec::new();
        while !read.ends_with(b"{}") {
            assert_ne!(stream.read_buf(&mut read).await.unwrap(), 0, "it is gone");
        }
        let begun = "HTTP/1.1 404 Not Found\r\ncontent-length: 9\r\n\r\nNot";
        stream.write_all(begun.as_bytes()).await.unwrap();
        stream
    };
    let (reply, _stream) = tokio::join!(ask, play);
    let reply = reply.expect("an answer in time");
    assert!(matches!(reply, Err(LinkError::Status(404))), "{reply:?}");
}

// The C# SDK opens one stream in a session, ever. Another replica had it before.
#[tokio::test]
async fn only_stream_of_an_adopted_session_is_spent() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let wire = Arc::new(wire(&listener));
    wire.continue_as(HeaderValue::from_static("a-session"));
    let listen = wire.listen(|_| {}, |_: Message| None);
    let play = async {
        let mut stream = listener.accept().await.unwrap().0;
        let mut read = Vec::new();
        while !read.ends_with(b"\r\n\r\n") {
            assert_ne!(stream.read_buf(&mut read).await.unwrap(), 0, "it is gone");
        }
        let said = "This server does not support multiple GET requests.";
        let head = format!("HTTP/1.1 400 Bad Request\r\ncontent-length: {}", said.len());
        let refusal = format!("{head}\r\n\r\n{said}");
        stream.write_all(refusal.as_bytes()).await.unwrap();
        stream
    };
    let (none, _stream) = tokio::join!(listen, play);
    assert_eq!(none, NoGetStream::Spent);
}

/// Records the messages that it takes.
#[derive(Default)]
struct Record(Vec<String>);

impl MessageSink for Record {
    fn message(&mut self, message: Message) -> Option<Message> {
        self.0.push(message.method().unwrap_or("reply").to_owned());
        message.id().is_some().then_some(message)
    }

    fn progress(&mut self, progress: &ProgressNotice<'_>) -> bool {
        let is_ours = progress.is_of("1");
        self.0.extend(is_ours.then(|| "progress".to_owned()));
        is_ours
    }

    fn taken(&mut self) {
        self.0.push("taken".to_owned());
    }
}

fn progress(token: u64) -> String {
    format!(
        "data: {{\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\
         \"params\":{{\"progressToken\":{token},\"progress\":1}}}}\n\n"
    )
}

async fn record(events: String) -> (Vec<String>, Result<Message, LinkError>) {
    asked("text/event-stream", &events, |_| {}).await
}

#[tokio::test]
async fn progress_of_the_request_is_told_apart_and_all_is_taken_in_order() {
    let first = progress(1);
    let named = format!("event: message\n{first}");
    let with_id = format!("id: 1\n{first}");
    let foreign = progress(2);
    let log = "data: {\"jsonrpc\":\"2.0\",\"method\":\"log\"}\n\n";
    let reply = "data: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n\n";
    let (mut taken, outcome) = record(
        [&first, &named, log, &with_id, &foreign, &first, reply]
            .map(String::from)
            .concat(),
    )
    .await;
    assert!(outcome.is_ok());
    assert_eq!(taken.last().map(String::as_str), Some("taken"));
    taken.retain(|what| what != "taken");
    let expected = [
        "progress",
        "progress",
        "log",
        "progress",
        "notifications/progress",
        "progress",
        "reply",
    ];
    assert_eq!(taken, expected);
}

#[tokio::test]
async fn what_came_before_an_event_that_is_too_large_is_taken() {
    let large = format!("data: {}\n\n", "x".repeat(2 * EVENT));
    let (taken, outcome) = record(progress(1) + &large).await;
    assert!(
        matches!(outcome, Err(LinkError::TooLarge { .. })),
        "{outcome:?}"
    );
    assert_eq!(taken.first().map(String::as_str), Some("progress"));
    assert_eq!(taken.last().map(String::as_str), Some("taken"));
}

/// The messages and success of a request; see [`asked`].
async fn outcome(media: &str, body: &str, prepare: impl Fn(&HttpSession)) -> (Vec<String>, bool) {
    let (mut taken, reply) = asked(media, body, prepare).await;
    taken.retain(|what| what != "taken");
    (taken, reply.is_ok())
}

/// What is taken of the answer `body` to a request, and the reply; `prepare` sets up `wire` before.
async fn asked(
    media: &str,
    body: &str,
    prepare: impl Fn(&HttpSession),
) -> (Vec<String>, Result<Message, LinkError>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let wire = wire(&listener);
    prepare(&wire);
    let mut record = Record::default();
    let ask = wire.request(
        Bytes::from_static(b"{}"),
        CallOrigin::default(),
        &mut record,
    );
    let play = async {
        let mut stream = listener.accept().await.unwrap().0;
        answer_as(&mut stream, media, body).await;
        stream
    };
    let (reply, _stream) = tokio::join!(ask, play);
    (record.0, reply)
}

// Spec: RFC 9110 §8.3.1: neither case nor parameters of a media type make another one.
#[rstest::rstest]
#[case("text/event-stream", true)]
#[case("Text/Event-Stream; charset=UTF-8", true)]
#[case("text/event-stream;charset=utf-8", true)]
#[case("text/event-streams", false)]
#[tokio::test]
async fn an_event_stream_is_known_by_its_media_type(#[case] media: &str, #[case] is_one: bool) {
    let event = "data: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n\n";
    let (_, is_ok) = outcome(media, event, |_| {}).await;
    assert_eq!(is_ok, is_one);
}

// SPEC §1 ("JSON-RPC arrays"): only 2025-03-26 has arrays.
#[rstest::rstest]
#[case("2025-03-26", true)]
#[case("2025-06-18", false)]
#[tokio::test]
async fn an_array_of_messages_is_taken_from_one_revision(
    #[case] version: &'static str,
    #[case] is_taken: bool,
) {
    let array = concat!(
        r#"[{"jsonrpc":"2.0","method":"a"},{"no":"message"},"#,
        r#"{"jsonrpc":"2.0","id":1,"result":{}},{"jsonrpc":"2.0","method":"b"}]"#
    );
    let event = format!("data: {array}\n\n");
    for (media, body) in [
        ("application/json", array),
        ("text/event-stream", event.as_str()),
    ] {
        let (taken, is_ok) = outcome(media, body, |wire| wire.set_version(version)).await;
        assert_eq!(is_ok, is_taken, "{media}");
        assert_eq!(
            taken,
            ["a", "reply", "b"]
                .get(..3 * usize::from(is_taken))
                .unwrap()
        );
    }
}

// Spec: RFC 9110 §10.2.3.
#[test]
fn the_time_to_come_back_is_in_seconds_or_on_the_clock_of_the_upstream() {
    const DAY: &str = "Sun, 06 Nov 1994";
    let waits = |value: &str, date: &str| {
        let mut headers = HeaderMap::new();
        headers.insert(RETRY_AFTER, value.parse().unwrap());
        headers.insert(DATE, format!("{DAY} {date}").parse().unwrap());
        retry_after(&headers).map(|wait| wait.as_secs())
    };
    assert_eq!(waits("120", "08:49:37 GMT"), Some(120));
    let at = |time: &str| waits(&format!("{DAY} {time}"), "08:49:37 GMT");
    assert_eq!(at("08:50:07 GMT"), Some(30));
    assert_eq!(at("08:49:07 GMT"), Some(0), "it is past");
    for unread in ["soon", "-1", "", "08:50:07 GMT"] {
        assert_eq!(waits(unread, "08:49:37 GMT"), None, "{unread}");
    }
    assert_eq!(waits(&format!("{DAY} 08:50:07 GMT"), "now"), None);
}

// Spec: SPEC U-02. The bodies of lost sessions are those of the TypeScript and the Python SDK, the latter also under the
// id of the request.
#[rstest::rstest]
#[case(
    r#""id":1,"error":{"code":-32601,"message":"Method not found"}"#,
    false
)]
#[case(
    r#""id":1,"error":{"code":-32002,"message":"Resource not found"}"#,
    false
)]
#[case(
    r#""id":null,"error":{"code":-32001,"message":"Session not found"}"#,
    true
)]
#[case(
    r#""id":"server-error","error":{"code":-32600,"message":"Session not found"}"#,
    true
)]
#[case(
    r#""id":1,"error":{"code":-32600,"message":"Session not found"}"#,
    true
)]
#[case(r#""id":1,"error":{"code":-32602,"message":"unknown session"}"#, true)]
#[case(r#""id":1,"error":{"code":-32603,"message":"not found"}"#, true)]
#[case(
    r#""id":null,"error":{"code":-32601,"message":"Method not found"}"#,
    true
)]
fn a_404_costs_no_session_where_it_is_an_error_about_the_request(
    #[case] body: &str,
    #[case] is_lost: bool,
) {
    let body = format!(r#"{{"jsonrpc":"2.0",{body}}}"#);
    let message = Message::parse(body.clone().into(), 64).unwrap();
    for status in [StatusCode::NOT_FOUND, StatusCode::GONE] {
        let found = is_of_lost_session(status, body.as_bytes(), Some(&message));
        assert_eq!(found, is_lost, "{status}");
    }
    assert!(is_of_lost_session(StatusCode::NOT_FOUND, b"", None));
}

// The Rust SDK before 0.17. Others mean a login.
#[test]
fn unauthorized_session_of_the_rust_sdk_is_lost() {
    let is_lost = |body: &[u8]| is_of_lost_session(StatusCode::UNAUTHORIZED, body, None);
    assert!(is_lost(b"Unauthorized: Session not found"));
    assert!(!is_lost(b"Unauthorized: your session has expired"));
    assert!(!is_lost(b""));
}

// Spec: MCP 2025-11-25, Authorization: 401 asks for a token. Servers without an SDK answer with the id of the request.
#[rstest::rstest]
#[case::unauthorized(401, false)]
#[case::bad_request(400, true)]
#[case::forbidden(403, true)]
#[case::broken(500, true)]
#[tokio::test]
async fn unauthorized_is_no_reply(#[case] status: u16, #[case] is_reply: bool) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let wire = wire(&listener);
    let mut record = Record::default();
    let own = CallOrigin::default();
    let ask = wire.request(Bytes::from_static(b"{}"), own, &mut record);
    let play = async {
        let mut stream = listener.accept().await.unwrap().0;
        let mut read = Vec::new();
        while !read.ends_with(b"{}") {
            assert_ne!(stream.read_buf(&mut read).await.unwrap(), 0, "it is gone");
        }
        let said = r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32000,"message":"Unauthorized"}}"#;
        let head = format!("HTTP/1.1 {status} No\r\ncontent-length: {}", said.len());
        let refusal = format!("{head}\r\n\r\n{said}");
        stream.write_all(refusal.as_bytes()).await.unwrap();
        stream
    };
    let (reply, _stream) = tokio::join!(ask, play);
    match reply {
        Ok(reply) => assert!(is_reply, "{reply:?}"),
        Err(LinkError::Status(found)) => assert_eq!((found, is_reply), (status, false)),
        Err(error) => panic!("{error}"),
    }
}

// AWS, nginx, HAProxy and others find the instance of a session by a cookie.
#[tokio::test]
async fn cookie_of_a_session_is_sent_in_that_session_alone() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let [first, second] = [(); 2].map(|()| wire(&listener));
    let ask = async {
        for wire in [&first, &first, &first, &second] {
            let take = &mut |message: Message| message.id().is_some().then_some(message);
            let body = Bytes::from_static(b"{}");
            let own = CallOrigin::default();
            wire.request(body, own, take).await.unwrap();
        }
    };
    let play = async {
        let mut sent = Vec::new();
        for set in [
            "mcp-session-id: a\r\nset-cookie: at=1\r\n",
            "",
            "set-cookie: at=2\r\n",
            "",
        ] {
            let mut stream = listener.accept().await.unwrap().0;
            let mut read = Vec::new();
            while !read.ends_with(b"{}") {
                assert_ne!(stream.read_buf(&mut read).await.unwrap(), 0, "it is gone");
            }
            let reply = r#"{"jsonrpc":"2.0","id":1,"result":{}}"#;
            let length = reply.len();
            let head = format!("HTTP/1.1 200 OK\r\n{set}connection: close\r\n");
            let response = format!("{head}content-length: {length}\r\n\r\n{reply}");
            stream.write_all(response.as_bytes()).await.unwrap();
            let read = String::from_utf8(read).unwrap().to_ascii_lowercase();
            let cookie = read.lines().find_map(|line| line.strip_prefix("cookie: "));
            sent.push(cookie.map(str::to_owned));
        }
        sent
    };
    let ((), sent) = tokio::join!(ask, play);
    let sent: Vec<_> = sent.iter().map(Option::as_deref).collect();
    assert_eq!(sent, [None, Some("at=1"), Some("at=1"), None]);
    let next = first.headers(CallOrigin::default());
    assert!(next.all.iter().any(|(_, value)| value == "at=2"));
}

// php-mcp says so in its stream, with status 200.
#[rstest::rstest]
#[case::only_event("", -32600, true)]
#[case::behind_another("data: {\"jsonrpc\":\"2.0\",\"method\":\"a\"}\n\n", -32600, false)]
#[case::other_code("", -32000, false)]
#[tokio::test]
async fn first_event_may_tell_of_a_lost_session(
    #[case] before: &str,
    #[case] code: i64,
    #[case] is_lost: bool,
) {
    let said = "Invalid or expired session. Please re-initialize the session.";
    let error = format!(r#"{{"code":{code},"message":"{said}"}}"#);
    let event = format!("data: {{\"jsonrpc\":\"2.0\",\"id\":1,\"error\":{error}}}\n\n");
    let session = |wire: &HttpSession| wire.continue_as(HeaderValue::from_static("a-session"));
    let (_, reply) = asked("text/event-stream", &format!("{before}{event}"), session).await;
    let found = matches!(reply, Err(LinkError::SessionGone));
    assert_eq!(found, is_lost, "{reply:?}");
}
