//! `subscriptions/listen`: a stream of changes that a client asked for, until either side ends it.
//! Spec: SPEC M-70 to M-77; BRIDGING §3.4.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use axum::body::Body;
use bytes::Bytes;
use futures_util::stream::{self, Stream};
use http::Response;
use tokio::time::Instant;

use super::outlet::{Next, Outlet};
use super::refusal::Refusal;
use super::{Asked, Stopped, refusal};
use crate::call::{Notice, Principal};
use crate::downstream::plain_events::PlainEvents;
use crate::downstream::{Front, reply, streamable};
use crate::fault::Fault;
use crate::lock::lock;
use crate::protocol::json::{self, ObjectWriter};
use crate::protocol::{Message, meta};
use crate::relay::Filter;
use crate::session::{Listener, Listening, Session, StreamPermit};

/// Takes the notices of a visit for one subscription.
#[derive(Debug)]
struct Subscription {
    /// JSON text of the request's id, which names the subscription.
    id: String,
    outlet: Arc<Outlet<Infallible>>,
    filter: Mutex<Filter>,
}

impl Subscription {
    fn honours(&self, filter: Filter) {
        *lock(&self.filter) = filter;
    }
}

impl Listener for Subscription {
    fn tell(&self, notice: &Notice) {
        let wanted = {
            let filter = lock(&self.filter);
            filter.wants(&notice.kind)
        };
        if !wanted {
            return;
        }
        // Spec: SPEC M-72.
        if let Ok(message) = Message::parse(notice.bytes.clone(), json::MAX_DEPTH) {
            self.outlet.notify(Notice {
                kind: notice.kind.clone(),
                bytes: message
                    .edit()
                    .meta(meta::SUBSCRIPTION_ID, self.id.as_str())
                    .finish(),
            });
        }
    }
}

/// What a subscription holds; given back when dropped, whoever ends it.
struct Held {
    front: Arc<Front>,
    principal: Arc<Principal>,
    session: Arc<Session>,
    listening: Option<Listening>,
    uris: Vec<String>,
    _permit: StreamPermit,
}

impl Drop for Held {
    fn drop(&mut self) {
        drop(self.listening.take());
        let (front, uris) = (Arc::clone(&self.front), std::mem::take(&mut self.uris));
        let (principal, session) = (Arc::clone(&self.principal), Arc::clone(&self.session));
        self.front.tasks.spawn(async move {
            front.relay.leave(&principal, &session, &uris).await;
        });
    }
}

impl Front {
    /// Opens a subscription: upstreams are asked first, then it is acknowledged, so that nothing in
    /// between is lost (SPEC M-75).
    pub(super) async fn listen_modern(self: &Arc<Self>, asked: Asked) -> Response<Body> {
        let id = asked.id();
        let opened = match wanted(&asked) {
            Ok(filter) => self.open_subscription(&asked, filter).await,
            Err(refusal) => return refusal.response(Some(&id)),
        };
        match opened {
            Ok(mut opened) => {
                let messages = stream::poll_fn(move |cx| opened.poll_next(cx));
                let every = self.settings.server.keep_alive;
                reply::event_stream(Body::new(PlainEvents::new(Bytes::new(), messages, every)))
            }
            Err(fault) => refusal::fault_response(&fault, Some(&id)),
        }
    }

    /// The same where messages do not go out as events: the acknowledgement, the changes, and the
    /// response as the last.
    pub(super) async fn subscribe(
        self: &Arc<Self>,
        asked: &Asked,
    ) -> Result<impl Stream<Item = Vec<Bytes>> + Send + use<>, Stopped> {
        let filter = wanted(asked).map_err(Stopped::Refused)?;
        let opened = self.open_subscription(asked, filter).await;
        let mut opened = opened.map_err(Stopped::Failed)?;
        Ok(stream::poll_fn(move |cx| opened.poll_next(cx)))
    }

