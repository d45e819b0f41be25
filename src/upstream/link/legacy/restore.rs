//! Log level and subscriptions, and a fresh connection that is told of them; and what may have been
//! missed in between. Spec: SPEC U-02, D-06; BRIDGING §3.4.

use std::sync::Arc;

use futures_util::StreamExt as _;

use super::LegacyLink;
use super::connection::LegacyConnection;
use crate::call::{LogLevel, Notice, Reply};
use crate::protocol::Message;
use crate::protocol::json::quote;

/// Subscriptions restored at the same time.
const RESTORED_AT_ONCE: usize = 16;

impl LegacyLink {
    /// Ends a subscription that nobody has any more.
    pub(in crate::upstream) async fn unsubscribe(&self, uri: &str) {
        self.state.followed.remove(uri);
        if let Some(connection) = self.open_connection() {
            let uri = quote(uri);
            connection.tell("resources/unsubscribe", "uri", &uri).await;
        }
        self.hold();
    }

    /// The sessions at the link want other log messages than before.
    pub(in crate::upstream) async fn set_level(&self, level: LogLevel) {
        self.state.set_level(level);
        let level = quote(level.as_str());
        if let Some(connection) = self.open_connection() {
            connection.tell("logging/setLevel", "level", &level).await;
        }
        self.extra_connections.set_level(&level).await;
    }

    /// Tells a fresh connection what the last one knew (SPEC U-02, D-06), within the time that
    /// connecting may take; the resources that are followed again.
    pub(super) async fn restore(&self, connection: &Arc<LegacyConnection>) -> Vec<String> {
        let level = self.state.level().map(|level| quote(level.as_str()));
        let followed = self.state.followed.all();
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
        let limit = self.settings.upstream.connect_timeout;
        if tokio::time::timeout(limit, tell).await.is_err() {
            tracing::warn!(
                upstream = %self.settings.name, resources = followed.len(),
                "not all subscriptions are restored: it takes longer than connect_timeout"
            );
        }
        followed
    }

    /// Notifies of all resources followed before the connection was opened, whose changes may have been missed. Sent
    /// once changes can be heard again, if they can. Spec: BRIDGING §3.4.
    pub(super) fn tell_what_was_missed(
        &self,
        connection: &Arc<LegacyConnection>,
        followed: Vec<String>,
    ) {
        if followed.is_empty() {
            return;
        }
        let is_listening = self.listening.get();
        let (settings, connection) = (Arc::clone(&self.settings), Arc::clone(connection));
        self.settings.tasks.spawn_service(async move {
            if is_listening {
                let limit = settings.upstream.connect_timeout;
                drop(tokio::time::timeout(limit, connection.wait_until_live()).await);
            }
            for uri in &followed {
                let notice = Notice::resource_updated(uri);
                settings.intake.notice(&settings.name, notice, None);
            }
        });
    }

    /// Keeps the changes of a successful request for the next connection.
    pub(super) fn remember(&self, request: &Message, reply: &Reply) {
        if reply.error().is_some() {
            return;
        }
        let uri = || request.param_str("uri").unwrap_or_default();
        match request.method() {
            Some("logging/setLevel") => {
                let level = request.param_str("level");
                if let Some(level) = level.and_then(|word| LogLevel::parse(&word)) {
                    self.state.set_level(level);
                }
            }
            Some("resources/subscribe") => {
                self.state.followed.insert(uri().into_owned());
            }
            Some("resources/unsubscribe") => {
                self.state.followed.remove(&uri());
            }
            _ => return,
        }
        self.hold();
    }
}
