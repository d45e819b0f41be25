//! The text form: aligned tables, with causes below their rows.

use std::fmt::{self, Display, Write as _};

use super::account_table;
use super::{
    AskedOnce, AskedUpstream, CauseStatus, ClusterStatus, GatewayStatus, IssuerStatus,
    UpstreamStatus,
};
use crate::protocol::methods::ListKind;

/// Shown in place of an unknown value.
const NOTHING: &str = "-";

impl Display for GatewayStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let draining = if self.draining { ", draining" } else { "" };
        writeln!(
            f,
            "drawbridge {}, up for {}{draining} ({})",
            self.version,
            span(self.uptime_s),
            self.time
        )?;
        if let Some(children) = self.children.as_deref().filter(|one| *one != "isolated") {
            writeln!(f, "children are not isolated from each other: {children}")?;
        }
        let mut upstreams = TextTable::new([
            "UPSTREAM",
            "TRANSPORT",
            "STATE",
            "SINCE",
            "REVISION",
            "SESSIONS",
            "CHILDREN",
            "IN FLIGHT",
            "CALLS/MIN",
            "FAILED/MIN",
            "P50",
            "P99",
        ]);
        for upstream in &self.upstreams {
            upstreams.row(cells(upstream), cause(upstream));
        }
        write!(f, "\n{upstreams}")?;
        account_table::write(f, &self.upstreams)?;
        write_issuers(f, &self.issuers)?;
        match &self.cluster {
            Some(cluster) => write_cluster(f, cluster),
            None => Ok(()),
        }
    }
}

impl Display for AskedOnce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut upstreams = TextTable::new([
            "UPSTREAM",
            "TRANSPORT",
            "STATE",
            "REVISION",
            "TOOLS",
            "PROMPTS",
            "RESOURCES",
            "TEMPLATES",
        ]);
        for upstream in &self.upstreams {
            upstreams.row(asked_cells(upstream), cause(&upstream.status));
        }
        write!(f, "{upstreams}")?;
        write_issuers(f, &self.issuers)?;
        let logins = self.logins.iter();
        let logins = logins.map(|one| (&one.issuer, one.cause.as_ref()));
        write_asked(f, "LOGIN AT", ["possible", "impossible"], logins)?;
        let stores = self.stores.iter();
        let stores = stores.map(|one| (&one.name, one.cause.as_ref()));
        write_asked(f, "STORE", ["usable", "unusable"], stores)
    }
}

/// Writes a table of names and states after an empty line, nothing where there are none; `states` are without and with a
/// cause.
fn write_asked<'a>(
    f: &mut fmt::Formatter<'_>,
    head: &str,
    [well, ill]: [&str; 2],
    asked: impl ExactSizeIterator<Item = (&'a String, Option<&'a CauseStatus>)>,
) -> fmt::Result {
    if asked.len() == 0 {
        return Ok(());
    }
    let mut table = TextTable::new([head, "STATE"]);
    for (name, cause) in asked {
        let state = cause.map_or(well, |_| ill);
        table.row([name.clone(), state.to_owned()], cause);
    }
    write!(f, "\n{table}")
}

/// Writes the replicas, after an empty line.
fn write_cluster(f: &mut fmt::Formatter<'_>, cluster: &ClusterStatus) -> fmt::Result {
    let redis = if cluster.redis {
        "connected"
    } else {
        "not connected"
    };
    let lease = match cluster.lease_ms {
        0 => "no lease".to_owned(),
        left => format!("lease for {left} ms"),
    };
    let fenced = if cluster.fenced { "fenced, " } else { "" };
    let node = &cluster.node;
    writeln!(f, "\nreplica {node}: {fenced}{lease}, Redis {redis}")?;
    let head = ["REPLICA", "ADDRESS", "VERSION", "STATE", "CONFIGURATION"];
    let mut table = TextTable::new(head);
    for replica in &cluster.replicas {
        let configuration = if replica.same_configuration {
            "same"
        } else {
            "differs"
        };
        let state = if replica.draining {
            "draining"
        } else {
            "serving"
        };
        let cells = [
            replica.node.clone(),
            replica.address.clone(),
            replica.version.clone(),
            state.to_owned(),
            configuration.to_owned(),
        ];
        table.row(cells, None);
    }
    write!(f, "{table}")
}

/// Writes the table of issuers after an empty line; nothing without issuers.
fn write_issuers(f: &mut fmt::Formatter<'_>, issuers: &[IssuerStatus]) -> fmt::Result {
    if issuers.is_empty() {
        return Ok(());
    }
    let mut table = TextTable::new(["ISSUER", "KEYS", "LOADED"]);
    for issuer in issuers {
        table.row(issuer_cells(issuer), issuer.cause.as_ref());
    }
    write!(f, "\n{table}")
}

