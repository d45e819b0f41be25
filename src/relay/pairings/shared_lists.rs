//! Lists that many sessions share: how often their upstream is asked, and what each session gets.

mod later_looks;

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use futures_util::future::BoxFuture;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use super::*;
use crate::call::{Notice, NoticeArrival, ServerDeclaration, samples};
use crate::catalog::ListPageKey;
use crate::fault::FaultKind;
use crate::outbound::IntakeFactory;
use crate::session::{ReaderStep, StreamReader};
use crate::store::lists::CachedPage;

/// Sessions that are told of a change at once.
const MANY: usize = 100;
/// Requests that are answered at once.
const ALL: usize = 10 * MANY;

/// All callers use one session of the upstream. Only events end a list.
const SHARED: &str = "isolation = \"shared\"\n[lists]\nfresh = \"1h\"\n";

fn up() -> Arc<str> {
    "up".into()
}

fn declared() -> Arc<ServerDeclaration> {
    let capabilities = r#"{"tools":{"listChanged":true}}"#;
    samples::declared(Revision::V2025_11_25, capabilities)
}

/// A legacy upstream with one tool, whose changes are heard.
#[derive(Debug)]
struct ListingUpstream {
    name: Arc<str>,
    /// The name of the tool.
    tool: Mutex<&'static str>,
    asked: AtomicUsize,
    /// A request is answered when there is a permit for it.
    answers: Semaphore,
    fails: AtomicBool,
}

impl ListingUpstream {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            name: up(),
            tool: Mutex::new("first"),
            asked: AtomicUsize::new(0),
            answers: Semaphore::new(0),
            fails: AtomicBool::new(false),
        })
    }

    fn asked(&self) -> usize {
        self.asked.load(Relaxed)
    }
}

impl UpstreamLink for ListingUpstream {
    fn upstream(&self) -> &Arc<str> {
        &self.name
    }

    fn call<'a>(&'a self, _: &'a Message, _: &'a Call) -> BoxFuture<'a, Result<Reply, Fault>> {
        self.asked.fetch_add(1, Relaxed);
        let tool = *self.tool.lock().unwrap();
        Box::pin(async move {
            self.answers.acquire().await.unwrap().forget();
            if self.fails.load(Relaxed) {
                return Err(Fault::upstream(FaultKind::UpstreamUnavailable, "scripted"));
            }
            let text = format!(
                r#"{{"jsonrpc":"2.0","id":1,"result":{{"tools":[{{"name":"{tool}","inputSchema":{{"type":"object"}}}}]}}}}"#
            );
            Ok(Reply::Relayed(Message::parse(text.into(), 128).unwrap()))
        })
    }

    fn notify(&self, _message: Bytes) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    fn open(&self) -> BoxFuture<'_, Result<Arc<ServerDeclaration>, Fault>> {
        Box::pin(std::future::ready(Ok(declared())))
    }

    fn declared(&self) -> Option<Arc<ServerDeclaration>> {
        Some(declared())
    }

    fn listen(&self, _wanted: bool) {}

    fn notice_feed(&self) -> Option<u64> {
        Some(1)
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }
}

/// Sessions at a [`ListingUpstream`].
struct SharedLists {
    f: PairingFixture,
    upstream: Arc<ListingUpstream>,
}

impl SharedLists {
    /// Without a session. An upstream that `answers` does so at once.
    fn new(answers: bool) -> Self {
        let upstream = ListingUpstream::new();
        let f = fixture_with(Arc::clone(&upstream) as _, SHARED, None);
        let links = &f.relay.parts.links;
        let key = links.knowledge_key(&f.session, &up());
        links.declarations.learn(key, &declared());
        f.relay.opener.sessions.close(&f.session);
        if answers {
            upstream.answers.add_permits(ALL);
        }
        Self { f, upstream }
    }

    /// A session of a caller of its own.
    fn open(&self) -> Arc<Session> {
        let sessions = &self.f.relay.opener.sessions;
        let caller = format!("caller {}", sessions.len());
        let new = NewSession {
            delivery: crate::session::DeliveryMode::Streams,
            principal: Arc::new(Principal::new("issuer", &caller, "", Vec::new(), None)),
            endpoint: Arc::clone(&self.f.session.endpoint),
            revision: self.f.session.revision,
            capabilities: self.f.session.capabilities.clone(),
            client_info: self.f.session.client_info.clone(),
        };
        let opening = sessions.open(new, None).unwrap();
        let session = Arc::clone(opening.session());
        session.set_initialized();
        let link = || Arc::clone(&self.upstream) as _;
        let (links, closed) = (session.links(), session.closed());
        links.get_or(closed, &up(), None, link).unwrap();
        session
    }

