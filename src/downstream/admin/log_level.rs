//! `/log-level`: the levels of log lines, shown and changed while the gateway runs.

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::StatusCode;

use super::no_store::NO_STORE;
use crate::config::LogLevels;
use crate::telemetry::setup::LogControl;

/// The longest body, in bytes.
const MAX_BODY: usize = 8 * 1024;

/// The route; mount the `Router` behind `Access`, which admits only callers that may change settings.
pub(super) fn routes(control: LogControl) -> Router {
    let shown = control.clone();
    let show = move || std::future::ready(show(&shown));
    let change = move |request: Request| async move { change(&control, request.into_body()).await };
    Router::new().route("/log-level", get(show).post(change))
}

/// Answers with the levels in force, as they are written in the configuration.
fn show(control: &LogControl) -> Response {
    ([NO_STORE], format!("{}\n", control.levels())).into_response()
}

/// Puts the levels of `body` in force and answers with them; 400 with the reason where they are none.
async fn change(control: &LogControl, body: Body) -> Response {
    let refuse = |what: String| {
        let text = format!("{what}\n");
        (StatusCode::BAD_REQUEST, [NO_STORE], text).into_response()
    };
    let Ok(bytes) = to_bytes(body, MAX_BODY).await else {
        return refuse(format!("expected levels in {MAX_BODY} bytes at most"));
    };
    let text = String::from_utf8_lossy(&bytes);
    match text.trim().parse::<LogLevels>() {
        Ok(levels) => {
            // Said first: the new levels may show no such line.
            tracing::warn!(before = %control.levels(), after = %levels, "log levels change");
            control.set(levels);
            show(control)
        }
        Err(what) => refuse(what),
    }
}
