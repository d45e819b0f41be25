//! What the load runs through: nothing, nginx, the bare proxy or a gateway, in front of the stub upstreams.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;

use crate::accounts;
use crate::client::{Caller, Client, Target};
use crate::figures;
use crate::keys::SCOPE;
use crate::load::Plan;
use crate::place::{Gateway, GatewayPlan, Place, Stub};
use crate::rows::{Over, Row, Variant};
use crate::said::Kind;

/// The modern upstream. Its name is as long as the legacy upstream's, so that tokens for both have the same
/// length: longer tokens cost more to verify.
const MODERN: &str = "next";
/// Configuration of a gateway that caches no lists.
pub(crate) const UNCACHED: &str = "\n[lists]\nfresh = \"0s\"\n";
/// Principals that the sessions are spread over.
pub(crate) const PRINCIPALS: usize = 16;

/// A target of the load.
pub(crate) struct Lane {
    pub(crate) name: &'static str,
    tuned: Between,
    /// Further processes, for the rows of these variants; rows of any other variant are measured with `tuned`.
    others: Vec<(Variant, Between)>,
    /// Whether it is the gateway.
    bridges: bool,
}

impl Lane {
    /// Without tokens.
    pub(crate) fn plain(name: &'static str, between: Between) -> Self {
        Self {
            name,
            tuned: between,
            others: Vec::new(),
            bridges: false,
        }
    }

    /// Through a gateway.
    pub(crate) fn gateway(name: &'static str, between: Between) -> Self {
        Self {
            bridges: true,
            ..Self::plain(name, between)
        }
    }

    /// Adds the process for the rows of `variant`.
    pub(crate) fn with(mut self, variant: Variant, between: Between) -> Self {
        self.others.push((variant, between));
        self
    }

    /// Who calls in a row; empty where the row does not lead through this lane.
    pub(crate) fn callers(&self, row: &Row) -> &[Caller] {
        let between = self.between(row.variant);
        let has_own = self.others.iter().any(|(of, _)| *of == row.variant);
        match row.over {
            // Neither nginx nor the bare proxy has replicas.
            _ if row.variant.is_clustered() && !has_own => &[],
            Over::Bridged if !self.bridges => &[],
            Over::Http | Over::Bridged => &between.http,
            Over::Modern => &between.modern,
            Over::Stdio => &between.stdio,
        }
    }

    fn between(&self, variant: Variant) -> &Between {
        let mut others = self.others.iter();
        let other = others.find(|(of, _)| *of == variant);
        other.map_or(&self.tuned, |(_, between)| between)
    }
}

/// The process between, and the callers of its endpoints.
pub(crate) struct Between {
    http: Vec<Caller>,
    modern: Vec<Caller>,
    stdio: Vec<Caller>,
    /// All processes that the calls lead through.
    pids: Vec<u32>,
}

impl Between {
    /// Without tokens: callers of a legacy and of a modern endpoint.
    pub(crate) fn plain(http: &Target, modern: &Target, pid: Option<u32>) -> Self {
        Self {
            http: vec![Caller::anonymous(http.clone())],
            modern: vec![Caller::anonymous(modern.clone())],
            stdio: Vec::new(),
            pids: pid.into_iter().collect(),
        }
    }

    /// The callers of a gateway.
    pub(crate) fn gateway(place: &Place, gateway: &Gateway) -> anyhow::Result<Self> {
        let callers = |upstream: &str| callers(place, gateway, upstream);
        Ok(Self {
            http: callers("http")?,
            modern: callers(MODERN)?,
            stdio: callers("stdio")?,
            pids: vec![gateway.process.pid()],
        })
    }

    /// Callers of the legacy endpoint of several replicas.
    pub(crate) fn replicas(http: Vec<Caller>, pids: Vec<u32>) -> Self {
        Self {
            http,
            modern: Vec::new(),
            stdio: Vec::new(),
            pids,
        }
    }
}

fn callers(place: &Place, gateway: &Gateway, upstream: &str) -> anyhow::Result<Vec<Caller>> {
    let caller = |n: usize| gateway.caller(place, upstream, &principal(n));
    (0..PRINCIPALS).map(caller).collect()
}

/// The subject of a principal.
pub(crate) fn principal(number: usize) -> String {
    format!("principal-{number}")
}

/// The stub upstreams that listen.
pub(crate) struct Stubs {
    pub(crate) legacy: Stub,
    modern: Stub,
}

impl Stubs {
    pub(crate) fn start(place: &Place, binary: &Path) -> anyhow::Result<Self> {
        let start = |era| Stub::start(place, binary, &["--tools", "100", "--era", era]);
        Ok(Self {
            legacy: start("legacy")?,
            modern: start("modern")?,
        })
    }

