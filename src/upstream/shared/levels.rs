//! Log levels of the sessions at a shared link: the upstream is told the most verbose one, and each
//! session gets what it wants of that. Spec: BRIDGING §3.5; SPEC C-21.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use futures_util::future::BoxFuture;

use crate::call::{
    Asked, Call, ClientCapabilities, DownstreamLink, Level, Notice, NoticeKind, Round,
};
use crate::protocol::Era;
use crate::upstream::lock;

/// What a session gets that never said what it wants, once another one has.
const UNSAID: Level = Level::Info;

/// The levels of the sessions at one link.
#[derive(Debug, Default)]
pub(super) struct Levels {
    wanted: Mutex<HashMap<u64, Level>>,
    /// What the upstream was told last; locked while it is told.
    pub(super) told: tokio::sync::Mutex<Option<Level>>,
    /// Whether anybody ever said what they want: the upstream's own choice stands until then.
    is_set: AtomicBool,
}

impl Levels {
    /// Notes what a member wants, or that it wants nothing any more; what it wanted before.
    pub(super) fn want(&self, member: u64, level: Option<Level>) -> Option<Level> {
        let mut wanted = lock(&self.wanted);
        match level {
            Some(level) => {
                self.is_set.store(true, Ordering::Relaxed);
                wanted.insert(member, level)
            }
            None => wanted.remove(&member),
        }
    }

    /// What the upstream is to be told.
    pub(super) fn most_verbose(&self) -> Level {
        let wanted = lock(&self.wanted);
        wanted.values().copied().min().unwrap_or(UNSAID)
    }

    /// The least severe messages that a member gets; nothing where the upstream's choice stands.
    pub(super) fn of(&self, member: u64) -> Option<Level> {
        if !self.is_set.load(Ordering::Relaxed) {
            return None;
        }
        let wanted = lock(&self.wanted);
        Some(wanted.get(&member).copied().unwrap_or(UNSAID))
    }

    /// Whether a member gets a notice; one that does not say how severe it is counts as such.
    pub(super) fn admits(&self, member: u64, notice: &Notice) -> bool {
        if notice.kind != NoticeKind::Log {
            return true;
        }
        let Some(wanted) = self.of(member) else {
            return true;
        };
        notice.level().is_none_or(|level| level >= wanted)
    }

    /// The call with a way back on which only that goes which its session wants; nothing where
    /// everything does. What a modern call wants is looked at elsewhere.
    pub(super) fn filtered(self: &Arc<Self>, member: u64, call: &Call) -> Option<Call> {
        if call.revision.era() == Era::Modern || self.of(member).is_none() {
            return None;
        }
        let link = Arc::new(Filtered {
            inner: Arc::clone(&call.link),
            levels: Arc::clone(self),
            member,
        });
        Some(Call {
            link,
            ..call.clone()
        })
    }
}

/// The way back to a client that shares its upstream's log messages with others.
#[derive(Debug)]
struct Filtered {
    inner: Arc<dyn DownstreamLink>,
    levels: Arc<Levels>,
    member: u64,
}

impl DownstreamLink for Filtered {
    fn capabilities(&self) -> &ClientCapabilities {
        self.inner.capabilities()
    }

    fn notify(&self, notice: Notice) {
        if self.levels.admits(self.member, &notice) {
            self.inner.notify(notice);
        }
    }

    fn ask(&self, round: Round) -> BoxFuture<'_, Asked> {
        self.inner.ask(round)
    }

    fn behind(&self) -> Option<&dyn DownstreamLink> {
        Some(&*self.inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(level: &str) -> Notice {
        let text = format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/message","params":{{"level":"{level}","data":1}}}}"#
        );
        Notice {
            kind: NoticeKind::Log,
            bytes: text.into(),
        }
    }

    #[test]
    fn the_upstream_is_told_the_most_verbose_and_each_gets_its_own() {
        let levels = Levels::default();
        assert!(levels.admits(1, &log("debug")), "nobody has said anything");
        levels.want(1, Some(Level::Error));
        levels.want(2, Some(Level::Debug));
        assert_eq!(levels.most_verbose(), Level::Debug);
        let admitted =
            |member| ["debug", "info", "error"].map(|word| levels.admits(member, &log(word)));
        assert_eq!(admitted(1), [false, false, true]);
        assert_eq!(admitted(2), [true, true, true]);
        assert_eq!(admitted(3), [false, true, true], "it never said");
        assert_eq!(levels.want(2, None), Some(Level::Debug));
        assert_eq!(levels.most_verbose(), Level::Error);
        assert!(levels.admits(1, &Notice::list_changed("tools")));
    }
}
