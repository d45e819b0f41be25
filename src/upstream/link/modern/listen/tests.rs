//! Waiters for the notice feed of a link. Nothing is sent: the upstream's declaration is given.

use std::sync::Mutex;
use std::time::Duration;

use super::super::ToolSchemas;
use super::*;
use crate::budget::{BudgetHolder, ByteBudget, ReplyShare};
use crate::call::{ClientCapabilities, NullIntake, Principal, ServerDeclaration};
use crate::config;
use crate::ownership::Fence;
use crate::process::holders::SessionHolders;
use crate::protocol::{Era, Revision};
use crate::runtime::lifecycle::TaskSpawner;
use crate::telemetry::metrics::UpstreamLoad;
use crate::upstream::carrier::http::client::HttpClient;
use crate::upstream::carrier::http::http_session::ResponseBounds;
use crate::upstream::carrier::{AskedClient, AskingHabit, Carrier, LinkSettings};
use crate::upstream::first_start::FirstStarts;
use crate::upstream::health::UpstreamHealth;
use crate::upstream::link::session_state::SessionState;

/// A link to an upstream that declares these capabilities and is never contacted.
fn link(capabilities: &'static str) -> Arc<ModernServerLink> {
    let text = "[auth]\nmode = \"none\"\n[upstreams.up]\nurl = \"http://127.0.0.1:9/mcp\"\n";
    let config = config::parse(text, "test.toml", &|_| None).unwrap();
    let upstream = config.upstreams.first().unwrap();
    let config::CarrierConfig::Http(http) = &upstream.carrier else {
        panic!("it is reached over HTTP");
    };
    let bounds = ResponseBounds {
        message: 1 << 20,
        event: 1 << 20,
        depth: 64,
    };
    let client = Box::new(HttpClient::new(http).unwrap());
    let name: Arc<str> = "up".into();
    let budget = ByteBudget::of_replies(1 << 20, 1 << 20, 1 << 20);
    let settings = LinkSettings {
        upstream: Arc::new(upstream.clone()),
        name: Arc::clone(&name),
        carrier: Carrier::Http(client, bounds, None),
        owner: Principal::anonymous().owner(),
        capabilities: ClientCapabilities::none(),
        client_info: Bytes::from_static(b"{}"),
        client: Era::Modern,
        offer: Revision::LATEST_LEGACY,
        intake: Arc::new(NullIntake),
        holders: SessionHolders::default(),
        exclusive: true,
        unattributed: AskedClient::Call,
        asks: AskingHabit::default(),
        tasks: TaskSpawner::new(),
        message_depth: 64,
        replies: ReplyShare::new(&budget, BudgetHolder::Upstream(0)),
        load: UpstreamLoad::of(&name),
        health: Arc::new(UpstreamHealth::new(name, FirstStarts::new(false))),
        fence: Fence::default(),
        connection: 0,
        adopted: Mutex::default(),
    };
    let (schemas, state) = (Arc::<ToolSchemas>::default(), SessionState::default());
    let link = ModernServerLink::new(Arc::new(settings), schemas, state, None, None);
    link.told(&Arc::new(ServerDeclaration::new(
        Revision::V2026_07_28,
        Bytes::from_static(capabilities.as_bytes()),
        Bytes::from_static(b"{}"),
        None,
    )));
    link
}

// An acknowledgement waits only for streams that will be opened. Spec: SPEC M-75
#[tokio::test(start_paused = true)]
async fn nobody_waits_for_changes_of_lists_where_none_are_announced() {
    let link = link(r#"{"tools":{},"resources":{"subscribe":true}}"#);
    link.want_lists(true);
    let heard = tokio::time::timeout(Duration::from_mins(1), link.wait_until_live());
    assert_eq!(heard.await, Ok(false));
    // The same for later waiters, and after another wish.
    link.want_lists(false);
    link.want_lists(true);
    let heard = tokio::time::timeout(Duration::from_mins(1), link.wait_until_live());
    assert_eq!(heard.await, Ok(false));
}

#[test]
fn what_an_older_wish_came_to_says_nothing_of_a_newer_one() {
    let listening = LinkListening::default();
    let older = listening.wish(|wanted| wanted.uris = ["a:1".to_owned()].into());
    listening.wish(|wanted| wanted.lists = true);
    listening.hear_none(older, false);
    let waits = futures_util::FutureExt::now_or_never(listening.notice_feed().begun());
    assert_eq!(waits, None, "what it comes to is not known");
}
