//! The operators' port: `/live`, `/ready`, `/metrics`. No token, and nothing about upstreams
//! beyond counts. SPEC O-03.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::extract::Request;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderValue, StatusCode};

use super::guard::{Guard, RequestKind};
use crate::lifecycle::Tasks;
use crate::telemetry::setup::MetricsPage;

const NO_STORE: (http::HeaderName, HeaderValue) =
    (CACHE_CONTROL, HeaderValue::from_static("no-store"));

/// Whether new work is taken: not before the start is complete, and not during a drain.
#[derive(Debug, Clone)]
pub struct Readiness {
    started: Arc<AtomicBool>,
    tasks: Tasks,
}

impl Readiness {
    /// Not ready yet.
    #[must_use]
    pub fn new(tasks: Tasks) -> Self {
        Self {
            started: Arc::default(),
            tasks,
        }
    }

    /// Everything is bound and built.
    pub fn started(&self) {
        self.started.store(true, Ordering::Release);
    }

    /// Whether new work is taken now.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.started.load(Ordering::Acquire) && !self.tasks.draining().is_cancelled()
    }
}

/// The routes of the admin port, for the hosts that `guard` allows; `metrics` is absent when telemetry is
/// not set up.
pub fn router(readiness: Readiness, metrics: Option<MetricsPage>, guard: Guard) -> Router {
    let guard = Arc::new(guard);
    let checked = move |request: Request, next: Next| check(Arc::clone(&guard), request, next);
    let ready = move || std::future::ready(answer_ready(&readiness));
    let page = move || std::future::ready(answer_metrics(metrics.as_ref()));
    Router::new()
        .route("/live", get(|| async { ([NO_STORE], "live\n") }))
        .route("/ready", get(ready))
        .route("/metrics", get(page))
        .layer(middleware::from_fn(checked))
}

/// A page of a foreign name must not read what its browser reaches here.
async fn check(guard: Arc<Guard>, request: Request, next: Next) -> Response {
    let kind = RequestKind::Metadata;
    if let Err(failure) = guard.check(kind, request.uri(), request.headers()) {
        let text = "this host name is not served here (admin.allowed_hosts)\n";
        return (failure.status(), [NO_STORE], text).into_response();
    }
    next.run(request).await
}

fn answer_ready(readiness: &Readiness) -> Response {
    if readiness.is_ready() {
        return ([NO_STORE], "ready\n").into_response();
    }
    (StatusCode::SERVICE_UNAVAILABLE, [NO_STORE], "not ready\n").into_response()
}

fn answer_metrics(page: Option<&MetricsPage>) -> Response {
    const FORMAT: HeaderValue = HeaderValue::from_static("text/plain; version=0.0.4");
    match page {
        Some(page) => ([(CONTENT_TYPE, FORMAT), NO_STORE], page.render()).into_response(),
        None => StatusCode::NOT_FOUND.into_response(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use axum::body::Body;
    use tower::ServiceExt;

    use super::*;

    fn guard() -> Guard {
        Guard::for_operators(&crate::config::Admin {
            listen: "127.0.0.1:9090".parse().unwrap(),
            allowed_hosts: Vec::new(),
        })
    }

    async fn status(router: &Router, path: &str) -> StatusCode {
        let request = Request::get(path).body(Body::empty()).unwrap();
        router.clone().oneshot(request).await.unwrap().status()
    }

    // SPEC O-03.
    #[tokio::test]
    async fn ready_from_the_start_to_the_drain_and_alive_throughout() {
        let tasks = Tasks::new();
        let readiness = Readiness::new(tasks.clone());
        let router = router(readiness.clone(), None, guard());
        assert_eq!(
            status(&router, "/ready").await,
            StatusCode::SERVICE_UNAVAILABLE
        );
        assert_eq!(status(&router, "/live").await, StatusCode::OK);
        readiness.started();
        assert_eq!(status(&router, "/ready").await, StatusCode::OK);
        tasks.shut_down(Duration::ZERO).await;
        assert_eq!(
            status(&router, "/ready").await,
            StatusCode::SERVICE_UNAVAILABLE
        );
        assert_eq!(status(&router, "/live").await, StatusCode::OK);
    }

    #[tokio::test]
    async fn nothing_else_is_there() {
        let router = router(Readiness::new(Tasks::new()), None, guard());
        assert_eq!(status(&router, "/mcp").await, StatusCode::NOT_FOUND);
    }
}
