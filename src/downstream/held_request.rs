//! Requests of a session that is about to be handed over. Most of them wait for the next owner. Messages that begin no
//! work go to the owner that still runs the calls: the end of the session, notifications and responses, and requests about
//! tasks. Spec: `docs/adr/0028`.

use axum::body::Body;
use axum::extract::Request;
use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt as _, stream};
use http::Method;
use http_body_util::BodyExt as _;
use tokio::time::timeout;

use super::McpService;
use super::adoption::NamedSession;
use crate::protocol::{Message, MessageKind, json};
use crate::session::SessionUse;

/// Bytes of a message that are read to learn its kind. A longer message waits.
const MOST: usize = 64 * 1024;

/// A request that begins no work, and its session, if the session lives here and waits to be handed over.
///
/// # Errors
/// The request, if it has to wait for the next owner of its session.
///
/// # Cancel safety
/// Not cancel safe: what was read of the body is lost.
pub(super) async fn enter(
    service: &McpService,
    named: &NamedSession,
    request: Request,
) -> Result<(Request, SessionUse), Request> {
    if !service.sessions.is_held(named.handle) {
        return Err(request);
    }
    let (request, begins_work) = match *request.method() {
        Method::DELETE => (request, false),
        Method::POST => read(service, request).await,
        _ => (request, true),
    };
    let used = (!begins_work).then(|| service.sessions.enter_held(named.handle));
    match used.flatten() {
        Some(used) => Ok((request, used)),
        None => Err(request),
    }
}

/// Reads the message of a request. Returns the request with its whole body, and whether the message begins work.
async fn read(service: &McpService, request: Request) -> (Request, bool) {
    let (parts, mut body) = request.into_parts();
    let mut begun = BytesMut::new();
    let reading = async {
        while begun.len() <= MOST {
            match body.frame().await {
                Some(Ok(frame)) => begun.extend_from_slice(&frame.into_data().unwrap_or_default()),
                Some(Err(error)) => return Some(Err(error)),
                None => return None,
            }
        }
        Some(Ok(Bytes::new()))
    };
    let rest = timeout(service.settings.server.body_timeout, reading).await;
    let begun = begun.freeze();
    let whole = matches!(rest, Ok(None)).then(|| begun.clone());
    let begins_work = whole.is_none_or(begins_work);
    let body = match rest {
        Ok(None) => Body::from(begun),
        Ok(Some(Err(error))) => Body::from_stream(stream::iter([Ok(begun), Err(error)])),
        Ok(Some(Ok(_))) | Err(_) => {
            let begun = stream::iter([Ok(begun)]);
            Body::from_stream(begun.chain(body.into_data_stream()))
        }
    };
    (Request::from_parts(parts, body), begins_work)
}

/// Whether a message keeps its session from coming to rest.
fn begins_work(message: Bytes) -> bool {
    let Ok(message) = Message::parse(message, json::MAX_DEPTH) else {
        return true;
    };
    let is_about_task = { message.method() }.is_some_and(|method| method.starts_with("tasks/"));
    message.kind() == MessageKind::Request && !is_about_task
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_requests_begin_work_and_none_about_a_task() {
        for (text, expected) in [
            (r#"{"jsonrpc":"2.0","id":1,"method":"tools/call"}"#, true),
            (r#"{"jsonrpc":"2.0","id":1,"method":"tasks/get"}"#, false),
            (
                r#"{"jsonrpc":"2.0","method":"notifications/cancelled"}"#,
                false,
            ),
            (r#"{"jsonrpc":"2.0","id":1,"result":{}}"#, false),
            (r#"[{"jsonrpc":"2.0","id":1,"method":"ping"}]"#, true),
            ("{", true),
        ] {
            assert_eq!(begins_work(text.into()), expected, "{text}");
        }
    }
}
