//! Bursts of change notices, coalesced per session and kind (for resources: per URI). The first of a
//! burst goes out at once, then one per [`PAUSE`], the last one always.
//! Spec: SPEC M-75; BRIDGING §2.4, §5.6.

use std::collections::HashMap;

use tokio::time::{Duration, Instant};

use super::delivery::NoticeSource;
use super::subscriptions::LONGEST_URI;
use crate::call::{Notice, NoticeKind};

/// Between two notices of one kind.
const PAUSE: Duration = Duration::from_millis(200);
/// Kinds that are remembered; a notice of one more is not coalesced.
const KINDS: usize = 256;
/// Bytes of waiting notices; a notice beyond them is not coalesced.
const BYTES: usize = 256 * 1024;

/// Change notices of one session: when each kind was last sent, and the notice that waits.
#[derive(Debug, Default)]
pub(super) struct NoticeBursts {
    kinds: HashMap<NoticeKind, NoticeBurst>,
    waiting_bytes: usize,
    /// Whether the task that sends waiting notices runs.
    pub(super) is_flushing: bool,
}

#[derive(Debug)]
struct NoticeBurst {
    sent: Instant,
    waiting: Option<(Notice, NoticeSource)>,
}

/// What happens to a notice.
#[derive(Debug)]
pub(super) enum BurstAdmission {
    /// It goes out now.
    Now(Notice, NoticeSource),
    /// It waits for its turn.
    Waits,
    /// It waits in place of an older one of its kind.
    Replaces,
}

/// Whether notices of this kind are coalesced. Spec: no other notice between peers is.
pub(super) fn is_coalesced(kind: &NoticeKind) -> bool {
    match kind {
        NoticeKind::ListChanged { .. } => true,
        NoticeKind::ResourceUpdated { uri } => uri.len() <= LONGEST_URI,
        _ => false,
    }
}

impl NoticeBursts {
    /// Takes a notice of a kind that is coalesced.
    pub(super) fn admit(&mut self, notice: Notice, source: NoticeSource) -> BurstAdmission {
        let now = Instant::now();
        let size = notice.bytes.len();
        if let Some(burst) = self.kinds.get_mut(&notice.kind) {
            if burst.waiting.is_none() && now.duration_since(burst.sent) >= PAUSE {
                burst.sent = now;
                return BurstAdmission::Now(notice, source);
            }
            let before = burst.waiting.as_ref();
            let before = before.map_or(0, |(waiting, _)| waiting.bytes.len());
            if self.waiting_bytes - before + size > BYTES {
                return BurstAdmission::Now(notice, source);
            }
            self.waiting_bytes = self.waiting_bytes - before + size;
            return match burst.waiting.replace((notice, source)) {
                Some(_) => BurstAdmission::Replaces,
                None => BurstAdmission::Waits,
            };
        }
        if self.kinds.len() >= KINDS {
            self.forget_old(now);
        }
        if self.kinds.len() < KINDS {
            let burst = NoticeBurst {
                sent: now,
                waiting: None,
            };
            self.kinds.insert(notice.kind.clone(), burst);
        }
        BurstAdmission::Now(notice, source)
    }

    /// When the next waiting notice is due; `None` when none waits.
    pub(super) fn next_due(&self) -> Option<Instant> {
        let waiting = self.kinds.values().filter(|burst| burst.waiting.is_some());
        waiting.map(|burst| burst.sent + PAUSE).min()
    }

    /// Takes the waiting notices that are due.
    pub(super) fn take_due(&mut self) -> Vec<(Notice, NoticeSource)> {
        let now = Instant::now();
        let mut due = Vec::new();
        for burst in self.kinds.values_mut() {
            if burst.sent + PAUSE <= now
                && let Some(waiting) = burst.waiting.take()
            {
                self.waiting_bytes -= waiting.0.bytes.len();
                burst.sent = now;
                due.push(waiting);
            }
        }
        due
    }

    /// Forgets kinds whose last notice is older than the pause.
    pub(super) fn forget_old(&mut self, now: Instant) {
        self.kinds
            .retain(|_, burst| burst.waiting.is_some() || now.duration_since(burst.sent) < PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admit(bursts: &mut NoticeBursts, notice: Notice) -> bool {
        let admission = bursts.admit(notice, NoticeSource::default());
        matches!(admission, BurstAdmission::Now(..))
    }

    async fn pass(ms: u64) {
        tokio::time::advance(Duration::from_millis(ms)).await;
    }

    // Spec: SPEC M-75.
    #[tokio::test(start_paused = true)]
    async fn burst_sends_first_then_one_per_pause_and_last() {
        let mut bursts = NoticeBursts::default();
        let mut sent = 0;
        for _ in 0..200 {
            sent += usize::from(admit(&mut bursts, Notice::list_changed("tools")));
            sent += bursts.take_due().len();
            tokio::time::advance(Duration::from_micros(2500)).await;
        }
        assert_eq!(sent, 3, "at 0, 200 and 400 ms");
        pass(200).await;
        assert_eq!(bursts.take_due().len(), 1, "the last one");
        assert_eq!(bursts.next_due(), None);
        assert_eq!(bursts.waiting_bytes, 0);
        pass(200).await;
        assert!(admit(&mut bursts, Notice::list_changed("tools")));
    }

    #[tokio::test(start_paused = true)]
    async fn other_kinds_and_uris_do_not_wait() {
        let mut bursts = NoticeBursts::default();
        for notice in [
            Notice::list_changed("tools"),
            Notice::list_changed("prompts"),
            Notice::resource_updated("a:1"),
            Notice::resource_updated("a:2"),
        ] {
            assert!(admit(&mut bursts, notice.clone()));
            assert!(!admit(&mut bursts, notice));
        }
        assert!(!is_coalesced(&NoticeKind::Log));
        assert!(!is_coalesced(&NoticeKind::ElicitationComplete));
    }

    #[tokio::test(start_paused = true)]
    async fn remembered_kinds_and_waiting_bytes_are_bounded() {
        let mut bursts = NoticeBursts::default();
        for number in 0..=KINDS {
            let notice = Notice::resource_updated(&format!("a:{number}"));
            assert!(admit(&mut bursts, notice));
        }
        assert_eq!(bursts.kinds.len(), KINDS);
        let mut large = Notice::resource_updated("a:0");
        large.bytes = vec![b' '; BYTES + 1].into();
        assert!(admit(&mut bursts, large), "too large to wait");
        pass(200).await;
        assert!(admit(&mut bursts, Notice::list_changed("tools")));
        assert_eq!(bursts.kinds.len(), 1, "old ones are forgotten");
    }
}