fn asked_cells(upstream: &AskedUpstream) -> [String; 8] {
    let status = &upstream.status;
    let length = |list: ListKind| {
        let length = upstream.lists.get(list.member());
        length.map_or(NOTHING.to_owned(), u64::to_string)
    };
    [
        status.name.clone(),
        status.transport.clone(),
        status.state.as_str().to_owned(),
        revision(status),
        length(ListKind::Tools),
        length(ListKind::Prompts),
        length(ListKind::Resources),
        length(ListKind::Templates),
    ]
}

/// Why the upstream is not reached, else why its account cannot be used.
fn cause(upstream: &UpstreamStatus) -> Option<&CauseStatus> {
    let account = upstream.account.as_ref();
    upstream
        .cause
        .as_ref()
        .or(account.and_then(|account| account.cause.as_ref()))
}

fn revision(upstream: &UpstreamStatus) -> String {
    match (&upstream.era, &upstream.revision) {
        (Some(era), Some(revision)) => format!("{revision} ({era})"),
        (Some(era), None) => era.clone(),
        (None, _) => NOTHING.to_owned(),
    }
}

fn cells(upstream: &UpstreamStatus) -> [String; 12] {
    let took = |millis: Option<f64>| millis.map_or(NOTHING.to_owned(), duration);
    [
        upstream.name.clone(),
        upstream.transport.clone(),
        upstream.state.as_str().to_owned(),
        span(upstream.since_s),
        revision(upstream),
        upstream.sessions.to_string(),
        upstream.children.to_string(),
        upstream.calls_in_flight.to_string(),
        format!("{:.1}", upstream.calls_per_minute),
        format!("{:.1}", upstream.failures_per_minute),
        took(upstream.p50_ms),
        took(upstream.p99_ms),
    ]
}

fn issuer_cells(issuer: &IssuerStatus) -> [String; 3] {
    let keys = issuer
        .keys
        .map_or(NOTHING.to_owned(), |keys| keys.to_string());
    let age = issuer
        .keys_age_s
        .map_or(NOTHING.to_owned(), |age| format!("{} ago", span(age)));
    [issuer.issuer.clone(), keys, age]
}

/// Seconds, in the largest two units.
fn span(seconds: u64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{minutes} min"),
        3600..86_400 => format!("{hours} h {} min", minutes % 60),
        _ => format!("{days} d {} h", hours % 24),
    }
}

fn duration(millis: f64) -> String {
    if millis < 10.0 {
        format!("{millis:.1} ms")
    } else if millis < 10_000.0 {
        format!("{millis:.0} ms")
    } else {
        format!("{:.0} s", millis / 1000.0)
    }
}

/// Rows of `N` cells below a head; a column is as wide as its longest cell.
#[derive(Debug)]
pub struct TextTable<const N: usize> {
    rows: Vec<([String; N], Option<String>)>,
}

impl<const N: usize> TextTable<N> {
    /// A table without rows.
    #[must_use]
    pub fn new(head: [&str; N]) -> Self {
        Self {
            rows: vec![(head.map(str::to_owned), None)],
        }
    }

    /// Adds a row, and its cause below.
    pub fn row(&mut self, cells: [String; N], cause: Option<&CauseStatus>) {
        let below = cause.map(|cause| {
            let mut text = format!("  cause:  {} ({})\n", cause.text, cause.at);
            if let Some(remedy) = &cause.remedy {
                // Writing to a String cannot fail.
                let _ = writeln!(text, "  remedy: {remedy}");
            }
            text
        });
        self.rows.push((cells, below));
    }

    fn widths(&self) -> [usize; N] {
        let mut widths = [0; N];
        for (cells, _) in &self.rows {
            for (width, cell) in widths.iter_mut().zip(cells) {
                *width = cell.chars().count().max(*width);
            }
        }
        widths
    }
}

