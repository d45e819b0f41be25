//! Every pairing works through the two link traits without knowing about pairs (DESIGN §3): a
//! scripted modern client and a scripted modern upstream, beside the legacy ones.

mod known_accounts;
mod scripted;
mod shared_lists;

use bytes::Bytes;
use tokio_util::sync::CancellationToken;

use self::scripted::{INPUT_REQUIRED, ModernClient, ScriptStep, ScriptedUpstream};
use super::*;
use crate::audit::AuditSink;
use crate::call::{ClientCapabilities, DownstreamLink, Principal, UpstreamLink};
use crate::clock::SystemClock;
use crate::ownership::Ownership;
use crate::policy::ToolPolicy;
use crate::protocol::{Message, RequestId, Revision};
use crate::runtime::lifecycle::TaskSpawner;
use crate::seal::{SealPurpose, Sealer};
use crate::session::{LegacyClientLink, NewSession, SessionIds, SessionRegistry, SessionSettings};
use crate::store::events::{LogBounds, MemoryEvents};
use crate::telemetry::trace::TraceContext;
use crate::upstream::{AccountKeeping, Upstreams};
use crate::vault::samples::pasted_key;
use crate::vault::{GrantRecord, Vault};

/// Callers have keys of their own at the upstream.
const KEYS: &str = "[upstreams.up.auth]\nkind = \"user_key\"\n";

pub(super) struct PairingFixture {
    pub(super) relay: Arc<Relay>,
    sealer: Arc<Sealer>,
    pub(super) session: Arc<Session>,
}

fn fixture(upstream: Arc<dyn UpstreamLink>) -> PairingFixture {
    fixture_with(upstream, "", None)
}

/// A key for the upstream of [`with_keys`].
pub(super) fn pasted() -> GrantRecord {
    pasted_key("http://127.0.0.1:9/mcp", "key")
}

/// An upstream where callers have keys of their own, in `vault`.
pub(super) fn with_keys(vault: Vault) -> PairingFixture {
    let upstream = ScriptedUpstream::new(ScriptStep::Modern);
    fixture_with(upstream, KEYS, Some(vault))
}

/// The same, where all sessions of a caller share a link.
pub(super) fn with_shared_keys(vault: Vault) -> PairingFixture {
    let upstream = ScriptedUpstream::new(ScriptStep::Modern);
    let keys = format!("isolation = \"principal\"\n{KEYS}");
    fixture_with(upstream, &keys, Some(vault))
}

fn fixture_with(
    upstream: Arc<dyn UpstreamLink>,
    tables: &str,
    vault: Option<Vault>,
) -> PairingFixture {
    let text = format!(
        "[auth]\nmode = \"none\"\n[upstreams.up]\nurl = \"http://127.0.0.1:9/mcp\"\n{tables}"
    );
    let config = crate::config::parse(&text, "test.toml", &|_| None).unwrap();
    let config = Arc::new(config);
    let tasks = TaskSpawner::new();
    let sealer = Arc::new(Sealer::new(&[]).unwrap());
    let sessions = SessionRegistry::new(
        SessionIds::new(Arc::clone(&sealer), Ownership::ALONE),
        SessionSettings {
            idle: Duration::from_mins(1),
            absolute: Duration::from_mins(10),
            max_per_principal: 9,
            max_total: 200,
            hold_question: Duration::from_secs(10),
        },
        Arc::new(MemoryEvents::new(LogBounds::ROOMY)),
        Arc::new(SystemClock),
        tasks.clone(),
    );
    let endpoint = crate::endpoint::endpoints(&config)
        .into_iter()
        .find(|endpoint| &*endpoint.name == "up")
        .unwrap();
    let new = NewSession {
        delivery: crate::session::DeliveryMode::Streams,
        principal: Arc::new(Principal::anonymous()),
        endpoint: Arc::new(endpoint),
        revision: Revision::V2025_11_25,
        capabilities: ClientCapabilities::read(Bytes::from_static(br#"{"elicitation":{}}"#)),
        client_info: Bytes::from_static(b"{}"),
    };
    let opening = sessions.open(new, None).unwrap();
    let session = Arc::clone(opening.session());
    session.set_initialized();
    session
        .links()
        .get_or(
            session.closed(),
            &"up".into(),
            vault.is_some().then_some(0),
            || upstream,
        )
        .unwrap();
    let host = crate::process::HostEnvironment::current();
    let audit = AuditSink::start(Arc::new(SystemClock), &tasks);
    let keeping = vault
        .as_ref()
        .map(|vault| AccountKeeping::new(vault, &audit));
    let upstreams = Upstreams::new(&config, host, keeping, tasks.clone());
    let relay = Relay::new(RelayParts {
        upstreams: Arc::new(upstreams.unwrap()),
        policy: Arc::new(ToolPolicy::new(&config.auth)),
        audit,
        settings: config,
        sealer: Arc::clone(&sealer),
        sessions,
        vault,
        clock: Arc::new(SystemClock),
        tasks,
    });
    PairingFixture {
        relay,
        sealer,
        session,
    }
}

impl PairingFixture {
    fn call(&self, link: Arc<dyn DownstreamLink>, cancel: CancellationToken) -> Call {
        let text = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t"}}"#;
        Call {
            principal: Arc::clone(&self.session.principal),
            endpoint: Arc::clone(&self.session.endpoint),
            revision: self.session.revision,
            message: Message::parse(text.into(), 128).unwrap(),
            link,
            trace: TraceContext::default(),
            cancel,
            resumption: None,
            param_headers: None,
        }
    }

    fn legacy_link(&self) -> Arc<LegacyClientLink> {
        let id = RequestId::parse("1").unwrap();
        self.session.begin_call(id, Arc::default()).unwrap()
    }

    async fn handle(&self, call: &Call) -> String {
        match self.relay.handle(call, &self.session).await.unwrap() {
            Reply::Result(bytes) => String::from_utf8(bytes.to_vec()).unwrap(),
            other => panic!("{other:?}"),
        }
    }

    /// The legacy client answers the question that it finds on the call's stream.
    async fn answer(&self, link: &LegacyClientLink, answer: &str) {
        let stream = link.stream();
        let mut reader = stream.attach();
        let asked = loop {
            let next = std::future::poll_fn(|cx| reader.poll_next(cx)).await;
            let crate::session::ReaderStep::Events(events) = next else {
                panic!("{next:?}")
            };
            if let Some(asked) = events.into_iter().find(|event| !event.payload.is_empty()) {
                break Message::parse(asked.payload, 128).unwrap();
            }
        };
        let id = asked.id().unwrap();
        let response = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{answer}}}"#);
        assert!(
            self.session
                .questions()
                .answer(&Message::parse(response.into(), 128).unwrap())
        );
    }
}

