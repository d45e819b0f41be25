//! Change notices of a modern upstream: one `subscriptions/listen` per link, whose filter unites what the sessions of
//! the link want. The filter of a stream is fixed: for another filter a new stream is opened before the old one is
//! closed. Spec: SPEC M-70…M-75, D-06; BRIDGING §3.4.

mod eras;
mod filter;
mod pace;
pub(super) mod sink;
mod spacing;
mod stream;
mod wanted;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;

use self::filter::ListenFilter;
use self::pace::ListenBackoff;
use self::spacing::OpeningInterval;
use self::stream::{ListenEnd, ListenStream};
use self::wanted::{LinkListening, WantedNotices};
use super::connection::ModernConnection;
use super::schemas::ToolSchemas;
use crate::call::{Notice, NoticeArrival, Reply};
use crate::cause::chain;
use crate::protocol::error_codes::INVALID_PARAMS;
use crate::protocol::{Message, rpc};
use crate::sync::on_drop::OnDrop;
use crate::upstream::carrier::LinkSettings;
use crate::upstream::error::LinkError;
use crate::upstream::link::session_state::SessionState;
use crate::upstream::lock;

/// Most URIs in the filter of a link that one session uses.
const MAX_URIS: usize = 1024;
/// Most URIs in the filter of a shared link, where each session and principal has its own limit.
const MAX_SHARED_URIS: usize = 64 * MAX_URIS;

/// The change notices of one link: which notices its sessions want, and the stream for these notices.
#[derive(Debug)]
pub(in crate::upstream) struct LinkNotices {
    settings: Arc<LinkSettings>,
    connection: Arc<ModernConnection>,
    schemas: Arc<ToolSchemas>,
    /// Subscriptions, kept for a link of the other era, which may replace this link.
    state: SessionState,
    listening: LinkListening,
}

impl LinkNotices {
    /// None wanted yet.
    pub(super) fn new(
        connection: &Arc<ModernConnection>,
        schemas: &Arc<ToolSchemas>,
        state: &SessionState,
    ) -> Arc<Self> {
        Arc::new(Self {
            settings: Arc::clone(&connection.settings),
            connection: Arc::clone(connection),
            schemas: Arc::clone(schemas),
            state: state.clone(),
            listening: LinkListening::default(),
        })
    }

    /// See [`crate::call::UpstreamLink::notice_feed`].
    pub(in crate::upstream) fn notice_feed(&self) -> Option<u64> {
        self.listening.notice_feed().epoch()
    }

    /// See [`crate::call::UpstreamLink::wait_until_live`].
    pub(in crate::upstream) async fn wait_until_live(&self) -> bool {
        tokio::select! {
            begun = self.listening.notice_feed().begun() => begun,
            () = self.connection.closed().cancelled() => false,
        }
    }

    /// Sets whether list changes are wanted.
    pub(in crate::upstream) fn listen(self: &Arc<Self>, wanted: bool) {
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
            self.connection.start().await?;
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
        if self.connection.closed().is_cancelled()
            || self.listening.running.swap(true, Ordering::AcqRel)
        {
            return;
        }
        let (this, closed) = (Arc::clone(self), self.connection.closed().clone());
        self.settings.tasks.spawn_service(async move {
            tokio::select! {
                () = this.listen_on() => {}
                () = closed.cancelled() => {}
            }
            this.listening.set_live(false);
        });
    }

    async fn listen_on(&self) {
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
                    let lasted = since.map(|since| since.elapsed()).unwrap_or_default();
                    let wait = match end {
                        ListenEnd::Graceful => pace.ended(lasted),
                        ListenEnd::Broken(error) => {
                            tracing::info!(upstream = %self.settings.name, error = chain(&error), "change notices broke off");
                            missed.store(true, Ordering::Release);
                            pace.broke(lasted)
                        }
                    };
                    tokio::select! {
                        _ = spacing.next(&mut wishes, number) => {}
                        () = tokio::time::sleep(wait) => {}
                    }
                    // A stdio child is not started for resource updates alone: wait for the next change of the filter. Another
                    // child may run already.
                    let starts = self.connection.pipe().is_some_and(|pipe| !pipe.runs());
                    if starts && !self.listening.wants_lists() {
                        drop(spacing.next(&mut wishes, number).await);
                    }
                }
            }
        }
    }

    /// Makes the stream `current` match the filter that is wanted now. Returns `true` if a stream was opened.
    async fn follow(
        &self,
        current: &mut Option<ListenStream>,
        number: u64,
        spacing: &mut OpeningInterval,
    ) -> Result<bool, LinkError> {
        let declared = self.connection.open().await?;
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
        let stream = ListenStream::open(&self.connection, &self.schemas, filter).await?;
        self.listening
            .settle(number, Arc::clone(&stream.honoured), None);
        // Closes the old stream only now, so that no notice in between is lost (SPEC M-75).
        *current = Some(stream);
        Ok(true)
    }

    /// Announces every list and resource of the filter as changed, since notices may have been missed.
    fn announce(&self, filter: &ListenFilter) {
        let intake = &self.settings.intake;
        if filter.lists.contains(&"tools") {
            self.schemas.forget(self.settings.owner);
        }
        let (name, arrival) = (&self.settings.name, NoticeArrival::now(None));
        for what in &filter.lists {
            intake.notice(name, Notice::list_changed(what), arrival);
        }
        for uri in &filter.uris {
            intake.notice(name, Notice::resource_updated(uri), arrival);
        }
    }
}

fn invalid(message: &str) -> Reply {
    Reply::Error(rpc::error(INVALID_PARAMS, message, None).into())
}

#[cfg(test)]
mod tests;