    fn open_many(&self) -> Vec<Arc<Session>> {
        (0..MANY).map(|_| self.open()).collect()
    }

    fn close(&self, session: &Arc<Session>) {
        self.f.relay.opener.sessions.close(session);
    }

    /// Has a session list its tools; the result, if there is one.
    fn lists(&self, session: &Arc<Session>) -> JoinHandle<Option<String>> {
        let text = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#;
        let call = Call {
            principal: Arc::clone(&session.principal),
            message: Message::parse(text.into(), 128).unwrap(),
            ..self.f.call(ModernClient::new(), CancellationToken::new())
        };
        let (relay, session) = (Arc::clone(&self.f.relay), Arc::clone(session));
        #[expect(clippy::disallowed_methods, reason = "another task of this test")]
        tokio::spawn(async move {
            let reply = relay.handle(&call, &session).await.ok()?;
            reply.result().map(str::to_owned)
        })
    }

    async fn list(&self, session: &Arc<Session>) -> String {
        let listed = within(self.lists(session)).await.unwrap();
        listed.expect("a list")
    }

    /// The upstream has another tool.
    fn change(&self, tool: &'static str) {
        *self.upstream.tool.lock().unwrap() = tool;
    }

    /// One notice of the upstream reaches `sessions`, as by their shared link.
    fn tell(&self, sessions: &[Arc<Session>]) {
        let arrival = NoticeArrival::now(None);
        for session in sessions {
            let intake = self.f.relay.intake(session, &up());
            intake.notice(&up(), Notice::list_changed("tools"), arrival);
        }
    }

    /// The page of tools that a session was given.
    fn page(session: &Session) -> CachedPage {
        let given = session.list_validity().last("up", ListKind::Tools, None);
        given.unwrap()
    }

    /// Another look at `page`, to its end.
    async fn look_again(&self, session: &Arc<Session>, page: &CachedPage) {
        let upstream = up();
        let place = ListPageKey {
            upstream: &upstream,
            kind: ListKind::Tools,
            cursor: None,
        };
        let pages = &self.f.relay.parts.catalog.pages;
        pages.recheck_aged(session, place, page);
        all_wait().await;
    }
}

/// Returns once every task waits: the clock stands until then.
async fn all_wait() {
    tokio::time::sleep(Duration::from_millis(1)).await;
}

async fn within<T>(work: impl Future<Output = T>) -> T {
    let done = tokio::time::timeout(Duration::from_secs(30), work).await;
    done.expect("an end within 30 s")
}

/// Waits until the client of `reader` is told of changed tools.
async fn told(reader: &mut StreamReader) {
    loop {
        let next = std::future::poll_fn(|cx| reader.poll_next(cx)).await;
        let ReaderStep::Events(events) = next else {
            panic!("{next:?}")
        };
        let mut texts = events.iter().map(|event| event.payload.as_ref());
        if texts.any(|text| String::from_utf8_lossy(text).contains("tools/list_changed")) {
            return;
        }
    }
}

/// Whether the client of `reader` was told by now.
fn is_told(reader: &mut StreamReader) -> bool {
    futures_util::FutureExt::now_or_never(told(reader)).is_some()
}

#[tokio::test(start_paused = true)]
async fn sessions_that_are_told_during_a_request_share_the_next_one() {
    let lists = SharedLists::new(false);
    let sessions = lists.open_many();
    let listing: Vec<_> = sessions.iter().map(|one| lists.lists(one)).collect();
    all_wait().await;
    assert_eq!(lists.upstream.asked(), 1);
    lists.change("second");
    lists.tell(&sessions);
    let again: Vec<_> = sessions.iter().map(|one| lists.lists(one)).collect();
    all_wait().await;
    assert_eq!(lists.upstream.asked(), 1, "its answer is still to come");
    lists.upstream.answers.add_permits(1);
    all_wait().await;
    assert_eq!(lists.upstream.asked(), 2, "one asks for all");
    lists.upstream.answers.add_permits(ALL);
    let mut of_first = 0;
    for listed in listing {
        let listed = within(listed).await.unwrap().expect("a list");
        of_first += usize::from(listed.contains("first"));
    }
    assert_eq!(of_first, 1, "the one that asked before the change");
    for listed in again {
        let listed = within(listed).await.unwrap().expect("a list");
        assert!(listed.contains("second"), "{listed}");
    }
    assert_eq!(lists.upstream.asked(), 2);
}

