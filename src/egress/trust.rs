//! TLS settings that trust the certificate authorities of the system, which are read once for all clients of a start.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use hyper_rustls::ConfigBuilderExt as _;
use rustls::ClientConfig;
use rustls::client::Resumption;
use tokio::time::Instant;

/// How long the authorities that were read are used for further clients. Reading them opens several hundred files and takes
/// milliseconds, and a start builds five clients, and more for each https upstream and account. A client that is built
/// later reads them again, and so knows new authorities.
const FRESH: Duration = Duration::from_secs(10);

static SYSTEM: Mutex<TrustCache> = Mutex::new(TrustCache { read: None });

/// Settings for a TLS client that trusts the authorities of the system. The authorities are shared, TLS sessions are not. ALPN
/// is left to the caller.
///
/// # Errors
/// The system has no certificate authority that can be read.
pub fn system_trust() -> Result<ClientConfig, rustls::Error> {
    let mut cache = SYSTEM.lock().unwrap_or_else(PoisonError::into_inner);
    cache.get(read_system)
}

fn read_system() -> Result<ClientConfig, rustls::Error> {
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    let verified = ClientConfig::builder_with_provider(provider.into())
        .with_safe_default_protocol_versions()?
        .try_with_platform_verifier()?;
    Ok(verified.with_no_client_auth())
}

/// What was read last, and when.
struct TrustCache {
    read: Option<(Instant, ClientConfig)>,
}

impl TrustCache {
    fn get(
        &mut self,
        read: impl FnOnce() -> Result<ClientConfig, rustls::Error>,
    ) -> Result<ClientConfig, rustls::Error> {
        let mut config = match &self.read {
            Some((at, config)) if at.elapsed() < FRESH => config.clone(),
            _ => {
                let config = read()?;
                self.read = Some((Instant::now(), config.clone()));
                config
            }
        };
        config.resumption = Resumption::default();
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn empty() -> ClientConfig {
        let provider = rustls::crypto::aws_lc_rs::default_provider();
        ClientConfig::builder_with_provider(provider.into())
            .with_safe_default_protocol_versions()
            .expect("versions of the provider")
            .with_root_certificates(rustls::RootCertStore::empty())
            .with_no_client_auth()
    }

    #[tokio::test(start_paused = true)]
    async fn authorities_are_read_once_for_many_clients_and_again_after_a_while() {
        let mut cache = TrustCache { read: None };
        let mut reads = 0;
        for (pause, expected) in [(0, 1), (9, 1), (2, 2), (9, 2), (1, 3)] {
            tokio::time::advance(Duration::from_secs(pause)).await;
            cache
                .get(|| {
                    reads += 1;
                    Ok(empty())
                })
                .expect("settings");
            assert_eq!(reads, expected, "after {pause} s more");
        }
    }

    #[tokio::test]
    async fn failed_reading_is_not_kept() {
        let mut cache = TrustCache { read: None };
        let failed = cache.get(|| Err(rustls::Error::General("none".to_owned())));
        assert!(failed.is_err());
        assert!(cache.get(|| Ok(empty())).is_ok());
    }
}
