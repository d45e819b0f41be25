//! What stands in for change notices once the only GET stream of a session has ended: some upstreams, such as those on the
//! C# SDK, open one in a session, ever. Spec: BRIDGING §3.4.

use std::time::Duration;

use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::sync::backoff::Backoff;

/// Least time between two looks. Each costs a request for every list that a listening client was given.
const LOOK_EVERY: Duration = Duration::from_mins(5);

/// Looks for changes that no stream announces any more: at once, then after [`LOOK_EVERY`] or up to a quarter more, as a
/// proxy cuts the streams of many sessions together. Ends when `look` says that the connection is over, or `stop` is
/// cancelled.
///
/// # Cancel safety
/// Dropping the future ends the looks; nothing is left behind.
pub(super) async fn look_for_changes(mut look: impl FnMut() -> bool, stop: CancellationToken) {
    let mut pauses = Backoff::with_jitter(LOOK_EVERY, LOOK_EVERY, 1.0..1.25);
    while look() {
        tokio::select! {
            () = sleep(pauses.next_pause()) => {}
            () = stop.cancelled() => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::future::{BoxFuture, ready};
    use tokio::time::timeout;

    use super::*;
    use crate::call::samples::declared;
    use crate::call::{
        InputOutcome, InputRequest, Notice, NoticeArrival, NoticeIntake, ServerDeclaration,
    };
    use crate::protocol::{Message, Revision};
    use crate::upstream::carrier::http::http_session::HttpSession;
    use crate::upstream::carrier::{LinkSettings, fixture};
    use crate::upstream::link::legacy::connection::LegacyConnection;
    use crate::upstream::link::legacy::wire::LegacyWire;
    use crate::upstream::link::session_state::SessionState;

    /// A session: how often its lists were looked at, and its resources announced.
    #[derive(Debug, Default)]
    struct Looks {
        lists: AtomicUsize,
        resources: AtomicUsize,
    }

    impl Looks {
        fn counts(&self) -> (usize, usize) {
            let count = |of: &AtomicUsize| of.load(Ordering::Relaxed);
            (count(&self.lists), count(&self.resources))
        }
    }

    impl NoticeIntake for Looks {
        fn opened(&self, _: &Arc<str>, _: &Arc<ServerDeclaration>) {}

        fn heard(&self, _: &Arc<str>, lists: &[&'static str], is_late: bool) {
            assert_eq!((lists, is_late), (&["tools"][..], false));
            self.lists.fetch_add(1, Ordering::Relaxed);
        }

        fn notice(&self, _: &Arc<str>, _: Notice, _: NoticeArrival) {
            self.resources.fetch_add(1, Ordering::Relaxed);
        }

        fn task_changed(&self, _: &Arc<str>, _: &Message, _: Option<u64>) {}

        fn question(&self, _: &Arc<str>, _: InputRequest) -> BoxFuture<'_, InputOutcome> {
            Box::pin(ready(InputOutcome::Unanswered))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn lists_are_looked_at_while_a_client_listens() {
        let looks = Arc::new(Looks::default());
        let (settings, client, bounds) = fixture::over_http();
        let settings = Arc::new(LinkSettings {
            intake: Arc::clone(&looks) as _,
            ..settings
        });
        let http = Arc::new(HttpSession::new("up".into(), client, bounds));
        let declared = declared(Revision::V2025_11_25, r#"{"tools":{"listChanged":true}}"#);
        let connection = LegacyConnection::new(&settings, LegacyWire::Http(http), declared);
        let get_stream = connection.get_stream.clone().expect("one over HTTP");
        let state = SessionState::default();
        state.followed.insert("file:///a".to_owned());
        get_stream.follow(&state);
        let stop = CancellationToken::new();
        let mut is_told = false;
        let may_have_missed = || get_stream.may_have_missed(&mut is_told);
        let mut looking = pin!(look_for_changes(may_have_missed, stop));
        let mut look = async |time| timeout(time, &mut looking).await.is_ok();
        assert!(!look(LOOK_EVERY / 2).await);
        assert_eq!(looks.counts(), (0, 0), "nobody listens");
        get_stream.is_wanted.store(true, Ordering::Relaxed);
        // Time for two looks, not for three, with the longest pauses and the shortest ones.
        assert!(!look(LOOK_EVERY * 9 / 4).await);
        assert_eq!(looks.counts(), (2, 1), "no resource is announced twice");
        connection.forget();
        assert!(look(LOOK_EVERY * 2).await, "the session is over");
        assert_eq!(looks.counts(), (2, 1));
    }
}
