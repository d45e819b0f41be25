//! How often a task is polled, and the progress that its caller gets meanwhile.
//! Spec: SPEC K-04, C-01 to C-03; BRIDGING §3.8.

use std::time::Duration;

use crate::call::{Call, DownstreamLink, Notice, NoticeKind};
use crate::protocol::{json, meta, rpc};
use crate::translate::task::state::UpstreamTask;

/// Default poll interval of a task, and the bounds for an interval requested by the upstream.
const USUAL: Duration = Duration::from_secs(1);
pub(super) const SHORTEST: Duration = Duration::from_millis(50);
const LONGEST: Duration = Duration::from_secs(30);

/// The poll interval of one task. Reports the task's status as progress of the call that waits for it.
#[derive(Debug)]
pub(super) struct PollPace {
    interval: Duration,
    /// JSON text of the caller's progress token.
    token: Option<String>,
    told: u64,
    last: Option<String>,
}

impl PollPace {
    /// For a task that was begun for `call`.
    pub(super) fn new(call: &Call, state: &UpstreamTask<'_>) -> Self {
        let mut pace = Self {
            interval: USUAL,
            token: meta::progress_token(&call.message).map(str::to_owned),
            told: 0,
            last: None,
        };
        pace.keep(state);
        pace
    }

    /// Whether the caller wants progress.
    pub(super) fn is_followed(&self) -> bool {
        self.token.is_some()
    }

    /// Waits until the next poll is due.
    pub(super) async fn wait(&self) {
        tokio::time::sleep(self.interval).await;
    }

    fn keep(&mut self, state: &UpstreamTask<'_>) {
        if state.interval.is_some() {
            self.interval = Self::asked_for(state);
        }
    }

    /// The poll interval that the upstream asks for, within bounds.
    pub(super) fn asked_for(state: &UpstreamTask<'_>) -> Duration {
        state
            .interval
            .map_or(USUAL, |interval| interval.clamp(SHORTEST, LONGEST))
    }

    /// Notes the present state of the task. A new status message is reported as progress.
    pub(super) fn note(&mut self, state: &UpstreamTask<'_>, link: &dyn DownstreamLink) {
        self.keep(state);
        let (Some(token), Some(message)) = (&self.token, &state.message) else {
            return;
        };
        if self.last.as_ref() == Some(message) {
            return;
        }
        self.told += 1;
        let (count, text) = (self.told.to_string(), json::quote(message));
        let params = [
            ("progressToken", token),
            ("progress", &count),
            ("message", &text),
        ];
        let bytes = rpc::notification("notifications/progress", &json::object(params));
        link.notify(Notice {
            kind: NoticeKind::Progress {
                token: token.as_str().into(),
            },
            bytes: bytes.into(),
        });
        self.last = Some(message.clone());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::lock::lock;
    use crate::protocol::Message;

    /// A client that records its notifications.
    #[derive(Debug, Default)]
    struct Client(Mutex<Vec<Message>>);

    impl DownstreamLink for Client {
        fn notify(&self, notice: Notice) {
            lock(&self.0).push(Message::parse(notice.bytes, 128).unwrap());
        }
    }

    // SPEC C-02, C-03.
    #[test]
    fn a_new_status_message_is_progress_and_the_same_one_is_not() {
        let client = Client::default();
        let mut pace = PollPace {
            interval: USUAL,
            token: Some("7".to_owned()),
            told: 0,
            last: None,
        };
        for message in ["a", "a", "b", "b", "a"] {
            let text =
                format!(r#"{{"taskId":"t","status":"working","statusMessage":"{message}"}}"#);
            pace.note(&UpstreamTask::read(&text).unwrap(), &client);
        }
        let heard = lock(&client.0);
        let told = heard
            .iter()
            .map(|notice| (notice.param("progress"), notice.param_str("message")));
        let told: Vec<_> = told.map(|(n, text)| (n.unwrap(), text.unwrap())).collect();
        let told: Vec<_> = told.iter().map(|(n, text)| (*n, &**text)).collect();
        assert_eq!(told, [("1", "a"), ("2", "b"), ("3", "a")]);
        assert_eq!(heard[0].param("progressToken"), Some("7"));
    }

    fn kept(member: &str) -> Duration {
        let text = format!(r#"{{"taskId":"a","status":"working"{member}}}"#);
        let mut pace = PollPace {
            interval: USUAL,
            token: None,
            told: 0,
            last: None,
        };
        pace.keep(&UpstreamTask::read(&text).unwrap());
        pace.interval
    }

    #[test]
    fn an_upstream_chooses_the_pace_within_bounds() {
        assert_eq!(kept(""), USUAL);
        assert_eq!(kept(r#","pollInterval":0"#), SHORTEST);
        assert_eq!(
            kept(r#","pollIntervalMs":2500"#),
            Duration::from_millis(2500)
        );
        assert_eq!(kept(r#","pollInterval":2e3"#), Duration::from_secs(2));
        assert_eq!(kept(r#","pollIntervalMs":86400000"#), LONGEST);
        assert_eq!(kept(r#","pollIntervalMs":-1"#), USUAL);
    }
}
