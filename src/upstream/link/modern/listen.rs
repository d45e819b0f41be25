//! Change notices of a modern upstream: one `subscriptions/listen` per link, whose filter unites what the sessions of
//! the link want. The filter of a stream is fixed: for another filter a new stream is opened before the old one is
//! closed. Spec: SPEC M-70…M-75, D-06; BRIDGING §3.4.

mod eras;
mod filter;
mod pace;
pub(super) mod sink;
mod spacing;
pub(super) mod wanted;

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use self::filter::{ListenFilter, params};
use self::pace::ListenBackoff;
use self::sink::{ForgetTools, ListenSink};
use self::spacing::OpeningInterval;
use self::wanted::WantedNotices;
use super::ModernServerLink;
use super::discover;
use super::running_request::{ReplyOwner, RunningRequest};
use crate::call::{Notice, Reply};
use crate::cause::chain;
use crate::protocol::{Message, json};
use crate::sync::on_drop::OnDrop;
use crate::upstream::deadlines::CallActivity;
use crate::upstream::error::LinkError;
use crate::upstream::lock;

const METHOD: &str = "subscriptions/listen";
/// Most URIs in the filter of a link that one session uses.
const MAX_URIS: usize = 1024;
/// Most URIs in the filter of a shared link, where each session and principal has its own limit.
const MAX_SHARED_URIS: usize = 64 * MAX_URIS;

/// An acknowledged stream, closed on drop.
struct ListenStream {
    since: Instant,
    filter: ListenFilter,
    honoured: Arc<ListenFilter>,
    end: oneshot::Receiver<ListenEnd>,
    _open: DropGuard,
}

impl ListenStream {
    /// Whether the upstream announces every requested list change on this stream.
    fn hears(&self) -> bool {
        let lists = &self.filter.lists;
        let honours = |what| self.honoured.lists.contains(what);
        !lists.is_empty() && lists.iter().all(honours)
    }
}

/// How a stream of change notices ended.
enum ListenEnd {
    /// With a result: the upstream stopped the stream properly.
    Graceful,
    /// The stream broke off, or was refused.
    Broken(LinkError),
}

impl ModernServerLink {
    /// Sets whether list changes are wanted.
    pub(super) fn want_lists(self: &Arc<Self>, wanted: bool) {
        if self.listening.wants_lists() != wanted {
            self.listening.wish(|all| all.lists = wanted);
            self.keep_listening();
        }
    }

    /// `resources/subscribe`: adds the URI to the filter; answers `{}` only if the upstream accepts it.
    ///
    /// # Errors
    /// [`LinkError`] when the upstream was not reached or did not answer.
    ///
    /// # Cancel safety
    /// Dropping the future removes the URI from the filter again.
    pub(super) async fn subscribe(self: &Arc<Self>, request: &Message) -> Result<Reply, LinkError> {
        let Some(uri) = request.param_str("uri") else {
            return Ok(invalid("params.uri must be a string"));
        };
        let max = self.most_uris();
        let full =
            |wanted: &WantedNotices| wanted.uris.len() >= max && !wanted.uris.contains(&*uri);
        if full(&lock(&self.listening.wanted)) {
            return Ok(invalid("too many subscriptions"));
        }
        let mut settled = self.listening.settled.subscribe();
        let mut is_new = false;
        let number = self.listening.wish(|wanted| {
            is_new = wanted.uris.insert(uri.clone().into_owned());
        });
        // Removed again on failure, unless another subscriber had added the URI before.
        let pending = is_new.then(|| OnDrop::new(|| self.unsubscribe(&uri)));
        self.keep_listening();
        // `connect_timeout` does not include the wait for a child's permit, which the listening task waits for too.
        let late = async {
            self.start().await?;
            let limit = self.settings.upstream.connect_timeout + spacing::LONGEST;
            tokio::time::sleep(limit).await;
            Err(LinkError::Timeout)
        };
        let outcome = tokio::select! {
            biased;
            settled = settled.wait_for(|s| s.generation >= number) => {
                settled.map_err(|_| LinkError::Cancelled)?.clone()
            }
            late = late => return late,
        };
        if outcome.honoured.uris.contains(&*uri) {
            if let Some(pending) = pending {
                pending.disarm();
            }
            self.state.followed.insert(uri.clone().into_owned());
            return Ok(Reply::Result(Bytes::from_static(b"{}")));
        }
        match outcome.failed {
            None => Ok(invalid(
                "the upstream does not announce updates of this resource",
            )),
            Some(why) if why.is_refusal() => {
                let refused = format!("the upstream refuses the subscription: {why}");
                Ok(invalid(&refused))
            }
            Some(other) => Err(other),
        }
    }

