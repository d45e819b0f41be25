//! `subscriptions/listen`: a stream of changes that a client asked for, until either side ends it.
//! Spec: SPEC M-70 to M-77, K-16; BRIDGING §3.4.

use std::collections::HashSet;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use axum::body::Body;
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::{self, Stream};
use http::Response;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::envelope::RequestEnvelope;
use super::parsed_request::{EarlyEnd, ParsedRequest};
use super::refusal;
use super::refusal::RequestRefusal;
use super::response_queue::{QueueItem, ResponseQueue};
use crate::call::{Notice, Principal};
use crate::downstream::busy::draining;
use crate::downstream::get_stream::end_of_get;
use crate::downstream::plain_events::PlainEvents;
use crate::downstream::{McpService, reply};
use crate::fault::{Fault, FaultKind};
use crate::lock::lock;
use crate::protocol::json::{self, ObjectWriter};
use crate::protocol::{Message, meta, rpc};
use crate::relay::{FOLLOWED, FollowedTask, SubscriptionFilter};
use crate::session::{ListenerRegistration, NoticeListener, Session, StreamPermit};
use crate::telemetry::metrics::COUNTERS;

/// Receives the notices of an implicit session for one subscription.
#[derive(Debug)]
struct SubscriptionIntake {
    /// JSON text of the request's id, which names the subscription.
    id: String,
    response_queue: Arc<ResponseQueue<Infallible>>,
    filter: Mutex<SubscriptionFilter>,
}

impl SubscriptionIntake {
    fn honours(&self, filter: SubscriptionFilter) {
        *lock(&self.filter) = filter;
    }
}

impl NoticeListener for SubscriptionIntake {
    fn tell(&self, notice: &Notice) {
        let wanted = {
            let filter = lock(&self.filter);
            filter.wants(&notice.kind)
        };
        if !wanted {
            return;
        }
        if let Some(bytes) = marked(notice.bytes.clone(), &self.id) {
            let kind = notice.kind.clone();
            self.response_queue.notify(Notice { kind, bytes });
        }
    }
}

/// A notification as one of the subscription `id`. Spec: SPEC M-72.
fn marked(notice: Bytes, id: &str) -> Option<Bytes> {
    let message = Message::parse(notice, json::MAX_DEPTH).ok()?;
    let marked = message.edit().meta(meta::SUBSCRIPTION_ID, id);
    Some(marked.finish())
}

/// Resources of a subscription, released on drop, whichever side ends the stream.
struct SubscriptionGuard {
    service: Arc<McpService>,
    principal: Arc<Principal>,
    session: Arc<Session>,
    listening: Option<ListenerRegistration>,
    uris: Vec<String>,
    _permit: StreamPermit,
}

impl Drop for SubscriptionGuard {
    fn drop(&mut self) {
        drop(self.listening.take());
        let (service, uris) = (Arc::clone(&self.service), std::mem::take(&mut self.uris));
        let (principal, session) = (Arc::clone(&self.principal), Arc::clone(&self.session));
        self.service.tasks.spawn(async move {
            let subscriptions = &service.relay.subscriptions;
            subscriptions.leave(&principal, &session, &uris).await;
        });
    }
}

/// Opens a subscription. Upstreams are subscribed before the acknowledgement is sent, so that no change in between
/// is lost (SPEC M-75).
pub(super) async fn open(service: &Arc<McpService>, asked: ParsedRequest) -> Response<Body> {
    match subscribe(service, &asked).await {
        Ok(messages) => {
            let every = service.settings.server.keep_alive;
            reply::event_stream(Body::new(PlainEvents::new(Bytes::new(), messages, every)))
        }
        Err(EarlyEnd::Refused(refusal)) => refusal.response(Some(&asked.id())),
        Err(EarlyEnd::Failed(fault)) => refusal::fault_response(&fault, Some(&asked.id())),
    }
}

