//! What `INFO` says of a server.

use std::time::Duration;

use super::failure::RedisFailure;

/// The members of `INFO` that matter here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ServerInfo {
    /// Another one after each start.
    pub(super) run_id: String,
    /// What happens when memory is full.
    pub(super) policy: Option<String>,
    /// How long it has run.
    pub(super) uptime: Duration,
}

impl ServerInfo {
    /// Reads the text of `INFO`.
    ///
    /// # Errors
    /// The server cannot be written to.
    pub(super) fn read(text: &str) -> Result<Self, RedisFailure> {
        let value = |name: &str| {
            let mut lines = text.lines();
            lines.find_map(|line| line.trim_end().strip_prefix(name)?.strip_prefix(':'))
        };
        if value("loading") == Some("1") {
            return Err(RedisFailure::NotWritable("it loads its data"));
        }
        if value("role") == Some("slave") {
            return Err(RedisFailure::NotWritable("it is a replica"));
        }
        let uptime = value("uptime_in_seconds").and_then(|text| text.parse().ok());
        Ok(Self {
            uptime: uptime.map_or(Duration::ZERO, Duration::from_secs),
            run_id: value("run_id").unwrap_or_default().to_owned(),
            policy: value("maxmemory_policy").map(str::to_owned),
        })
    }

    /// The policy, where it throws away what sessions need.
    pub(super) fn evicting_policy(&self) -> Option<&str> {
        self.policy
            .as_deref()
            .filter(|policy| *policy != "noeviction")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MASTER: &str = "# Server\r\nrun_id:abc\r\nuptime_in_seconds:7\r\n# Memory\r\nmaxmemory_policy:noeviction\r\n\
        loading:0\r\nrole:master\r\n";

    #[test]
    fn run_id_and_policy_are_read() {
        let info = ServerInfo::read(MASTER).unwrap();
        assert_eq!((&*info.run_id, info.uptime.as_secs()), ("abc", 7));
        assert_eq!(info.evicting_policy(), None);
        let other = MASTER.replace("noeviction", "allkeys-lru");
        let info = ServerInfo::read(&other).unwrap();
        assert_eq!(info.evicting_policy(), Some("allkeys-lru"));
    }

    #[test]
    fn servers_that_refuse_writes_are_refused() {
        for (from, to) in [("role:master", "role:slave"), ("loading:0", "loading:1")] {
            let failed = ServerInfo::read(&MASTER.replace(from, to));
            assert!(matches!(failed, Err(RedisFailure::NotWritable(_))), "{to}");
        }
    }
}
