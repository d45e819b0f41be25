//! GET of the legacy era: the stream of messages outside calls, or the rest of a stream that broke
//! off. Spec: SPEC §1b.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use axum::body::Body;
use http::{HeaderMap, Response, StatusCode};

use super::access_log::AccessRecord;
use super::media::Accept;
use super::streamable::{check_version, no_room, session_id};
use super::{Front, reply};
use crate::call::Principal;
use crate::endpoint::Endpoint;
use crate::fault::{Fault, FaultKind};
use crate::protocol::Revision;
use crate::protocol::headers::LAST_EVENT_ID;
use crate::session::{EventId, Session};
use crate::telemetry::metrics::COUNTERS;

impl Front {
    /// GET: the stream of messages outside calls, or the rest of a stream that broke off.
    /// Spec: SPEC T-20, T-25, T-29.
    pub(super) fn get(
        self: &Arc<Self>,
        endpoint: &Arc<Endpoint>,
        principal: &Arc<Principal>,
        headers: &HeaderMap,
        record: &AccessRecord,
    ) -> Response<Body> {
        if !Accept::read(headers).events {
            return reply::plain(
                StatusCode::NOT_ACCEPTABLE,
                "Accept must list text/event-stream",
            );
        }
        if let Err(fault) = check_version(headers) {
            return reply::fault_response(&fault, None);
        }
        match self.open_get(endpoint, principal, headers, record) {
            Ok(response) => response,
            Err(fault) => reply::fault_response(&fault, None),
        }
    }

    fn open_get(
        self: &Arc<Self>,
        endpoint: &Arc<Endpoint>,
        principal: &Arc<Principal>,
        headers: &HeaderMap,
        record: &AccessRecord,
    ) -> Result<Response<Body>, Fault> {
        let session = self.bind(session_id(headers), principal, endpoint)?;
        record.session(session.tag());
        let polls = session.revision >= Revision::V2025_11_25;
        let permit = session
            .open_stream(self.settings.limits.streams_per_session)
            .map_err(no_room)?;
        let reader = match headers.get(LAST_EVENT_ID) {
            None => {
                if polls {
                    session.standalone().prime();
                }
                session.standalone().attach()
            }
            Some(last) => {
                let last = last.to_str().ok().and_then(EventId::parse);
                let known = last.filter(|last| last.tag == session.tag());
                let resumed =
                    known.and_then(|last| session.stream(last.stream)?.resume(last.seq).ok());
                let resumed = resumed.inspect(|_| COUNTERS.streams_resumed.add(1));
                resumed.ok_or_else(|| {
                    Fault::downstream(
                        FaultKind::UnknownSession,
                        "there is nothing to resume after this Last-Event-ID",
                    )
                })?
            }
        };
        let standalone = reader.stream().number() == session.standalone().number();
        if standalone {
            self.relay.listen(&session);
        }
        let ends = standalone.then(|| self.end_of_get(&session, principal));
        Ok(self.stream_body(&session, reader, None, ends, polls, permit))
    }

    /// Resolves when a stream without an end of its own has to end: with its session, its token, or the gateway.
    pub(super) fn end_of_get(
        &self,
        session: &Arc<Session>,
        principal: &Principal,
    ) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let closed = session.closed().clone();
        let draining = self.tasks.draining().clone();
        // A token that is accepted for the sake of clocks may have expired already.
        let grace = self.settings.sessions.token_grace;
        let left = principal
            .expires_at()
            .map(|at| at.saturating_add(grace).saturating_sub(self.auth.now()));
        Box::pin(async move {
            let expired = async {
                match left {
                    Some(left) => tokio::time::sleep(left).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = closed.cancelled() => {}
                () = draining.cancelled() => {}
                () = expired => {}
            }
        })
    }
}