/// The same where messages do not go out as events: the acknowledgement, the changes, and the
/// response as the last.
pub(super) async fn subscribe(
    service: &Arc<McpService>,
    asked: &ParsedRequest,
) -> Result<impl Stream<Item = Vec<Bytes>> + Send + use<>, EarlyEnd> {
    let filter = wanted(&asked.message, &asked.envelope).map_err(EarlyEnd::Refused)?;
    let opened = open_subscription(service, asked, filter).await;
    let mut opened = opened.map_err(EarlyEnd::Failed)?;
    Ok(stream::poll_fn(move |cx| opened.poll_next(cx)))
}

/// As many of these tasks as one subscription may follow.
fn followable(service: &McpService, mut tasks: Vec<String>) -> Vec<String> {
    let max = service.settings.limits.tasks_per_subscription;
    if tasks.len() > max {
        let beyond = u64::try_from(tasks.len() - max).unwrap_or(u64::MAX);
        COUNTERS.tasks_unfollowed.add(beyond);
        tracing::warn!(
            tasks = tasks.len(),
            tasks_per_subscription = max,
            "a subscription names more tasks than it may follow"
        );
        tasks.truncate(max);
    }
    tasks
}

/// Makes upstreams follow the named resources, and looks up the named tasks, all concurrently until `connect_wait`:
/// a late one is left out without delaying the rest. Spec: SPEC G-03, M-75.
async fn follow(
    service: &McpService,
    asked: &ParsedRequest,
    tasks: &[String],
    wanted: &SubscriptionFilter,
    held: &mut SubscriptionGuard,
) -> Vec<(String, FollowedTask)> {
    let (principal, session) = (&asked.principal, Arc::clone(&held.session));
    let until = Instant::now() + service.settings.mcp.connect_wait;
    let subscriptions = &service.relay.subscriptions;
    let resources = async {
        let mut followed = subscriptions.follow_all(principal, &session, &wanted.uris, until);
        while let Some(uri) = followed.next().await {
            held.uris.push(uri.to_owned());
        }
    };
    let ids = followable(service, tasks.to_vec());
    let tasks = join_all(ids.into_iter().map(async |id| {
        let following = subscriptions.follow_task(principal, &session, &id);
        let task = tokio::time::timeout_at(until, following).await.ok()??;
        Some((id, task))
    }));
    let ((), tasks) = tokio::join!(resources, tasks);
    tasks.into_iter().flatten().collect()
}

async fn open_subscription(
    service: &Arc<McpService>,
    asked: &ParsedRequest,
    wanted: SubscriptionFilter,
) -> Result<OpenSubscription, Fault> {
    let capabilities = &asked.envelope.capabilities;
    let session = service.relay.opener.implicit_session(
        &asked.principal,
        &asked.endpoint,
        (capabilities, asked.home),
        &asked.message,
        asked.claim.as_ref(),
    )?;
    let permit = session
        .open_stream(service.settings.limits.subscriptions_per_session)
        .map_err(|_| too_many())?;
    if session.may_be_given_up() {
        return Err(draining());
    }
    let subscription = Arc::new(SubscriptionIntake {
        id: asked.id(),
        response_queue: ResponseQueue::new(),
        filter: Mutex::new(wanted.clone()),
    });
    let mut held = SubscriptionGuard {
        service: Arc::clone(service),
        principal: Arc::clone(&asked.principal),
        listening: Some(ListenerRegistration::of(
            &session,
            Arc::clone(&subscription) as _,
        )),
        session: Arc::clone(&session),
        uris: Vec::new(),
        _permit: permit,
    };
    let subscriptions = &service.relay.subscriptions;
    let heard = subscriptions.listen_all(&session, &wanted).await;
    let mut honoured = heard.filter.clone();
    let found = follow(service, asked, &wanted.tasks, &honoured, &mut held).await;
    // Keep the order of the request.
    let followed: HashSet<&String> = held.uris.iter().collect();
    honoured.uris.retain(|uri| followed.contains(uri));
    let (sender, tasks) = mpsc::channel(1);
    for (id, task) in found {
        honoured.tasks.push(id);
        // Until the task is over or the subscription is.
        service.tasks.spawn_service(task.tell(sender.clone()));
    }
    let ack = acknowledgement(&subscription.id, &honoured);
    let over = end_of_get(service, &session, &asked.principal);
    let deaf = subscriptions.until_undeliverable(&session, heard, &honoured);
    subscription.honours(honoured);
    let server = service.relay.opener.server_info(&session);
    let about = json::object([
        (meta::SUBSCRIPTION_ID, &*subscription.id),
        (meta::SERVER_INFO, &*server),
    ]);
    let result = json::object([("resultType", "\"complete\""), ("_meta", &*about)]);
    let result = rpc::response(&subscription.id, "result", &result);
    Ok(OpenSubscription {
        ack: Some(ack.into()),
        response_queue: Arc::clone(&subscription.response_queue),
        tasks,
        id: subscription.id.clone(),
        // A subscription that the upstream turns out not to serve ends: the client's next attempt is answered
        // truthfully.
        ends: Box::pin(async move {
            tokio::select! {
                () = over => {}
                () = deaf => {}
            }
        }),
        result: Some(result.into()),
        _held: held,
    })
}

