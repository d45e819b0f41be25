//! The admin port: `/live`, `/ready` and `/metrics` for every client, without any fact about upstreams beyond counts
//! (SPEC O-03); `/status` and `/log-level` for callers that pass [`AccessRule`].

mod access;
mod log_level;
mod no_store;
mod readiness;
mod status;

use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, StatusCode, Uri};

pub use self::access::AccessRule;
use self::no_store::NO_STORE;
pub use self::readiness::AdminReadiness;
pub use self::status::StatusPage;
use super::guard::{OriginGuard, RequestKind};
use crate::telemetry::setup::{LogControl, MetricsPage};

/// The pages of the admin port, with the checks before them.
#[derive(Debug)]
pub struct AdminPort {
    /// Whether new work is taken.
    pub readiness: AdminReadiness,
    /// Absent when telemetry is not set up.
    pub metrics: Option<MetricsPage>,
    /// Absent where nothing runs.
    pub status: Option<StatusPage>,
    /// Absent when telemetry is not set up.
    pub log: Option<LogControl>,
    /// The hosts that are answered to.
    pub guard: OriginGuard,
    /// Access to the pages beyond probes and metrics.
    pub access: AccessRule,
}

/// The routes of the admin port.
pub fn router(port: AdminPort) -> Router {
    let AdminPort {
        readiness,
        metrics,
        status,
        log,
        guard,
        access,
    } = port;
    let guard = Arc::new(guard);
    let checked = move |request: Request, next: Next| check(Arc::clone(&guard), request, next);
    let access = Arc::new(access);
    let allowed = move |request: Request, next: Next| allow(Arc::clone(&access), request, next);
    let ready = move || std::future::ready(answer_ready(&readiness));
    let page = move || std::future::ready(answer_metrics(metrics.as_ref()));
    let status = move |uri: Uri| std::future::ready(answer_status(status.as_ref(), &uri));
    let restricted = Router::new()
        .route("/status", get(status))
        .merge(log.map_or_else(Router::new, log_level::routes))
        .route_layer(middleware::from_fn(allowed));
    Router::new()
        .route("/live", get(|| async { ([NO_STORE], "live\n") }))
        .route("/ready", get(ready))
        .route("/metrics", get(page))
        .merge(restricted)
        .layer(middleware::from_fn(checked))
}

/// A page of a foreign name must not read what its browser reaches here.
async fn check(guard: Arc<OriginGuard>, request: Request, next: Next) -> Response {
    let kind = RequestKind::Metadata;
    if let Err(failure) = guard.check(kind, request.uri(), request.headers()) {
        let text = "this host name is not served here (admin.allowed_hosts)\n";
        return (failure.status(), [NO_STORE], text).into_response();
    }
    next.run(request).await
}

/// Admits to the restricted routes only requests that pass `AccessRule::check`.
async fn allow(access: Arc<AccessRule>, request: Request, next: Next) -> Response {
    match access.check(&request) {
        Ok(()) => next.run(request).await,
        Err(refusal) => refusal.into_response(),
    }
}

fn answer_status(page: Option<&StatusPage>, uri: &Uri) -> Response {
    match page {
        Some(page) => page.answer(uri),
        None => StatusCode::NOT_FOUND.into_response(),
    }
}

fn answer_ready(readiness: &AdminReadiness) -> Response {
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
    use crate::runtime::lifecycle::TaskSpawner;

    fn port(readiness: AdminReadiness) -> AdminPort {
        let admin = crate::config::AdminConfig {
            listen: "127.0.0.1:9090".parse().unwrap(),
            allowed_hosts: Vec::new(),
            token: None,
        };
        AdminPort {
            readiness,
            metrics: None,
            status: None,
            log: None,
            guard: OriginGuard::for_operators(&admin),
            access: AccessRule::new(admin.token),
        }
    }

    async fn status(router: &Router, path: &str) -> StatusCode {
        let request = Request::get(path).body(Body::empty()).unwrap();
        router.clone().oneshot(request).await.unwrap().status()
    }

    // SPEC O-03.
    #[tokio::test]
    async fn ready_from_the_start_to_the_drain_and_alive_throughout() {
        let tasks = TaskSpawner::new();
        let readiness = AdminReadiness::new(tasks.clone());
        let router = router(port(readiness.clone()));
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
        let router = router(port(AdminReadiness::new(TaskSpawner::new())));
        assert_eq!(status(&router, "/mcp").await, StatusCode::NOT_FOUND);
    }
}