    /// The legacy and the modern one.
    pub(crate) fn targets(&self) -> anyhow::Result<(Target, Target)> {
        Ok((
            Target::parse(&self.legacy.url)?,
            Target::parse(&self.modern.url)?,
        ))
    }

    /// A gateway in front of them and of the stub as a child; its telemetry goes to `sink`.
    pub(crate) fn plan<'a>(
        &self,
        stub: &Path,
        binary: &'a Path,
        name: &'a str,
        threads: usize,
        sink: Option<&str>,
    ) -> anyhow::Result<GatewayPlan<'a>> {
        let modern = format!("\n[upstreams.{MODERN}]\nurl = \"{}\"\n", self.modern.url);
        let upstreams = upstreams(&self.legacy.url, stub)? + &modern;
        Ok(GatewayPlan {
            name,
            threads,
            ..GatewayPlan::new(binary, upstreams, tables(sink))
        })
    }

    /// Tables of a gateway where each of the callers has an account at the legacy upstream; `name` names its files.
    pub(crate) async fn accounts(&self, place: &Place, name: &str) -> anyhow::Result<String> {
        let subjects = (0..PRINCIPALS).map(principal);
        accounts::prepare(place, name, &self.legacy.url, subjects).await
    }

    fn behind(&self, over: Over) -> &Stub {
        match over {
            Over::Modern => &self.modern,
            Over::Http | Over::Bridged | Over::Stdio => &self.legacy,
        }
    }
}

pub(crate) fn plan_of(
    window: Duration,
    row: &Row,
    lane: &Lane,
    stubs: &Stubs,
    list: &Arc<str>,
) -> Plan {
    let pids = lane.between(row.variant).pids.iter();
    let own = pids.map(|pid| (figures::SELF.to_owned(), *pid));
    let upstream = stubs.behind(row.over).process.pid();
    let callers = lane.callers(row).iter().cycle().take(row.sessions);
    let callers = callers.enumerate().map(|(number, caller)| Caller {
        kind: Kind::of(number),
        ..caller.clone()
    });
    Plan {
        scenario: row.scenario,
        callers: callers.collect(),
        warm: window / 4,
        window,
        watch: own
            .chain([(figures::UPSTREAM.to_owned(), upstream)])
            .collect(),
        list: Arc::clone(list),
    }
}

/// What `tools/list` says without anybody between.
pub(crate) async fn reference_list(direct: &Target) -> anyhow::Result<String> {
    let mut client = Client::in_session(Caller::anonymous(direct.clone())).await?;
    client
        .result("tools/list", "{}")
        .await
        .context("reference list")
}

/// One HTTP and one stdio upstream.
pub(crate) fn upstreams(url: &str, stub: &Path) -> anyhow::Result<String> {
    let stub = std::fs::canonicalize(stub).context("no stub upstream program")?;
    Ok(format!(
        "[upstreams.http]\nurl = \"{url}\"\n\n[upstreams.stdio]\ncommand = \"{}\"\nargs = [\"stdio\", \"--tools\", \"100\"]\n",
        stub.display()
    ))
}

/// Room for everything; limits, rates and the scopes of tools are checked all the same.
fn tables(sink: Option<&str>) -> String {
    let sink = sink.map_or_else(String::new, |sink| {
        format!("\n[telemetry]\notlp_endpoint = \"{sink}\"\notlp_every_request = false\n")
    });
    let rules = [
        ("admin_*", "mcp:admin"),
        ("echo", SCOPE),
        ("notices", SCOPE),
    ];
    let rules = rules.map(|(tool, scope)| {
        format!("[[auth.tool_scopes]]\ntools = [\"{tool}\"]\nscopes = [\"{scope}\"]\n\n")
    });
    let rules = rules.concat();
    format!(
        "{rules}[limits]\nrate = \"1000000/s\"\n\n[sessions]\nmax_per_principal = 10000\n{sink}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::ROWS;

    #[test]
    fn row_of_a_variant_leads_through_its_process() {
        let between = |port: u16| {
            let target = Target::parse(&format!("http://127.0.0.1:{port}/mcp")).unwrap();
            Between::plain(&target, &target, Some(u32::from(port)))
        };
        let lane = Lane::plain("a", between(1)).with(Variant::Untuned, between(2));
        let ports = |variant| {
            let rows = ROWS.iter().filter(|row| row.variant == variant);
            let callers = rows.flat_map(|row| lane.callers(row));
            let mut ports: Vec<u16> = callers.map(|it| it.target.addr.port()).collect();
            ports.dedup();
            ports
        };
        assert_eq!(ports(Variant::Tuned), [1]);
        assert_eq!(ports(Variant::Untuned), [2]);
        // A lane that caches nothing has no process of its own for these.
        assert_eq!(ports(Variant::Uncached), [1]);
        assert!(ports(Variant::Redis).is_empty(), "only with Redis");
    }
}
