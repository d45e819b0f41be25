//! Log levels of the sessions at a shared link: the upstream gets the most verbose level, and each session the messages
//! of its own level. Spec: BRIDGING §3.5; SPEC C-21.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use crate::call::{Call, DownstreamLink, LogLevel, Notice, NoticeKind};
use crate::protocol::Era;
use crate::upstream::lock;

/// Level of sessions that never sent `logging/setLevel`, once another session on the link has.
const UNSAID: LogLevel = LogLevel::Info;

/// The levels of the sessions at one link.
#[derive(Debug, Default)]
pub(super) struct MemberLevels {
    wanted: Mutex<HashMap<u64, LogLevel>>,
    /// The level sent to the upstream last; locked during `logging/setLevel`.
    pub(super) told: tokio::sync::Mutex<Option<LogLevel>>,
    /// Whether any member ever set a level: until then the upstream's own choice stands.
    is_set: AtomicBool,
}

impl MemberLevels {
    /// Sets or removes the level of a member; returns the previous level.
    pub(super) fn want(&self, member: u64, level: Option<LogLevel>) -> Option<LogLevel> {
        let mut wanted = lock(&self.wanted);
        match level {
            Some(level) => {
                self.is_set.store(true, Ordering::Relaxed);
                wanted.insert(member, level)
            }
            None => wanted.remove(&member),
        }
    }

    /// The level for the upstream.
    pub(super) fn most_verbose(&self) -> LogLevel {
        let wanted = lock(&self.wanted);
        wanted.values().copied().min().unwrap_or(UNSAID)
    }

    /// The level of a member; `None` where the upstream's choice stands.
    pub(super) fn of(&self, member: u64) -> Option<LogLevel> {
        if !self.is_set.load(Ordering::Relaxed) {
            return None;
        }
        let wanted = lock(&self.wanted);
        Some(wanted.get(&member).copied().unwrap_or(UNSAID))
    }

    /// Whether a member gets a notice; a log message without a level passes.
    pub(super) fn admits(&self, member: u64, notice: &Notice) -> bool {
        if notice.kind != NoticeKind::Log {
            return true;
        }
        let Some(wanted) = self.of(member) else {
            return true;
        };
        notice.level().is_none_or(|level| level >= wanted)
    }

    /// The call with a `DownstreamLink` that drops log messages below the session's level; `None` where none are
    /// dropped. The level of a modern call is checked elsewhere.
    pub(super) fn filtered(self: &Arc<Self>, member: u64, call: &Call) -> Option<Call> {
        if call.revision.era() == Era::Modern || self.of(member).is_none() {
            return None;
        }
        let link = Arc::new(LevelFilterIntake {
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

/// Drops log messages below the level of the member.
#[derive(Debug)]
struct LevelFilterIntake {
    inner: Arc<dyn DownstreamLink>,
    levels: Arc<MemberLevels>,
    member: u64,
}

impl DownstreamLink for LevelFilterIntake {
    fn notify(&self, notice: Notice) {
        if self.levels.admits(self.member, &notice) {
            self.inner.notify(notice);
        }
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
        let levels = MemberLevels::default();
        assert!(levels.admits(1, &log("debug")), "nobody has said anything");
        levels.want(1, Some(LogLevel::Error));
        levels.want(2, Some(LogLevel::Debug));
        assert_eq!(levels.most_verbose(), LogLevel::Debug);
        let admitted =
            |member| ["debug", "info", "error"].map(|word| levels.admits(member, &log(word)));
        assert_eq!(admitted(1), [false, false, true]);
        assert_eq!(admitted(2), [true, true, true]);
        assert_eq!(admitted(3), [false, true, true], "it never said");
        assert_eq!(levels.want(2, None), Some(LogLevel::Debug));
        assert_eq!(levels.most_verbose(), LogLevel::Error);
        assert!(levels.admits(1, &Notice::list_changed("tools")));
    }
}