impl<const N: usize> Display for TextTable<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let widths = self.widths();
        for (cells, below) in &self.rows {
            let mut line = String::new();
            for (cell, width) in cells.iter().zip(widths) {
                let _ = write!(line, "{cell:<width$}  ");
            }
            writeln!(f, "{}", line.trim_end())?;
            f.write_str(below.as_deref().unwrap_or_default())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{
        AskedLogin, AskedOnce, AskedStore, AskedUpstream, CauseStatus, ClusterStatus,
        GatewayStatus, IssuerStatus, ReplicaStatus, UpstreamState, UpstreamStatus,
    };

    fn upstream(name: &str, state: UpstreamState) -> UpstreamStatus {
        UpstreamStatus {
            name: name.into(),
            transport: "stdio".into(),
            state,
            since: "2026-11-23T20:00:00Z".into(),
            since_s: 192,
            cause: None,
            account: None,
            era: Some("legacy".into()),
            revision: Some("2025-11-25".into()),
            sessions: 2,
            children: 1,
            calls_in_flight: 3,
            calls_per_minute: 61.24,
            failures_per_minute: 0.0,
            p50_ms: Some(3.4),
            p99_ms: Some(12_400.0),
        }
    }

    fn cause(text: &str, remedy: Option<&str>) -> CauseStatus {
        CauseStatus {
            text: text.into(),
            remedy: remedy.map(Into::into),
            at: "2026-11-23T20:03:00Z".into(),
        }
    }

    fn replica(node: &str, is_self: bool) -> ReplicaStatus {
        ReplicaStatus {
            node: node.into(),
            address: "10.0.0.7:8090".into(),
            version: "1.2.3".into(),
            is_self,
            draining: !is_self,
            same_configuration: is_self,
        }
    }

    #[test]
    fn columns_stand_below_each_other_with_causes_below_rows() {
        let down = UpstreamStatus {
            cause: Some(cause("the connection was refused", Some("start it"))),
            era: None,
            revision: None,
            p50_ms: None,
            p99_ms: None,
            ..upstream("tracker", UpstreamState::Down)
        };
        let status = GatewayStatus {
            version: "1.2.3".into(),
            time: "2026-11-23T20:03:12Z".into(),
            uptime_s: 90_000,
            draining: false,
            children: Some("trusted".into()),
            cluster: Some(ClusterStatus {
                node: "0000002a".into(),
                lease_ms: 4_000,
                fenced: true,
                redis: true,
                replicas: vec![replica("0000002a", true), replica("0000002b", false)],
            }),
            upstreams: vec![upstream("files", UpstreamState::Up), down],
            issuers: vec![IssuerStatus {
                issuer: "https://auth.example.com".into(),
                keys: None,
                keys_age_s: None,
                cause: Some(cause("no route", None)),
            }],
        };
        let expected = "\
drawbridge 1.2.3, up for 1 d 1 h (2026-11-23T20:03:12Z)
children are not isolated from each other: trusted

UPSTREAM  TRANSPORT  STATE  SINCE  REVISION             SESSIONS  CHILDREN  IN FLIGHT  CALLS/MIN  FAILED/MIN  P50     P99
files     stdio      up     3 min  2025-11-25 (legacy)  2         1         3          61.2       0.0         3.4 ms  12 s
tracker   stdio      down   3 min  -                    2         1         3          61.2       0.0         -       -
  cause:  the connection was refused (2026-11-23T20:03:00Z)
  remedy: start it

ISSUER                    KEYS  LOADED
https://auth.example.com  -     -
  cause:  no route (2026-11-23T20:03:00Z)

replica 0000002a: fenced, lease for 4000 ms, Redis connected
REPLICA   ADDRESS        VERSION  STATE     CONFIGURATION
0000002a  10.0.0.7:8090  1.2.3    serving   same
0000002b  10.0.0.7:8090  1.2.3    draining  differs
";
        assert_eq!(status.to_string(), expected);
        assert!(!status.is_well());
        let json = serde_json::to_string(&status).unwrap();
        let again: GatewayStatus = serde_json::from_str(&json).unwrap();
        assert_eq!(again.to_string(), expected, "as the command prints it");
    }

    #[test]
    fn what_was_asked_has_lengths_in_place_of_calls() {
        let down = UpstreamStatus {
            cause: Some(cause("the connection was refused", Some("start it"))),
            era: None,
            revision: None,
            ..upstream("tracker", UpstreamState::Down)
        };
        let lists = [
            ("tools".to_owned(), 12),
            ("resourceTemplates".to_owned(), 0),
        ];
        let asked = AskedOnce {
            upstreams: vec![
                AskedUpstream {
                    status: upstream("files", UpstreamState::Up),
                    lists: lists.into(),
                    is_unopened: false,
                },
                AskedUpstream {
                    status: down,
                    lists: [].into(),
                    is_unopened: false,
                },
            ],
            issuers: vec![IssuerStatus {
                issuer: "https://auth.example.com".into(),
                keys: Some(2),
                keys_age_s: Some(1),
                cause: None,
            }],
            logins: vec![AskedLogin {
                issuer: "https://auth.example.com".into(),
                cause: Some(cause("no metadata", None)),
            }],
            stores: vec![AskedStore {
                name: "Redis".into(),
                cause: None,
            }],
            doubts: Vec::new(),
        };
        let expected = "\
UPSTREAM  TRANSPORT  STATE  REVISION             TOOLS  PROMPTS  RESOURCES  TEMPLATES
files     stdio      up     2025-11-25 (legacy)  12     -        -          0
tracker   stdio      down   -                    -      -        -          -
  cause:  the connection was refused (2026-11-23T20:03:00Z)
  remedy: start it

ISSUER                    KEYS  LOADED
https://auth.example.com  2     1 s ago

LOGIN AT                  STATE
https://auth.example.com  impossible
  cause:  no metadata (2026-11-23T20:03:00Z)

STORE  STATE
Redis  usable
";
        assert_eq!(asked.to_string(), expected);
        let json = serde_json::to_value(&asked).unwrap();
        let first = &json["upstreams"][0];
        assert_eq!(
            (&first["name"], &first["lists"]["tools"]),
            (&"files".into(), &12.into())
        );
    }
}
