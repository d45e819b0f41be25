//! Each request asks for its credential, whatever its kind.

use std::sync::Mutex;
use std::time::Duration;

use futures_util::FutureExt as _;
use http::{HeaderMap, HeaderName};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::*;
use crate::call::Principal;
use crate::clock::boot_time;
use crate::config::{TokenPlace, TransportKind};
use crate::grants::{HeldToken, PlacedToken};
use crate::lock::lock;
use crate::secret::Secret;
use crate::upstream::account::Account;
use crate::upstream::credentials::Requester;

/// A token that is sent in `x-token` behind `prefix`.
fn token(prefix: String, text: &str) -> Arc<HeldToken> {
    let own = HeaderValue::from_static("credential");
    let fixed = HeaderMap::from_iter([(HeaderName::from_static("x-own"), own)]);
    let place = TokenPlace::Header {
        name: HeaderName::from_static("x-token"),
        prefix,
    };
    let placed = PlacedToken::new(&fixed, &place, &Secret::new(text));
    Arc::new(HeldToken::lasting(placed.unwrap()))
}

/// Gives each request another token, which says whose it is.
#[derive(Debug, Default)]
struct Numbered {
    made: Mutex<usize>,
    /// Whether tokens are held, and no account changes. Others have to be waited for.
    is_held: bool,
}

impl Numbered {
    fn next(&self, account: Account) -> Arc<HeldToken> {
        let whose = match account {
            Account::Common => "common".to_owned(),
            Account::Principal(owner) | Account::Connected(owner, _) => owner.to_string(),
        };
        let mut made = lock(&self.made);
        *made += 1;
        token(format!("{whose} "), &made.to_string())
    }
}

impl Credentials for Numbered {
    fn account_of(&self, owner: OwnerKey) -> Account {
        if self.is_held {
            Account::Connected(owner, 0)
        } else {
            Account::Principal(owner)
        }
    }

    fn for_request(&self, requester: &Requester) -> Credential<'_> {
        let account = requester.account;
        if self.is_held {
            return Credential::Held(self.next(account));
        }
        let fetch = async move {
            tokio::task::yield_now().await;
            Ok(self.next(account))
        };
        Credential::Awaited(fetch.boxed())
    }

    fn generation(&self, _owner: OwnerKey) -> Option<u64> {
        self.is_held.then_some(0)
    }
}

/// Closes a fence while the token is waited for.
#[derive(Debug)]
struct Closing(Fence);

impl Credentials for Closing {
    fn account_of(&self, _owner: OwnerKey) -> Account {
        Account::Common
    }

    fn for_request(&self, _requester: &Requester) -> Credential<'_> {
        let fetch = async move {
            self.0.open_until(Duration::ZERO);
            Ok(token(String::new(), "t"))
        };
        Credential::Awaited(fetch.boxed())
    }
}

fn carrier(listener: &TcpListener, headers: Vec<(String, Secret)>) -> HttpCarrier {
    let url = format!("http://{}/mcp", listener.local_addr().unwrap());
    HttpCarrier {
        url: url.parse().unwrap(),
        transport: TransportKind::Streamable,
        headers,
        ca_file: None,
        proxy: None,
        pool_idle: Duration::from_secs(4),
    }
}

/// Answers `count` requests; the values that each head has under `name`.
async fn heads(listener: &TcpListener, count: usize, name: &str) -> Vec<Vec<String>> {
    answered(listener, &vec![200; count], name).await
}

/// Answers a request with each of `statuses`; the values that each head has under `name`.
async fn answered(listener: &TcpListener, statuses: &[u16], name: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for status in statuses {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut head = Vec::new();
        while !head.windows(4).any(|end| end == b"\r\n\r\n") {
            assert_ne!(stream.read_buf(&mut head).await.unwrap(), 0, "it is gone");
        }
        let head = String::from_utf8(head).unwrap().to_ascii_lowercase();
        let lines = head.lines().filter_map(|line| line.split_once(": "));
        let values = lines.filter(|(key, _)| *key == name);
        found.push(values.map(|(_, value)| value.to_owned()).collect());
        let answer =
            format!("HTTP/1.1 {status} \r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
        stream.write_all(answer.as_bytes()).await.unwrap();
    }
    found
}

/// Makes one request of each kind; their number.
async fn all_kinds(client: &HttpClient) -> usize {
    let (body, none) = (Bytes::new, MessageHeaders::default);
    let uri = client.uri().clone();
    client.post(body(), none()).await.unwrap();
    let again = client.post_again(body(), none(), RetryRule::IfUnread);
    again.await.unwrap();
    client.post_to(&uri, body(), none()).await.unwrap();
    client.listen(none()).await.unwrap();
    client.delete(none()).await.unwrap();
    client.knock().await.unwrap();
    client.upgrade("key", "mcp").await.unwrap();
    7
}

#[tokio::test]
async fn each_request_asks_for_the_credential_of_its_account() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let alice = Principal::new("issuer", "alice", "", Vec::new(), None).owner();
    let common = HttpClient::new(&carrier(&listener, Vec::new())).unwrap();
    let common = common.with_credentials(Arc::new(Numbered::default()));
    let own = common.on_behalf_of(alice, None);
    let ask = async { all_kinds(&common).await + all_kinds(&own).await };
    let (asked, seen) = tokio::join!(ask, heads(&listener, 14, "x-token"));
    let whose = |number: usize| {
        if number <= 7 {
            "common".to_owned()
        } else {
            alice.to_string()
        }
    };
    let expected: Vec<_> = (1..=asked)
        .map(|number| vec![format!("{} {number}", whose(number))])
        .collect();
    assert_eq!(seen, expected);
}

