//! Upstreams of 2026-07-28 behind a legacy client. The stub checks every request strictly, so that
//! a call that works has all the headers and members that it needs.

mod both;
mod calls;
mod dual;
mod era;
mod notices;
mod reads;
mod rounds;

use crate::harness::upstream::HttpStub;
use crate::harness::{Gateway, Session, Setup};

/// A gateway before one modern stub, and the stub where it is reached over HTTP.
pub(super) async fn behind(carrier: &str, keys: &str) -> (Gateway, Option<HttpStub>) {
    if carrier == "http" {
        let stub = HttpStub::start(&["--era", "modern"]).await;
        let gw = Setup::open().http("stub", &stub, keys).start().await;
        (gw, Some(stub))
    } else {
        let setup = Setup::open().stub_with("stub", &["--era", "modern"], keys);
        (setup.start().await, None)
    }
}

/// The stub's counter `name`.
pub(super) async fn count(stub: &HttpStub, name: &str) -> u64 {
    stub.stats().await["counts"][name].as_u64().unwrap_or(0)
}

/// A session with everything a client can offer.
pub(super) async fn user(gw: &Gateway) -> Session {
    gw.anonymous().open("/mcp/stub").await
}