// Each list is older than a change. A request that began after a session wanted the list answers it.
#[tokio::test(start_paused = true)]
async fn changes_during_each_request_cost_no_request_for_each_session() {
    let lists = SharedLists::new(false);
    let sessions = lists.open_many();
    let listing: Vec<_> = sessions.iter().map(|one| lists.lists(one)).collect();
    all_wait().await;
    lists.change("second");
    lists.tell(&sessions);
    lists.upstream.answers.add_permits(1);
    all_wait().await;
    assert_eq!(lists.upstream.asked(), 2);
    lists.change("third");
    lists.tell(&sessions);
    lists.upstream.answers.add_permits(1);
    all_wait().await;
    assert_eq!(lists.upstream.asked(), 2);
    for listed in listing {
        let listed = within(listed).await.unwrap().expect("a list");
        assert!(!listed.contains("third"), "{listed}");
    }
    // Nothing older than the second change is kept.
    lists.upstream.answers.add_permits(1);
    for session in &sessions {
        assert!(lists.list(session).await.contains("third"));
    }
    assert_eq!(lists.upstream.asked(), 3);
}

// All use one session of the upstream, which would fail each of them alike.
#[tokio::test(start_paused = true)]
async fn failed_request_is_made_once_more_for_all_who_wait() {
    for recovers in [true, false] {
        let lists = SharedLists::new(false);
        let sessions = lists.open_many();
        let listing: Vec<_> = sessions.iter().map(|one| lists.lists(one)).collect();
        all_wait().await;
        lists.upstream.fails.store(true, Relaxed);
        lists.upstream.answers.add_permits(1);
        all_wait().await;
        assert_eq!(lists.upstream.asked(), 2);
        lists.upstream.fails.store(!recovers, Relaxed);
        lists.upstream.answers.add_permits(ALL);
        let mut answered = 0;
        for listed in listing {
            answered += usize::from(within(listed).await.unwrap().is_some());
        }
        let expected = if recovers { MANY - 1 } else { 0 };
        assert_eq!(answered, expected);
        assert_eq!(lists.upstream.asked(), 2);
    }
}

// After an outage of Redis: within five seconds, so that clients do not ask together.
#[tokio::test(start_paused = true)]
async fn sessions_that_are_told_one_after_the_other_share_one_list() {
    let lists = SharedLists::new(true);
    let sessions = lists.open_many();
    for session in &sessions {
        lists.list(session).await;
    }
    assert_eq!(lists.upstream.asked(), 1);
    let mut readers: Vec<_> = sessions
        .iter()
        .map(|session| session.standalone().attach())
        .collect();
    lists.change("second");
    lists.f.relay.missed();
    let told_and_listed = sessions.iter().zip(&mut readers);
    let told_and_listed = told_and_listed.map(|(session, reader)| async {
        told(reader).await;
        lists.list(session).await
    });
    for listed in within(futures_util::future::join_all(told_and_listed)).await {
        assert!(listed.contains("second"), "{listed}");
    }
    assert_eq!(lists.upstream.asked(), 2);
}

// Another replica hears of the change: at first, or less than two seconds after this one has heard of another.
#[tokio::test(start_paused = true)]
async fn change_heard_elsewhere_counts_while_no_session_is_open() {
    let change = ListChange {
        upstream: "up".to_owned(),
        what: "tools".to_owned(),
    };
    let hears: [fn(&Relay, &ListChange); 2] = [
        <Relay as ListChangeReceiver>::changed,
        <Relay as ListChangeReceiver>::changed_again,
    ];
    for hear in hears {
        let lists = SharedLists::new(true);
        for _ in 0..2 {
            let session = lists.open();
            assert!(lists.list(&session).await.contains("first"));
            lists.close(&session);
        }
        assert_eq!(
            lists.upstream.asked(),
            1,
            "the second one is given the page"
        );
        assert!(lists.f.relay.opener.sessions.is_empty());
        lists.change("second");
        hear(&lists.f.relay, &change);
        let session = lists.open();
        assert!(lists.list(&session).await.contains("second"));
        assert_eq!(lists.upstream.asked(), 2);
    }
}

// They were told a moment ago.
#[tokio::test(start_paused = true)]
async fn change_that_was_heard_here_too_is_not_told_again() {
    let lists = SharedLists::new(true);
    let session = lists.open();
    let mut reader = session.standalone().attach();
    let change = ListChange {
        upstream: "up".to_owned(),
        what: "tools".to_owned(),
    };
    lists.f.relay.changed_again(&change);
    all_wait().await;
    assert!(!is_told(&mut reader));
    lists.f.relay.changed(&change);
    within(told(&mut reader)).await;
}
