//! The startup log event: version, addresses, endpoints, upstreams, and missing programs or directories.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::config::{AuthMode, CarrierConfig, Config};
use crate::endpoint::Endpoint;
use crate::process::{HostEnvironment, missing};

/// Name of the configuration that is built into the program.
const BUILT_IN: &str = "built-in demonstration";

/// Logs one event. `listen` and `admin` are the addresses that the system gave, `file` the configuration.
pub(super) fn log(
    config: &Config,
    file: Option<&str>,
    endpoints: &[Arc<Endpoint>],
    listen: SocketAddr,
    admin: SocketAddr,
    missing: Option<&str>,
) {
    let first = endpoints.first().map(|endpoint| &*endpoint.resource);
    let paths = list(endpoints.iter().map(|endpoint| &*endpoint.path));
    let issuers = config.auth.issuers.iter().map(|issuer| &*issuer.issuer);
    let issuers = match config.auth.mode {
        AuthMode::OAuth => list(issuers),
        AuthMode::None => "none, loopback only".to_owned(),
    };
    let upstreams = list(config.upstreams.iter().map(|upstream| &*upstream.name));
    tracing::info!(
        target: "drawbridge",
        url = first,
        version = env!("CARGO_PKG_VERSION"),
        configuration = file.unwrap_or(BUILT_IN),
        listen = %listen,
        admin = %format_args!("http://{admin}"),
        endpoints = paths,
        issuers,
        upstreams,
        missing,
        "gateway started"
    );
}

/// What children of each stdio upstream would not find, for the event; `None` where nothing is missing.
pub(super) fn shortcomings(config: &Config, host: &HostEnvironment) -> Option<String> {
    let mut all = Vec::new();
    for upstream in &config.upstreams {
        if let CarrierConfig::Stdio(carrier) = &upstream.carrier {
            for one in missing(&host.environment, carrier) {
                all.push(format!("{}: {}", upstream.name, one.what));
            }
        }
    }
    (!all.is_empty()).then(|| all.join("; "))
}

fn list<'a>(names: impl Iterator<Item = &'a str>) -> String {
    names.collect::<Vec<_>>().join(", ")
}
