//! `ServerRuns`: run ids of the servers that hold the data. An unknown run may lack earlier data.

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::time::Instant;

use super::server_info::ServerInfo;

/// The runs of the present server, or of all masters of a Cluster.
#[derive(Debug, Default)]
pub(super) struct ServerRuns {
    known: BTreeSet<String>,
    name: Arc<str>,
    began: Option<Instant>,
}

impl ServerRuns {
    /// Learns what servers said; whether there is a run that was not known. A master of a Cluster that says nothing
    /// stays known until another run is found.
    pub(super) fn learn(&mut self, infos: &[ServerInfo]) -> bool {
        let ids: BTreeSet<String> = infos.iter().map(|info| info.run_id.clone()).collect();
        if ids.is_subset(&self.known) {
            return false;
        }
        self.began = if self.known.is_empty() {
            let uptime = infos.iter().map(|info| info.uptime).min();
            uptime.and_then(|uptime| Instant::now().checked_sub(uptime))
        } else {
            Some(Instant::now())
        };
        let names: Vec<&str> = ids.iter().map(String::as_str).collect();
        self.name = names.join(",").into();
        self.known = ids;
        true
    }

    /// A text that is another one when a run is not known.
    pub(super) fn name(&self) -> Arc<str> {
        Arc::clone(&self.name)
    }

    /// When the youngest run began, or was found in place of another.
    pub(super) fn began(&self) -> Option<Instant> {
        self.began
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn info(run_id: &str) -> ServerInfo {
        ServerInfo {
            run_id: run_id.to_owned(),
            policy: None,
            uptime: Duration::ZERO,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn other_run_is_noticed_and_a_silent_master_is_none() {
        let mut runs = ServerRuns::default();
        assert!(runs.learn(&[info("a"), info("b")]));
        let name = runs.name();
        assert!(!runs.learn(&[info("a")]), "the other one is silent");
        assert!(!runs.learn(&[]), "all are");
        assert!(!runs.learn(&[info("b"), info("a")]));
        assert_eq!(runs.name(), name);
        tokio::time::advance(Duration::from_secs(9)).await;
        assert!(runs.learn(&[info("a"), info("c")]), "failover");
        assert_ne!(runs.name(), name);
        assert_eq!(runs.began(), Some(Instant::now()));
        assert!(runs.learn(&[info("a"), info("b")]), "and back");
    }
}
