//! Links of sessions, own and shared.

use rstest::rstest;

use super::*;
use crate::call::{Deaf, Principal};
use crate::fault::FaultKind;

fn upstreams(keys: &str) -> Upstreams {
    let text = "[auth]\nmode = \"none\"\n[upstreams.up]\nurl = \"http://127.0.0.1:9/mcp\"\n";
    let config = config::parse(&format!("{text}{keys}"), "test.toml", &|_| None).unwrap();
    Upstreams::new(&config, Host::current(), Tasks::new()).unwrap()
}

fn seat(intake: Arc<dyn Intake>) -> Seat {
    Seat {
        owner: Principal::anonymous().owner(),
        session: [0; 16],
        capabilities: ClientCapabilities::none(),
        client_info: Bytes::from_static(b"{}"),
        offer: Revision::LATEST_LEGACY,
        intake,
    }
}

/// A link to an upstream that is not there.
pub(in crate::upstream) fn era_link() -> Arc<EraLink> {
    let upstreams = upstreams("");
    let (name, entry) = upstreams.entries.get_key_value("up").unwrap();
    let holders = (Holders::of([0; 16]), true);
    upstreams.make(name, entry, seat(Arc::new(Deaf)), holders)
}

#[tokio::test]
async fn a_link_whose_session_is_over_opens_nothing() {
    let link = upstreams("").link("up", seat(Arc::new(Deaf))).unwrap();
    let before = link.open().await.unwrap_err();
    assert_eq!(before.kind, FaultKind::UpstreamUnavailable);
    link.close().await;
    let after = link.open().await.unwrap_err();
    assert_eq!(after.kind, FaultKind::Cancelled);
}

// Else the link could be ended between being found and being joined.
#[tokio::test]
async fn a_shared_link_is_joined_under_its_entry() {
    let upstreams = upstreams("isolation = \"shared\"\n");
    let _first = upstreams.link("up", seat(Arc::new(Deaf))).unwrap();
    let join = || drop(upstreams.link("up", seat(Arc::new(Deaf))));
    assert!(upstreams.shared.is_entry_held_by(join));
}

#[rstest]
#[tokio::test]
async fn who_drops_a_shared_link_is_forgotten_there(
    #[values("principal", "shared")] isolation: &str,
) {
    let upstreams = upstreams(&format!("isolation = {isolation:?}\n"));
    let intake: Arc<dyn Intake> = Arc::new(Deaf);
    let link = upstreams.link("up", seat(Arc::clone(&intake))).unwrap();
    assert_eq!(Arc::strong_count(&intake), 2);
    drop(link);
    // Polls the task that the drop has spawned, which does not wait.
    tokio::task::yield_now().await;
    assert_eq!(Arc::strong_count(&intake), 1);
}