    /// `resources/unsubscribe`: removes the URI from the filter. Shared links count subscribers elsewhere.
    pub(in crate::upstream) fn unsubscribe(self: &Arc<Self>, uri: &str) {
        self.state.followed.remove(uri);
        let known = lock(&self.listening.wanted).uris.contains(uri);
        if !known {
            return;
        }
        self.listening.wish(|wanted| {
            wanted.uris.remove(uri);
        });
        self.keep_listening();
    }

    fn most_uris(&self) -> usize {
        if self.settings.exclusive {
            MAX_URIS
        } else {
            MAX_SHARED_URIS
        }
    }

    /// Starts the listening task, unless it runs.
    fn keep_listening(self: &Arc<Self>) {
        if self.closed.is_cancelled() || self.listening.running.swap(true, Ordering::AcqRel) {
            return;
        }
        let (link, closed) = (Arc::clone(self), self.closed.clone());
        self.settings.tasks.spawn_service(async move {
            tokio::select! {
                () = link.listen_on() => {}
                () = closed.cancelled() => {}
            }
            link.listening.set_live(false);
        });
    }

    async fn listen_on(self: &Arc<Self>) {
        let mut wishes = self.listening.generation.subscribe();
        let mut current: Option<ListenStream> = None;
        let (mut pace, mut spacing) = (ListenBackoff::default(), OpeningInterval::default());
        let missed = &self.listening.missed;
        loop {
            let number = *wishes.borrow_and_update();
            let opened = self.follow(&mut current, number, &mut spacing).await;
            if let Err(error) = &opened {
                // Set before `hear_none` wakes the waiters, which read this error.
                let failed = Some(error.clone());
                self.listening.settle(number, Arc::default(), failed);
            }
            let notice_feed = current
                .as_ref()
                .filter(|stream| opened.is_ok() && stream.hears());
            let begins = self.listening.set_live(notice_feed.is_some());
            let is_settled = matches!(opened, Ok(_) | Err(LinkError::Handshake(_)));
            if notice_feed.is_none() && is_settled {
                let asked = current.as_ref().map(|stream| &stream.filter.lists);
                let is_refused = opened.is_err() || asked.is_some_and(|lists| !lists.is_empty());
                self.listening.hear_none(number, is_refused);
            }
            match opened {
                Ok(fresh) => {
                    let was_missed = fresh && missed.swap(false, Ordering::AcqRel);
                    if let Some(stream) = current.as_ref().filter(|_| was_missed) {
                        self.announce(&stream.filter);
                    } else if let Some(stream) = notice_feed.filter(|_| begins) {
                        let intake = &self.settings.intake;
                        intake.heard(&self.settings.name, &stream.filter.lists, false);
                    }
                }
                Err(error) => {
                    tracing::warn!(upstream = %self.settings.name, error = chain(&error), "cannot open the stream of change notices");
                    self.state.doubt.raise(&error);
                    tokio::select! {
                        _ = spacing.next(&mut wishes, number) => {}
                        () = tokio::time::sleep(pace.refused()) => {}
                    }
                    continue;
                }
            }
            let since = current.as_ref().map(|stream| stream.since);
            let ended = async {
                match &mut current {
                    Some(stream) => (&mut stream.end).await.unwrap_or(ListenEnd::Graceful),
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                next = spacing.next(&mut wishes, number) => if next.is_err() { return },
                end = ended => {
                    current = None;
                    self.listening.set_live(false);
                    let wait = match end {
                        ListenEnd::Graceful => pace.ended(),
                        ListenEnd::Broken(error) => {
                            tracing::info!(upstream = %self.settings.name, error = chain(&error), "change notices broke off");
                            missed.store(true, Ordering::Release);
                            pace.broke(since.map(|since| since.elapsed()).unwrap_or_default())
                        }
                    };
                    tokio::select! {
                        _ = spacing.next(&mut wishes, number) => {}
                        () = tokio::time::sleep(wait) => {}
                    }
                    // A stdio child is not started for resource updates alone: wait for the next change of the filter. Another
                    // child may run already.
                    let starts = self.pipe().is_some_and(|pipe| !pipe.runs());
                    if starts && !self.listening.wants_lists() {
                        drop(spacing.next(&mut wishes, number).await);
                    }
                }
            }
        }
    }

    /// Makes the stream `current` match the filter that is wanted now. Returns `true` if a stream was opened.
    async fn follow(
        self: &Arc<Self>,
        current: &mut Option<ListenStream>,
        number: u64,
        spacing: &mut OpeningInterval,
    ) -> Result<bool, LinkError> {
        let declared = self.open_inner().await?;
        let filter = self.listening.filter(&declared);
        if filter == ListenFilter::default() {
            *current = None;
            self.listening.settle(number, Arc::default(), None);
            return Ok(false);
        }
        if let Some(stream) = current.as_ref().filter(|stream| stream.filter == filter) {
            let honoured = Arc::clone(&stream.honoured);
            self.listening.settle(number, honoured, None);
            return Ok(false);
        }
        spacing.begin(&filter);
        let stream = self.open_stream(filter).await?;
        self.listening
            .settle(number, Arc::clone(&stream.honoured), None);
        // Closes the old stream only now, so that no notice in between is lost (SPEC M-75).
        *current = Some(stream);
        Ok(true)
    }

    async fn open_stream(
        self: &Arc<Self>,
        filter: ListenFilter,
    ) -> Result<ListenStream, LinkError> {
        let caller = self.settings.carrier.caller().cloned();
        // First: a child that is started gets a token for the caller's.
        if let Some(caller) = &caller {
            caller.ready().await;
        }
        self.start().await?;
        let (acknowledge, acknowledged) = oneshot::channel();
        let (schemas, owner) = (Arc::clone(&self.schemas), self.settings.owner);
        let stop = CancellationToken::new();
        let sink = Arc::new(ListenSink {
            upstream: Arc::clone(&self.settings.name),
            intake: Arc::clone(&self.settings.intake),
            acknowledged: Mutex::new(Some(acknowledge)),
            ended: CancellationToken::new(),
            forget_tools: ForgetTools(Box::new(move || schemas.forget(owner))),
            keeps_busy: !filter.lists.is_empty(),
        });
        let flight = RunningRequest::new(
            self.next_id(),
            ReplyOwner::Listen(Arc::clone(&sink)),
            Arc::new(CallActivity::new()),
        );
        let (ending, mut end) = oneshot::channel();
        let (link, stopped, params) = (Arc::clone(self), stop.clone(), params(&filter));
        self.settings.tasks.spawn_service(async move {
            let bytes = discover::own_request(flight.id, METHOD, &params, &link.settings);
            let listen = link.exchange_again(bytes, || Ok(discover::own_headers(METHOD)), &flight);
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
        let limit = self.settings.upstream.connect_timeout;
        tokio::select! {
            biased;
            // A stream after its end sends no acknowledgement; the end holds the error.
            Ok(honoured) = acknowledged => Ok(ListenStream {
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

    /// Announces every list and resource of the filter as changed, since notices may have been missed.
    fn announce(&self, filter: &ListenFilter) {
        let intake = &self.settings.intake;
        if filter.lists.contains(&"tools") {
            self.schemas.forget(self.settings.owner);
        }
        for what in &filter.lists {
            intake.notice(&self.settings.name, Notice::list_changed(what), None);
        }
        for uri in &filter.uris {
            intake.notice(&self.settings.name, Notice::resource_updated(uri), None);
        }
    }
}

fn refusal(reply: &Message) -> String {
    let text = reply.error_member("message").and_then(json::string);
    text.unwrap_or_default().chars().take(200).collect()
}

fn invalid(message: &str) -> Reply {
    let message = json::quote(message);
    Reply::Error(format!(r#"{{"code":-32602,"message":{message}}}"#).into())
}

#[cfg(test)]
mod tests;
