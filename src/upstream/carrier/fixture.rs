//! Settings of links in tests.

use std::sync::{Arc, Mutex};

use bytes::Bytes;

use super::http::client::HttpClient;
use super::http::get_stream::SingleStreamHabit;
use super::http::http_session::ResponseBounds;
use super::{AskedClient, AskingHabit, Carrier, LinkSettings};
use crate::budget::{BudgetHolder, ByteBudget, ReplyShare};
use crate::call::{ClientCapabilities, NullIntake, Principal};
use crate::config;
use crate::ownership::Fence;
use crate::process::holders::SessionHolders;
use crate::protocol::{Era, Revision};
use crate::runtime::lifecycle::TaskSpawner;
use crate::telemetry::metrics::UpstreamLoad;
use crate::upstream::first_start::FirstStarts;
use crate::upstream::health::UpstreamHealth;

/// Those of a link over HTTP to an upstream that is never contacted, with its client and bounds.
pub(in crate::upstream) fn over_http() -> (LinkSettings, HttpClient, ResponseBounds) {
    let upstream = config::UpstreamConfig::sample("");
    let config::CarrierConfig::Http(http) = &upstream.carrier else {
        panic!("it is reached over HTTP");
    };
    let bounds = ResponseBounds {
        message: 1 << 20,
        event: 1 << 20,
        depth: 64,
    };
    let client = HttpClient::new(http).unwrap();
    let name: Arc<str> = "up".into();
    let budget = ByteBudget::of_replies(1 << 20, 1 << 20, 1 << 20);
    let settings = LinkSettings {
        upstream: Arc::new(upstream),
        name: Arc::clone(&name),
        carrier: Carrier::Http(Box::new(client.clone()), bounds, None),
        owner: Principal::anonymous().owner(),
        capabilities: ClientCapabilities::none(),
        client_info: Bytes::from_static(b"{}"),
        client: Era::Legacy,
        offer: Revision::LATEST_LEGACY,
        intake: Arc::new(NullIntake),
        holders: SessionHolders::default(),
        exclusive: true,
        unattributed: AskedClient::Call,
        asks: AskingHabit::default(),
        single_streams: SingleStreamHabit::default(),
        tasks: TaskSpawner::new(),
        message_depth: 64,
        replies: ReplyShare::new(&budget, BudgetHolder::Upstream(0)),
        load: UpstreamLoad::of(&name),
        health: Arc::new(UpstreamHealth::new(name, FirstStarts::new(false))),
        fence: Fence::default(),
        connection: 0,
        adopted: Mutex::default(),
    };
    (settings, client, bounds)
}
