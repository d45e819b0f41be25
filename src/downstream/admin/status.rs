//! `GET /status`: the state of gateway and upstreams, as JSON or as text.

use std::sync::Arc;
use std::time::Duration;

use axum::response::{IntoResponse, Response};
use http::header::CONTENT_TYPE;
use http::{HeaderValue, StatusCode, Uri};
use tokio::time::Instant;

use super::no_store::NO_STORE;
use super::readiness::AdminReadiness;
use crate::auth::Authenticator;
use crate::clock::SharedClock;
use crate::cluster::Cluster;
use crate::process::ChildIsolation;
use crate::status::{GatewayStatus, time_text};
use crate::upstream::Upstreams;
use crate::vault::Vault;

/// Sources of the status page.
#[derive(Debug, Clone)]
pub struct StatusPage {
    /// Since when the gateway runs.
    pub started: Instant,
    /// Whether the gateway accepts new work.
    pub readiness: AdminReadiness,
    /// Its upstreams.
    pub upstreams: Arc<Upstreams>,
    /// Whether the children of its stdio upstreams are kept apart; `None` without stdio upstreams.
    pub children: Option<ChildIsolation>,
    /// The other replicas; `None` without `[cluster]`.
    pub cluster: Option<Arc<Cluster>>,
    /// Its issuers.
    pub auth: Arc<Authenticator>,
    /// The time of day.
    pub clock: SharedClock,
    /// Accounts of callers, where there are any.
    pub vault: Option<Vault>,
}

impl StatusPage {
    fn read(&self) -> GatewayStatus {
        let now: Duration = self.clock.now();
        let census = self.vault.as_ref().and_then(Vault::census);
        GatewayStatus {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            time: time_text(now),
            uptime_s: self.started.elapsed().as_secs(),
            draining: self.readiness.is_draining(),
            children: self.children.map(|children| children.as_str().to_owned()),
            cluster: self.cluster.as_ref().map(|cluster| cluster.status()),
            upstreams: self.upstreams.status(now, census.as_deref()),
            issuers: self.auth.status(),
        }
    }

    /// The page in the format that the query names: `json` (the default) or `text`.
    pub(super) fn answer(&self, uri: &Uri) -> Response {
        const JSON: HeaderValue = HeaderValue::from_static("application/json");
        const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
        let status = || self.read();
        match uri.query().unwrap_or("format=json") {
            "format=json" => match serde_json::to_string_pretty(&status()) {
                Ok(json) => ([(CONTENT_TYPE, JSON), NO_STORE], json + "\n").into_response(),
                Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
            },
            "format=text" => {
                ([(CONTENT_TYPE, TEXT), NO_STORE], status().to_string()).into_response()
            }
            _ => {
                let text = "the query may be ?format=json or ?format=text\n";
                (StatusCode::BAD_REQUEST, [NO_STORE], text).into_response()
            }
        }
    }
}
