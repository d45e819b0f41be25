//! A fresh connection that is told the log level and the subscriptions of its session; and what may have been missed in
//! between. Spec: SPEC U-02, D-06; BRIDGING §3.4.

use std::sync::Arc;

use futures_util::StreamExt as _;

use super::connection::LegacyConnection;
use crate::call::{Notice, NoticeArrival};
use crate::protocol::json::quote;
use crate::upstream::link::session_state::SessionState;

/// Subscriptions restored at the same time.
const RESTORED_AT_ONCE: usize = 16;

/// A fresh connection with the state of the last connection.
#[derive(Debug)]
pub(super) struct RestoredSession {
    connection: Arc<LegacyConnection>,
    /// The resources that are followed again.
    followed: Vec<String>,
}

impl RestoredSession {
    /// Tells a fresh connection what the last one knew (SPEC U-02, D-06), within the time that connecting may take.
    pub(super) async fn tell(connection: &Arc<LegacyConnection>, state: &SessionState) -> Self {
        let level = state.level().map(|level| quote(level.as_str()));
        let followed = state.followed.all();
        let tell = async {
            if let Some(level) = level {
                connection.tell("logging/setLevel", "level", &level).await;
            }
            let all = futures_util::stream::iter(&followed);
            all.for_each_concurrent(RESTORED_AT_ONCE, async |uri| {
                let uri = quote(uri);
                connection.tell("resources/subscribe", "uri", &uri).await;
            })
            .await;
        };
        let settings = &connection.settings;
        let limit = settings.upstream.connect_timeout;
        if tokio::time::timeout(limit, tell).await.is_err() {
            tracing::warn!(
                upstream = %settings.name, resources = followed.len(),
                "not all subscriptions are restored: it takes longer than connect_timeout"
            );
        }
        Self {
            connection: Arc::clone(connection),
            followed,
        }
    }

    /// Notifies of all resources followed before the connection was opened, whose changes may have been missed. Sent
    /// once changes can be heard again, if they can. Spec: BRIDGING §3.4.
    pub(super) fn announce(self, is_listening: bool) {
        if self.followed.is_empty() {
            return;
        }
        let settings = Arc::clone(&self.connection.settings);
        let tasks = settings.tasks.clone();
        tasks.spawn_service(async move {
            if is_listening {
                let limit = settings.upstream.connect_timeout;
                drop(tokio::time::timeout(limit, self.connection.wait_until_live()).await);
            }
            for uri in &self.followed {
                let notice = Notice::resource_updated(uri);
                let arrival = NoticeArrival::now(None);
                settings.intake.notice(&settings.name, notice, arrival);
            }
        });
    }
}