#[tokio::test]
async fn cursor_of_an_unknown_version_is_refused_like_a_forged_one() {
    let f = fixture(ScriptedUpstream::new(ScriptStep::Modern));
    let link = f.legacy_link();
    let list = |cursor: &str| {
        let text = format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{{"cursor":"{cursor}"}}}}"#
        );
        Call {
            message: Message::parse(text.into(), 128).unwrap(),
            ..f.call(Arc::clone(&link) as _, CancellationToken::new())
        }
    };
    let binding = f.session.principal.binding();
    let context = [&b"up\0up\0"[..], binding.bytes(), b"tools/list"];
    let (sealer, context) = (&f.sealer, context.concat());
    let cursors = &f.relay.parts.catalog.cursors;
    let known = sealer.seal(SealPurpose::Cursor, &context, b"\"two\"");
    let opened = cursors.opened(&list(&known), "up").unwrap();
    assert_eq!(opened.as_deref(), Some("\"two\""));
    let next = sealer.of_next_version(SealPurpose::Cursor, &context, &known);
    let refusal = |cursor: &str| cursors.opened(&list(cursor), "up").unwrap_err().public;
    assert_eq!(refusal(&next), refusal("forged"));
}

#[tokio::test]
async fn legacy_client_and_modern_upstream_the_round_is_asked_and_answered_in_the_call() {
    let f = fixture(ScriptedUpstream::new(ScriptStep::Modern));
    let link = f.legacy_link();
    let call = f.call(Arc::clone(&link) as _, link.cancelled().clone());
    let (result, ()) = tokio::join!(f.handle(&call), f.answer(&link, r#""alice""#));
    assert_eq!(result, r#"{"name":"alice"}"#);
}

#[tokio::test]
async fn legacy_client_and_legacy_upstream_the_question_is_a_request_of_its_own() {
    let f = fixture(ScriptedUpstream::new(ScriptStep::Asking));
    let link = f.legacy_link();
    let call = f.call(Arc::clone(&link) as _, link.cancelled().clone());
    let (result, ()) = tokio::join!(f.handle(&call), f.answer(&link, r#"{"action":"accept"}"#));
    assert_eq!(result, r#"{"action":"accept"}"#);
}

#[tokio::test]
async fn modern_client_and_modern_upstream_nothing_is_kept_between_rounds() {
    let f = fixture(ScriptedUpstream::new(ScriptStep::Modern));
    let call = f.call(ModernClient::new(), CancellationToken::new());
    assert_eq!(f.handle(&call).await, INPUT_REQUIRED);
}

#[tokio::test]
async fn modern_client_and_legacy_upstream_the_call_waits_for_the_retry() {
    let f = fixture(ScriptedUpstream::new(ScriptStep::Asking));
    let client = ModernClient::new();
    let call = f.call(Arc::clone(&client) as _, CancellationToken::new());
    let (result, ()) = tokio::join!(f.handle(&call), client.retry(r#"{"action":"decline"}"#));
    assert_eq!(result, r#"{"action":"decline"}"#);
}

// What was learned in its implicit session is believed by how long ago that was, as its age says.
#[tokio::test(start_paused = true)]
async fn the_client_of_a_parked_call_is_there_when_it_comes_back() {
    let f = fixture(ScriptedUpstream::new(ScriptStep::Asking));
    let call = f.call(ModernClient::new(), CancellationToken::new());
    tokio::time::advance(Duration::from_secs(50)).await;
    f.relay.authorize(&call, &f.session).await.unwrap();
    assert_eq!(f.session.idle_for(), Duration::ZERO);
    assert!(f.session.age_when_used() >= Duration::from_secs(50));
}

async fn visited(capabilities: &'static str, answer: Option<&'static str>) -> (usize, Reply) {
    let upstream = ScriptedUpstream::new(ScriptStep::Visited);
    let f = fixture(Arc::clone(&upstream) as _);
    let client = ModernClient::declaring(capabilities);
    let call = Call {
        revision: Revision::V2026_07_28,
        ..f.call(Arc::clone(&client) as _, CancellationToken::new())
    };
    f.session.completions().add("up", "e1");
    let handled = f.relay.handle(&call, &f.session);
    let reply = match answer {
        None => handled.await,
        Some(answer) => tokio::join!(handled, client.retry(answer)).0,
    };
    (upstream.calls(), reply.unwrap())
}

// BRIDGING §3.6.
#[tokio::test]
async fn call_runs_again_after_its_url_elicitation() {
    let upstream = ScriptedUpstream::new(ScriptStep::Visited);
    let f = fixture(Arc::clone(&upstream) as _);
    let client = ModernClient::declaring(r#"{"elicitation":{"url":{}}}"#);
    let call = Call {
        revision: Revision::V2026_07_28,
        ..f.call(Arc::clone(&client) as _, CancellationToken::new())
    };
    let implicit_session = async {
        client.retry(r#"{"action":"accept"}"#).await;
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        assert_eq!(upstream.calls(), 1, "the user is still there");
        f.session.completions().add("up", "e1");
    };
    let (reply, ()) = tokio::join!(f.relay.handle(&call, &f.session), implicit_session);
    assert_eq!((upstream.calls(), reply.unwrap().error()), (2, None));
}

// SPEC C-83, E-03; BRIDGING §3.6.
#[tokio::test]
async fn modern_client_gets_the_url_and_the_call_runs_again() {
    let url = r#"{"elicitation":{"url":{}}}"#;
    let (calls, reply) = visited(url, Some(r#"{"action":"accept"}"#)).await;
    assert_eq!((calls, reply.error()), (2, None));
    let (calls, reply) = visited(url, Some(r#"{"action":"decline"}"#)).await;
    assert_eq!(calls, 1);
    assert!(reply.result().unwrap().contains(r#""isError":true"#));
    let (calls, reply) = visited(r#"{"elicitation":{}}"#, None).await;
    assert_eq!((calls, reply.error_code()), (1, Some(-32021)));
}

// SPEC E-01: SDKs fail to parse an error whose code is no integer, and their caller waits for a reply.
#[tokio::test]
async fn every_error_of_an_upstream_has_a_code_and_a_text() {
    let f = fixture(ScriptedUpstream::new(ScriptStep::Odd));
    let link = f.legacy_link();
    let call = f.call(Arc::clone(&link) as _, link.cancelled().clone());
    let reply = f.relay.handle(&call, &f.session).await.unwrap();
    assert_eq!(reply.error_code(), Some(-32603));
    let text = json::member(reply.error().unwrap(), "message").unwrap();
    assert!(json::string(text).is_some_and(|text| !text.is_empty()));
}

// BRIDGING §3.8: after a panic the task is removed, so that no client waits for its result.
#[tokio::test]
async fn a_task_whose_work_panics_is_forgotten_and_counts_no_longer() {
    let f = fixture(ScriptedUpstream::new(ScriptStep::Faulty));
    let link = f.legacy_link();
    let text = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t","task":{}}}"#;
    let call = Call {
        message: Message::parse(text.into(), 128).unwrap(),
        ..f.call(Arc::clone(&link) as _, link.cancelled().clone())
    };
    let begun = f.handle(&call).await;
    let begun = json::member(&begun, "task").unwrap();
    assert!(begun.contains("working"), "{begun}");
    let [task] = f.session.tasks().all().try_into().unwrap();
    let crate::session::TaskSite::Here(hosted) = &task.run else {
        panic!("it is run here");
    };
    let known = async {
        hosted.forgotten().cancelled().await;
        while f.session.tasks().find(&task.handle).is_some() || f.session.tasks().is_running() {
            tokio::task::yield_now().await;
        }
    };
    let forgotten = tokio::time::timeout(Duration::from_secs(10), known).await;
    assert!(forgotten.is_ok(), "it is still known");
}
