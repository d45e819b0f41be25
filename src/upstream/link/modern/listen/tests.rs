//! Waiters for the notice feed of a link. Nothing is sent: the upstream's declaration is given.

use std::time::Duration;

use super::super::ModernServerLink;
use super::*;
use crate::call::samples::declared;
use crate::protocol::{Era, Revision};
use crate::upstream::carrier::fixture;

/// A link to an upstream that declares these capabilities and is never contacted.
fn link(capabilities: &'static str) -> Arc<ModernServerLink> {
    let settings = LinkSettings {
        client: Era::Modern,
        ..fixture::over_http().0
    };
    let (schemas, state) = (Arc::<ToolSchemas>::default(), SessionState::default());
    let link = ModernServerLink::new(Arc::new(settings), schemas, state, None, None);
    link.told(&declared(Revision::V2026_07_28, capabilities));
    link
}

// An acknowledgement waits only for streams that will be opened. Spec: SPEC M-75
#[tokio::test(start_paused = true)]
async fn nobody_waits_for_changes_of_lists_where_none_are_announced() {
    let link = link(r#"{"tools":{},"resources":{"subscribe":true}}"#);
    link.notices().listen(true);
    let heard = tokio::time::timeout(Duration::from_mins(1), link.notices().wait_until_live());
    assert_eq!(heard.await, Ok(false));
    // The same for later waiters, and after another wish.
    link.notices().listen(false);
    link.notices().listen(true);
    let heard = tokio::time::timeout(Duration::from_mins(1), link.notices().wait_until_live());
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
