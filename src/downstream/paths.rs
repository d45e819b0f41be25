//! What is served at which path.

use std::sync::Arc;

use bytes::Bytes;
use http::Method;

use super::connect_page::ConnectPage;
use crate::auth;
use crate::config::{AuthMode, Config};
use crate::connect::ConnectPages;
use crate::endpoint::Endpoint;
use crate::sync::fast_maps::FastMap;

/// Target of a path.
#[derive(Debug, Clone)]
pub(super) enum PathTarget {
    Endpoint(Arc<Endpoint>, ServedTransport),
    Metadata(Bytes),
    /// A page for people, or what authorization servers read of the gateway.
    Connect(ConnectPage),
}

/// Over which transport a path is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ServedTransport {
    /// Streamable HTTP.
    Streamable,
    /// HTTP+SSE: the stream.
    Events,
    /// HTTP+SSE: the posts.
    Messages,
    /// WebSocket.
    Socket,
}

impl ServedTransport {
    /// The HTTP methods that it takes.
    pub(super) fn methods(self) -> &'static [Method] {
        match self {
            Self::Streamable => &[Method::GET, Method::POST, Method::DELETE],
            Self::Events | Self::Socket => &[Method::GET],
            Self::Messages => &[Method::POST],
        }
    }
}

/// Every path that is served.
#[derive(Debug)]
pub(super) struct PathTable {
    /// Few, and from the configuration.
    paths: FastMap<String, PathTarget>,
    has_pages: bool,
}

impl PathTable {
    pub(super) fn new(
        settings: &Config,
        endpoints: &[Arc<Endpoint>],
        pages: Option<&ConnectPages>,
    ) -> Self {
        Self {
            paths: paths(settings, endpoints, pages),
            has_pages: pages.is_some(),
        }
    }

    pub(super) fn target(&self, path: &str) -> Option<PathTarget> {
        let known = self.paths.get(path).cloned();
        known.or_else(|| {
            let page = self.has_pages.then(|| ConnectPage::of_path(path))?;
            page.map(PathTarget::Connect)
        })
    }
}

/// Every path and its target; a trailing slash is routed too (CLIENTS.md).
fn paths(
    settings: &Config,
    endpoints: &[Arc<Endpoint>],
    pages: Option<&ConnectPages>,
) -> FastMap<String, PathTarget> {
    let url = &settings.server.public_url;
    let base = url.path().trim_end_matches('/');
    let mut paths = FastMap::default();
    if let Some(pages) = pages {
        let pages = ConnectPage::paths(pages).into_iter();
        paths.extend(pages.map(|(path, page)| (path, PathTarget::Connect(page))));
    }
    for (endpoint, way) in endpoints.iter().flat_map(|one| ways(settings, one)) {
        let place = match (way, &settings.server.sse) {
            (ServedTransport::Messages, Some(sse)) => endpoint.place(&sse.messages),
            _ => endpoint.path.clone(),
        };
        let target = PathTarget::Endpoint(Arc::clone(&endpoint), way);
        paths.insert(format!("{place}/"), target.clone());
        paths.insert(place, target);
        if settings.auth.mode == AuthMode::None || way == ServedTransport::Messages {
            continue;
        }
        let document = PathTarget::Metadata(auth::metadata(&endpoint, &settings.auth));
        // Spec: RFC 9728 §3.1. A proxy may strip the path of public_url or keep it.
        let well_known = "/.well-known/oauth-protected-resource";
        let mut places = vec![
            format!("{well_known}{base}{}", endpoint.path),
            format!("{well_known}{}", endpoint.path),
        ];
        if endpoint.path == "/mcp" {
            places.push(well_known.to_owned());
            places.push(format!("{well_known}{base}"));
        }
        for place in places {
            paths.insert(format!("{place}/"), document.clone());
            paths.insert(place, document.clone());
        }
    }
    paths
}

/// The transports of an endpoint, each with the endpoint as it is seen there.
fn ways(settings: &Config, endpoint: &Arc<Endpoint>) -> Vec<(Arc<Endpoint>, ServedTransport)> {
    let url = &settings.server.public_url;
    let mut ways = vec![(Arc::clone(endpoint), ServedTransport::Streamable)];
    if let Some(sse) = &settings.server.sse {
        let below = Arc::new(endpoint.below(&sse.stream, url));
        ways.push((Arc::clone(&below), ServedTransport::Events));
        ways.push((below, ServedTransport::Messages));
    }
    if let Some(path) = &settings.server.websocket {
        ways.push((Arc::new(endpoint.below(path, url)), ServedTransport::Socket));
    }
    ways
}

/// What an access line shows instead of the path that was sent.
pub(super) fn pattern(target: Option<&PathTarget>) -> &'static str {
    match target {
        None => "other",
        Some(PathTarget::Metadata(_)) => "/.well-known/oauth-protected-resource",
        Some(PathTarget::Connect(page)) => page.pattern(),
        Some(PathTarget::Endpoint(endpoint, way)) => match (way, &*endpoint.name == "mcp") {
            (ServedTransport::Streamable, true) => "/mcp",
            (ServedTransport::Streamable, false) => "/mcp/{endpoint}",
            (ServedTransport::Events, true) => "/sse",
            (ServedTransport::Events, false) => "/sse/{endpoint}",
            (ServedTransport::Socket, true) => "/ws",
            (ServedTransport::Socket, false) => "/ws/{endpoint}",
            (ServedTransport::Messages, true) => "/messages",
            (ServedTransport::Messages, false) => "/messages/{endpoint}",
        },
    }
}