    async fn open_subscription(
        self: &Arc<Self>,
        asked: &Asked,
        wanted: Filter,
    ) -> Result<Opened, Fault> {
        let capabilities = &asked.envelope.capabilities;
        let session = self
            .relay
            .visit(&asked.principal, &asked.endpoint, capabilities)?;
        let permit = session
            .open_stream(self.settings.limits.streams_per_session)
            .map_err(streamable::no_room)?;
        let subscription = Arc::new(Subscription {
            id: asked.id(),
            outlet: Outlet::new(),
            filter: Mutex::new(wanted.clone()),
        });
        let mut held = Held {
            front: Arc::clone(self),
            principal: Arc::clone(&asked.principal),
            listening: Some(session.register(Arc::clone(&subscription) as _)),
            session: Arc::clone(&session),
            uris: Vec::new(),
            _permit: permit,
        };
        let mut honoured = self.relay.listen_all(&session, &wanted).await;
        let end = Instant::now() + self.settings.mcp.connect_wait;
        for uri in wanted.uris {
            let left = end.saturating_duration_since(Instant::now());
            if self
                .relay
                .follow(&asked.principal, &session, &uri, left)
                .await
            {
                held.uris.push(uri);
            }
        }
        honoured.uris.clone_from(&held.uris);
        let ack = acknowledgement(&subscription.id, &honoured);
        subscription.honours(honoured);
        let server = self.relay.server_info(&session);
        let result = format!(
            r#"{{"jsonrpc":"2.0","id":{id},"result":{{"resultType":"complete","_meta":{{"{}":{id},"{}":{}}}}}}}"#,
            meta::SUBSCRIPTION_ID,
            meta::SERVER_INFO,
            std::str::from_utf8(&server).unwrap_or("{}"),
            id = subscription.id,
        );
        Ok(Opened {
            ack: Some(ack.into()),
            outlet: Arc::clone(&subscription.outlet),
            ends: self.end_of_get(&session, &asked.principal),
            result: Some(result.into()),
            _held: held,
        })
    }
}

/// What a request asks for.
fn wanted(asked: &Asked) -> Result<Filter, Refusal> {
    let text = asked.message.param("notifications");
    let members = text
        .and_then(|text| json::members(text).ok())
        .ok_or_else(|| Refusal::params("params.notifications must be an object"))?;
    let mut filter = Filter::default();
    for (name, value) in members {
        let flag = value == "true";
        match &*name {
            "toolsListChanged" => filter.tools = flag,
            "promptsListChanged" => filter.prompts = flag,
            "resourcesListChanged" => filter.resources = flag,
            "resourceSubscriptions" => filter.uris = uris(value)?,
            // Spec: SPEC M-76; they are not in the acknowledgement, so they are asked for with
            // `tasks/get`.
            "taskIds" => asked
                .envelope
                .needs_tasks("taskIds need the tasks extension")?,
            _ => {}
        }
    }
    Ok(filter)
}

fn uris(value: &str) -> Result<Vec<String>, Refusal> {
    let invalid = || Refusal::params("resourceSubscriptions must be an array of strings");
    let mut uris = Vec::new();
    for element in json::elements(value).map_err(|_| invalid())? {
        let uri = json::string(element).ok_or_else(invalid)?.into_owned();
        if !uris.contains(&uri) {
            uris.push(uri);
        }
    }
    Ok(uris)
}

fn acknowledgement(id: &str, honoured: &Filter) -> String {
    let mut notifications = ObjectWriter::default();
    for (name, honoured) in [
        ("toolsListChanged", honoured.tools),
        ("promptsListChanged", honoured.prompts),
        ("resourcesListChanged", honoured.resources),
    ] {
        if honoured {
            notifications.member(name, "true");
        }
    }
    if !honoured.uris.is_empty() {
        notifications.member("resourceSubscriptions", &json::strings(&honoured.uris));
    }
    format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{{"_meta":{{"{}":{id}}},"notifications":{}}}}}"#,
        meta::SUBSCRIPTION_ID,
        notifications.finish()
    )
}

/// An open subscription. Dropping it ends it.
struct Opened {
    ack: Option<Bytes>,
    outlet: Arc<Outlet<Infallible>>,
    /// Resolves when the subscription has to end: with its token, its visit, or the gateway.
    ends: Pin<Box<dyn Future<Output = ()> + Send>>,
    /// The response that ends it politely, until it did. Spec: SPEC M-74.
    result: Option<Bytes>,
    _held: Held,
}

impl Opened {
    /// The next messages, never none, until there are no more.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Vec<Bytes>>> {
        if let Some(ack) = self.ack.take() {
            return Poll::Ready(Some(vec![ack]));
        }
        if self.result.is_none() {
            return Poll::Ready(None);
        }
        let mut messages = Vec::new();
        if let Poll::Ready(Next::Notices(notices)) = self.outlet.poll_next(cx) {
            messages = notices;
        }
        if self.ends.as_mut().poll(cx).is_ready() {
            messages.extend(self.result.take());
        }
        if messages.is_empty() {
            return Poll::Pending;
        }
        Poll::Ready(Some(messages))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // SPEC M-70, M-72.
    #[test]
    fn an_acknowledgement_names_its_subscription_and_what_is_honoured() {
        let filter = Filter {
            prompts: true,
            uris: vec!["a:\"b".to_owned()],
            ..Filter::default()
        };
        let said: serde_json::Value =
            serde_json::from_str(&acknowledgement("\"7\"", &filter)).unwrap();
        assert_eq!(said["params"]["_meta"][meta::SUBSCRIPTION_ID], "7");
        let expected =
            serde_json::json!({"promptsListChanged": true, "resourceSubscriptions": ["a:\"b"]});
        assert_eq!(said["params"]["notifications"], expected);
    }
}
