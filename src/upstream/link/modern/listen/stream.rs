//! `ListenStream`: one acknowledged `subscriptions/listen`. Spec: SPEC M-70 to M-72.

use std::sync::{Arc, Mutex};

use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::super::connection::ModernConnection;
use super::super::discover;
use super::super::running_request::{ReplyOwner, RunningRequest};
use super::super::schemas::ToolSchemas;
use super::filter::{ListenFilter, notifications};
use super::sink::{ForgetTools, ListenSink};
use crate::protocol::{Message, json};
use crate::telemetry::redact::shown;
use crate::upstream::deadlines::CallActivity;
use crate::upstream::error::LinkError;

const METHOD: &str = "subscriptions/listen";

/// An acknowledged stream, closed on drop.
pub(super) struct ListenStream {
    pub(super) since: Instant,
    pub(super) filter: ListenFilter,
    pub(super) honoured: Arc<ListenFilter>,
    pub(super) end: oneshot::Receiver<ListenEnd>,
    _open: DropGuard,
}

/// How a stream of change notices ended.
pub(super) enum ListenEnd {
    /// With a result: the upstream stopped the stream properly.
    Graceful,
    /// The stream broke off, or was refused.
    Broken(LinkError),
}

impl ListenStream {
    /// Opens a stream with `filter`. A change of the tools evicts those of the link's owner from `schemas`.
    ///
    /// # Errors
    /// [`LinkError`] when the upstream refused it, or did not acknowledge it in time.
    ///
    /// # Cancel safety
    /// Dropping the future closes the stream.
    pub(super) async fn open(
        connection: &Arc<ModernConnection>,
        schemas: &Arc<ToolSchemas>,
        filter: ListenFilter,
    ) -> Result<Self, LinkError> {
        let settings = &connection.settings;
        let caller = settings.carrier.caller().cloned();
        // First: a child that is started gets a token for the caller's.
        if let Some(caller) = &caller {
            caller.ready().await;
        }
        connection.start().await?;
        let (acknowledge, acknowledged) = oneshot::channel();
        let (schemas, owner) = (Arc::clone(schemas), settings.owner);
        let stop = CancellationToken::new();
        let sink = Arc::new(ListenSink {
            upstream: Arc::clone(&settings.name),
            intake: Arc::clone(&settings.intake),
            acknowledged: Mutex::new(Some(acknowledge)),
            ended: CancellationToken::new(),
            forget_tools: ForgetTools(Box::new(move || schemas.forget(owner))),
            keeps_busy: !filter.lists.is_empty(),
        });
        let running = RunningRequest::new(
            connection.next_id(),
            ReplyOwner::Listen(Arc::clone(&sink)),
            Arc::new(CallActivity::new()),
        );
        let (ending, mut end) = oneshot::channel();
        let (stopped, notifications) = (stop.clone(), notifications(&filter));
        let connection = Arc::clone(connection);
        settings.tasks.spawn_service(async move {
            let params = [("notifications", &*notifications)];
            let bytes = discover::own_request(running.id, METHOD, &params, &connection.settings);
            let headers = || Ok(discover::own_headers(METHOD));
            let listen = connection.exchange_again(bytes, headers, &running);
            let caller_ended = async {
                match &caller {
                    Some(caller) => caller.ended().await,
                    None => std::future::pending().await,
                }
            };
            let end = tokio::select! {
                reply = listen => match reply {
                    Ok(reply) if reply.error().is_none() => ListenEnd::Graceful,
                    Ok(reply) => ListenEnd::Broken(LinkError::Handshake(refusal(&reply))),
                    Err(error) => ListenEnd::Broken(error),
                },
                () = sink.ended.cancelled() => ListenEnd::Graceful,
                () = caller_ended => ListenEnd::Graceful,
                () = stopped.cancelled() => return,
            };
            drop(ending.send(end));
        });
        let open = stop.drop_guard();
        let limit = settings.upstream.connect_timeout;
        tokio::select! {
            biased;
            // A stream after its end sends no acknowledgement; the end holds the error.
            Ok(honoured) = acknowledged => Ok(Self {
                since: Instant::now(),
                filter,
                honoured: Arc::new(honoured),
                end,
                _open: open,
            }),
            end = &mut end => Err(match end {
                Ok(ListenEnd::Broken(error)) => error,
                _ => LinkError::Invalid("it ended a stream before it began".to_owned()),
            }),
            () = tokio::time::sleep(limit) => Err(LinkError::Timeout),
        }
    }

    /// Whether the upstream announces every requested list change on this stream.
    pub(super) fn hears(&self) -> bool {
        let lists = &self.filter.lists;
        let honours = |what| self.honoured.lists.contains(what);
        !lists.is_empty() && lists.iter().all(honours)
    }
}

fn refusal(reply: &Message) -> String {
    let text = reply.error_member("message").and_then(json::string);
    shown(&text.unwrap_or_default(), 200).into_owned()
}