#[tokio::test]
async fn remembered_token_goes_to_no_other_principal_and_is_forgotten_when_refused() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let owner = |name| Principal::new("issuer", name, "", Vec::new(), None).owner();
    let (alice, bob) = (owner("alice"), owner("bob"));
    let common = HttpClient::new(&carrier(&listener, Vec::new())).unwrap();
    let held = Numbered {
        is_held: true,
        ..Numbered::default()
    };
    let common = common.with_credentials(Arc::new(held));
    let of_alice = common.on_behalf_of(alice, None);
    let ask = async {
        let post = async |client: &HttpClient| {
            let sent = client.post(Bytes::new(), MessageHeaders::default());
            sent.await.unwrap();
        };
        for _ in 0..2 {
            post(&of_alice).await;
        }
        post(&of_alice.on_behalf_of(bob, None)).await;
        // The first of these is refused.
        for _ in 0..2 {
            post(&of_alice).await;
        }
    };
    let statuses = [200, 200, 200, 401, 200];
    let ((), seen) = tokio::join!(ask, answered(&listener, &statuses, "x-token"));
    let token = |owner: OwnerKey, number| vec![format!("{owner} {number}")];
    let expected = [
        token(alice, 1),
        token(alice, 1),
        token(bob, 2),
        token(alice, 1),
        token(alice, 3),
    ];
    assert_eq!(seen, expected);
}

#[tokio::test]
async fn nothing_is_sent_once_the_fence_has_closed() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let fence = Fence::closed();
    fence.open_until(boot_time() + Duration::from_mins(1));
    let client = HttpClient::new(&carrier(&listener, Vec::new())).unwrap();
    let client = client.with_credentials(Arc::new(Closing(fence.clone())));
    let client = client.behind(&fence);
    for when in ["while its credential is waited for", "before"] {
        let sent = client.post(Bytes::new(), MessageHeaders::default());
        let sent = tokio::time::timeout(Duration::from_secs(5), sent).await;
        let refused = sent.expect("an error at once").unwrap_err();
        assert!(refused.is_fenced(), "{when}: {refused:?}");
    }
    assert!(listener.accept().now_or_never().is_none(), "not connected");
}

#[tokio::test]
async fn header_of_a_message_stands_before_the_credential() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let configured = vec![
        ("x-own".to_owned(), Secret::new("credential".to_owned())),
        ("accept".to_owned(), Secret::new("text/html".to_owned())),
    ];
    let fixed = HttpClient::new(&carrier(&listener, configured)).unwrap();
    let awaited = fixed.with_credentials(Arc::new(Numbered::default()));
    for client in [&fixed, &awaited] {
        let own = || {
            let value = HeaderValue::from_static("message");
            MessageHeaders::default().with(HeaderName::from_static("x-own"), Some(value))
        };
        let ask = async {
            client.post(Bytes::new(), own()).await.unwrap();
            client
                .post(Bytes::new(), MessageHeaders::default())
                .await
                .unwrap();
        };
        let ((), seen) = tokio::join!(ask, heads(&listener, 2, "x-own"));
        assert_eq!(seen, [["message"], ["credential"]]);
    }
    let ask = fixed.post(Bytes::new(), MessageHeaders::default());
    let (answer, seen) = tokio::join!(ask, heads(&listener, 1, "accept"));
    answer.unwrap();
    assert_eq!(seen, [["application/json, text/event-stream"]]);
}

fn access(scope: &str) -> Arc<CallerAccess> {
    let alice = Principal::new("issuer", "alice", "c", vec![scope.to_owned()], None);
    CallerAccess::new(
        alice.access_key("https://gw"),
        alice.issuer(),
        alice.owner(),
    )
}

#[tokio::test(start_paused = true)]
async fn request_of_a_call_is_made_for_its_caller_while_the_token_lasts() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (opened, called) = (access("r"), access("w"));
    let end = |seconds| Some(tokio::time::Instant::now() + Duration::from_secs(seconds));
    opened.bring("one", end(100));
    called.bring("two", end(10));
    let client = HttpClient::new(&carrier(&listener, Vec::new())).unwrap();
    let link = client.on_behalf_of(opened.owner(), Some(&opened));
    let used =
        |of: Option<&Arc<CallerAccess>>| link.credentials().requester(of.cloned()).caller.unwrap();
    assert!(Arc::ptr_eq(&used(None), &opened));
    assert!(Arc::ptr_eq(&used(Some(&called)), &called));
    tokio::time::advance(Duration::from_secs(10)).await;
    assert!(Arc::ptr_eq(&used(Some(&called)), &opened));
    assert!(
        client
            .credentials()
            .requester(Some(called))
            .caller
            .is_none(),
        "nothing is exchanged there"
    );
}
