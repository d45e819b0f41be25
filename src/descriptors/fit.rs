//! Whether a configuration fits under the limit on file descriptors.

use crate::config::{CarrierConfig, Config};

/// Of one stdio child: three pipes, and the handle that tells its end.
const PER_CHILD: usize = 4;
/// For what no key decides: the admin port (64 connections), refusals that are being written and
/// connections that are being closed (64 each), listeners, event queues, issuers and files.
const RESERVE: usize = 256;

/// How a configuration fits into the file descriptors of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DescriptorFit {
    limit: usize,
    /// Enough for all that the configuration allows.
    needed: usize,
    /// `server.max_connections`.
    wanted: usize,
    /// Client connections that may be open.
    connections: usize,
    /// `stdio.max_children`, where there is a stdio upstream.
    children: usize,
    /// Connections to HTTP upstreams.
    upstreams: usize,
}

impl DescriptorFit {
    /// What `config` may use where `limit` descriptors may be open. A half of the client connections is
    /// taken to need one to an HTTP upstream at the same time. Where not all fits, a quarter of a small
    /// limit stays in reserve, and children get a half of the rest at most.
    #[must_use]
    pub fn new(config: &Config, limit: usize) -> Self {
        let (mut children, mut is_http) = (0, false);
        for upstream in &config.upstreams {
            match upstream.carrier {
                CarrierConfig::Stdio(_) => children = config.stdio.max_children,
                CarrierConfig::Http(_) => is_http = true,
            }
        }
        let wanted = config.server.max_connections;
        let upstreams = if is_http { wanted.div_ceil(2) } else { 0 };
        let for_children = children.saturating_mul(PER_CHILD);
        let needed = [upstreams, for_children, RESERVE];
        let needed = needed.into_iter().fold(wanted, usize::saturating_add);
        let connections = if needed <= limit {
            wanted
        } else {
            let rest = limit - RESERVE.min(limit / 4);
            let rest = rest - for_children.min(rest / 2);
            let fitting = if is_http { rest / 3 * 2 } else { rest };
            fitting.clamp(1, wanted.max(1))
        };
        Self {
            limit,
            needed,
            wanted,
            connections,
            children,
            upstreams,
        }
    }

    /// How many client connections may be open: `server.max_connections`, or fewer if descriptors are short.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.connections
    }

    /// The limit that is exceeded and the key to set; `None` if everything fits.
    #[must_use]
    pub fn complaint(&self) -> Option<String> {
        let Self { limit, needed, .. } = *self;
        (needed > limit).then(|| {
            let taken = if self.connections < self.wanted {
                format!(
                    "no more than {} client connections are taken, and ",
                    self.connections
                )
            } else {
                String::new()
            };
            format!(
                "{limit} file descriptors may be open, and this configuration may use {needed}: {uses}; \
                 {taken}children or upstream connections may fail. Raise the limit to {needed} (ulimit -n, \
                 LimitNOFILE of systemd), or lower server.max_connections or stdio.max_children",
                uses = self.uses(),
            )
        })
    }

    /// How many descriptors are enough, for what, and how many there are.
    #[must_use]
    pub fn summary(&self) -> String {
        let there = match self.limit {
            usize::MAX => "no limit".to_owned(),
            limit => limit.to_string(),
        };
        format!("up to {} ({}); here: {there}", self.needed, self.uses())
    }

    fn uses(&self) -> String {
        let parts = [
            (self.wanted, "for clients"),
            (self.upstreams, "for HTTP upstreams"),
            (self.children.saturating_mul(PER_CHILD), "for children"),
            (RESERVE, "for the rest"),
        ];
        let used = parts.iter().filter(|(count, _)| *count > 0);
        let texts = used.map(|(count, what)| format!("{count} {what}"));
        texts.collect::<Vec<_>>().join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(more: &str) -> Config {
        let text = format!("[auth]\nmode = \"none\"\n{more}");
        crate::config::parse(&text, "g.toml", &|_| None).unwrap()
    }

    const STDIO: &str = "[upstreams.files]\ncommand = \"npx\"\n";
    const HTTP: &str = "[upstreams.tracker]\nurl = \"http://127.0.0.1:1/mcp\"\n";

    #[test]
    fn configuration_that_fits_is_left_alone() {
        let fit = DescriptorFit::new(&config(STDIO), 10_000 + 4 * 256 + 256);
        assert_eq!((fit.connections(), fit.complaint()), (10_000, None));
        let fit = DescriptorFit::new(&config(HTTP), 15_256);
        assert_eq!((fit.connections(), fit.complaint()), (10_000, None));
        let fit = DescriptorFit::new(&config(&format!("{STDIO}{HTTP}")), usize::MAX);
        assert_eq!(fit.connections(), 10_000);
        assert!(fit.summary().contains("up to 16280"), "{}", fit.summary());
    }

    #[test]
    fn connections_are_fewer_where_descriptors_are_short() {
        let fit = DescriptorFit::new(&config(STDIO), 1024);
        assert_eq!(fit.connections(), 384);
        let complaint = fit.complaint().unwrap();
        for part in ["1024 file descriptors", "may use 11280", "no more than 384"] {
            assert!(complaint.contains(part), "{complaint}");
        }
        assert_eq!(DescriptorFit::new(&config(HTTP), 1024).connections(), 512);
        assert!(DescriptorFit::new(&config(HTTP), 0).connections() > 0);
    }

    #[test]
    fn one_descriptor_short_is_said() {
        let one = format!("[server]\nmax_connections = 100\n{HTTP}");
        assert!(DescriptorFit::new(&config(&one), 406).complaint().is_none());
        assert!(DescriptorFit::new(&config(&one), 405).complaint().is_some());
    }
}
