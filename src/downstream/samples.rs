//! Settings for tests.

use std::time::Duration;

use url::Url;

use crate::config;

/// Defaults of DESIGN §11, with short deadlines.
pub(crate) fn server(listen: &str, public_url: &str) -> config::HttpServerConfig {
    config::HttpServerConfig {
        listen: listen.parse().unwrap(),
        public_url: Url::parse(public_url).unwrap(),
        allowed_origins: Vec::new(),
        allowed_hosts: Vec::new(),
        threads: 1,
        trusted_proxies: Vec::new(),
        tls: None,
        header_timeout: Duration::from_secs(10),
        idle_timeout: Duration::from_secs(75),
        stall_timeout: Duration::from_mins(10),
        handshake_timeout: Duration::from_secs(10),
        body_timeout: Duration::from_secs(30),
        refused_idle_timeout: Duration::from_secs(10),
        max_connections: 100,
        connections_per_address: None,
        exchanges_per_principal: None,
        sse_after: Duration::from_millis(250),
        keep_alive: Duration::from_secs(15),
        drain: Duration::from_secs(10),
        drain_linger: Duration::from_millis(20),
        sse: None,
        websocket: None,
    }
}