fn too_many() -> Fault {
    let message = "too many subscriptions are open, close one or ask for more in one";
    Fault::downstream(FaultKind::CallerBusy, message)
}

/// The filter in the request. A member that is null counts as absent.
fn wanted(
    message: &Message,
    envelope: &RequestEnvelope,
) -> Result<SubscriptionFilter, RequestRefusal> {
    let text = message.param("notifications");
    let members = text
        .and_then(|text| json::members(text).ok())
        .ok_or_else(|| RequestRefusal::params("params.notifications must be an object"))?;
    let mut filter = SubscriptionFilter::default();
    for (name, value) in members.into_iter().filter(|(_, value)| *value != "null") {
        let flag = value == "true";
        match &*name {
            "toolsListChanged" => filter.tools = flag,
            "promptsListChanged" => filter.prompts = flag,
            "resourcesListChanged" => filter.resources = flag,
            "resourceSubscriptions" => filter.uris = strings(&name, value)?,
            // Spec: SPEC M-76.
            "taskIds" => {
                envelope.needs_tasks("taskIds need the tasks extension")?;
                filter.tasks = strings(&name, value)?;
            }
            _ => {}
        }
    }
    Ok(filter)
}

/// The different strings of an array, which has as many elements as an implicit session may follow at most.
fn strings(name: &str, value: &str) -> Result<Vec<String>, RequestRefusal> {
    let invalid = || RequestRefusal::params(format!("{name} must be an array of strings"));
    let elements = json::elements(value).map_err(|_| invalid())?;
    if elements.len() > FOLLOWED {
        return Err(RequestRefusal::params(format!(
            "{name} may have at most {FOLLOWED} elements, ask for fewer"
        )));
    }
    let (mut strings, mut known) = (Vec::new(), HashSet::new());
    for element in elements {
        let string = json::string(element).ok_or_else(invalid)?.into_owned();
        if known.insert(string.clone()) {
            strings.push(string);
        }
    }
    Ok(strings)
}

fn acknowledgement(id: &str, honoured: &SubscriptionFilter) -> String {
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
    for (name, strings) in [
        ("resourceSubscriptions", &honoured.uris),
        ("taskIds", &honoured.tasks),
    ] {
        if !strings.is_empty() {
            notifications.member(name, &json::strings(strings));
        }
    }
    let params = json::object([
        ("_meta", json::object([(meta::SUBSCRIPTION_ID, id)])),
        ("notifications", notifications.finish()),
    ]);
    rpc::notification("notifications/subscriptions/acknowledged", &params)
}

/// An open subscription. Dropping it ends it.
struct OpenSubscription {
    ack: Option<Bytes>,
    response_queue: Arc<ResponseQueue<Infallible>>,
    /// How tasks stand, one notification at a time.
    tasks: mpsc::Receiver<Bytes>,
    /// JSON text of the request's id.
    id: String,
    /// Resolves when the subscription has to end: with its token, its implicit session, or the gateway, or because
    /// it cannot be kept.
    ends: Pin<Box<dyn Future<Output = ()> + Send>>,
    /// The response that ends the subscription in order, until sent. Spec: SPEC M-74.
    result: Option<Bytes>,
    _held: SubscriptionGuard,
}

impl OpenSubscription {
    /// The next messages, never none, until there are no more.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Vec<Bytes>>> {
        if let Some(ack) = self.ack.take() {
            return Poll::Ready(Some(vec![ack]));
        }
        if self.result.is_none() {
            return Poll::Ready(None);
        }
        let mut messages = Vec::new();
        if let Poll::Ready(QueueItem::Notices(notices)) = self.response_queue.poll_next(cx) {
            messages = notices;
        }
        while let Poll::Ready(Some(task)) = self.tasks.poll_recv(cx) {
            messages.extend(marked(task, &self.id));
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
    use crate::downstream::modern::LISTEN;
    use crate::downstream::modern::envelope::read_body;

    #[test]
    fn what_is_named_twice_counts_once_and_too_many_are_refused() {
        let named = |many: usize| {
            let all: Vec<String> = (0..many).map(|n| format!("a:{}", n % 1000)).collect();
            strings("taskIds", &json::strings(&all))
        };
        let unique = named(FOLLOWED).unwrap();
        assert_eq!((unique.len(), &*unique[999]), (1000, "a:999"));
        let refused = named(FOLLOWED + 1).unwrap_err().reply();
        let error = refused.error().unwrap();
        assert!(
            error.contains("-32602") && error.contains("1024"),
            "{error}"
        );
    }

    // SPEC M-76.
    #[test]
    fn member_that_is_null_asks_for_nothing() {
        let filter = |notifications: &str| {
            let meta = json::object([
                (meta::PROTOCOL_VERSION, "\"2026-07-28\""),
                (meta::CLIENT_CAPABILITIES, "{}"),
            ]);
            let params = json::object([("notifications", notifications), ("_meta", &*meta)]);
            let request = rpc::request(1, LISTEN, Some(&params));
            let message = Message::parse(request.into(), json::MAX_DEPTH).unwrap();
            let envelope = read_body(&message).unwrap();
            wanted(&message, &envelope)
        };
        let nulls = r#"{"toolsListChanged":true,"promptsListChanged":null,"resourceSubscriptions":null,"taskIds":null}"#;
        let tools = SubscriptionFilter {
            tools: true,
            ..SubscriptionFilter::default()
        };
        assert_eq!(filter(nulls).unwrap(), tools);
        assert!(
            filter(r#"{"taskIds":[]}"#).is_err(),
            "tasks are not declared"
        );
        assert!(filter(r#"{"resourceSubscriptions":{}}"#).is_err());
    }

    // SPEC M-70, M-72.
    #[test]
    fn an_acknowledgement_names_its_subscription_and_what_is_honoured() {
        let filter = SubscriptionFilter {
            prompts: true,
            uris: vec!["a:\"b".to_owned()],
            tasks: vec!["t".to_owned()],
            ..SubscriptionFilter::default()
        };
        let said: serde_json::Value =
            serde_json::from_str(&acknowledgement("\"7\"", &filter)).unwrap();
        assert_eq!(said["params"]["_meta"][meta::SUBSCRIPTION_ID], "7");
        let expected = serde_json::json!({"promptsListChanged": true, "resourceSubscriptions": ["a:\"b"], "taskIds": ["t"]});
        assert_eq!(said["params"]["notifications"], expected);
    }
}
