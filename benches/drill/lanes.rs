//! What the load runs through: nothing, nginx, the bare proxy or a gateway, in front of the stub upstreams.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;

use crate::client::{Caller, Client, Target};
use crate::figures;
use crate::keys::SCOPE;
use crate::load::Plan;
use crate::place::{Gateway, GatewayPlan, Place, Stub};
use crate::rows::{Over, Row};
use crate::said::Kind;

/// The modern upstream. Its name is as long as the legacy upstream's, so that tokens for both have the same
/// length: longer tokens cost more to verify.
const MODERN: &str = "next";
/// Configuration of a gateway that caches no lists.
pub(crate) const UNCACHED: &str = "\n[lists]\nfresh = \"0s\"\n";
/// Principals that the sessions are spread over.
const PRINCIPALS: usize = 16;

/// A target of the load: its callers and the measured process.
pub(crate) struct Lane {
    pub(crate) name: &'static str,
    http: Vec<Caller>,
    modern: Vec<Caller>,
    stdio: Vec<Caller>,
    /// Of a process between.
    pid: Option<u32>,
    /// Whether it is the gateway.
    bridges: bool,
    /// A second gateway, which caches no lists: its callers and its process.
    uncached: Option<(Vec<Caller>, u32)>,
}

impl Lane {
    pub(crate) fn callers(&self, over: Over) -> &[Caller] {
        match over {
            Over::Bridged if !self.bridges => &[],
            Over::Uncached if self.bridges => match &self.uncached {
                Some((callers, _)) => callers,
                None => &[],
            },
            Over::Http | Over::Bridged | Over::Uncached => &self.http,
            Over::Modern => &self.modern,
            Over::Stdio => &self.stdio,
        }
    }

    fn pid(&self, over: Over) -> Option<u32> {
        match (over, &self.uncached) {
            (Over::Uncached, Some((_, pid))) => Some(*pid),
            _ => self.pid,
        }
    }

    /// Adds the gateway that caches no lists.
    pub(crate) fn with_uncached(
        mut self,
        place: &Place,
        gateway: &Gateway,
    ) -> anyhow::Result<Self> {
        let callers = callers(place, gateway, "http")?;
        self.uncached = Some((callers, gateway.process.pid()));
        Ok(self)
    }

    /// Without tokens: callers of a legacy and of a modern endpoint.
    pub(crate) fn plain(
        name: &'static str,
        http: &Target,
        modern: &Target,
        pid: Option<u32>,
    ) -> Self {
        Self {
            name,
            http: vec![Caller::anonymous(http.clone())],
            modern: vec![Caller::anonymous(modern.clone())],
            stdio: Vec::new(),
            pid,
            bridges: false,
            uncached: None,
        }
    }

    /// The callers of a gateway.
    pub(crate) fn through(
        name: &'static str,
        place: &Place,
        gateway: &Gateway,
    ) -> anyhow::Result<Self> {
        let callers = |upstream: &str| callers(place, gateway, upstream);
        Ok(Self {
            name,
            http: callers("http")?,
            modern: callers(MODERN)?,
            stdio: callers("stdio")?,
            pid: Some(gateway.process.pid()),
            bridges: true,
            uncached: None,
        })
    }
}

fn callers(place: &Place, gateway: &Gateway, upstream: &str) -> anyhow::Result<Vec<Caller>> {
    let caller = |n: usize| gateway.caller(place, upstream, &format!("principal-{n}"));
    (0..PRINCIPALS).map(caller).collect()
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
        Ok(GatewayPlan {
            under: Vec::new(),
            binary,
            name,
            threads,
            upstreams: upstreams(&self.legacy.url, stub)? + &modern,
            tables: tables(sink),
        })
    }

    fn behind(&self, over: Over) -> &Stub {
        match over {
            Over::Modern => &self.modern,
            Over::Http | Over::Uncached | Over::Bridged | Over::Stdio => &self.legacy,
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
    let own = lane
        .pid(row.over)
        .map(|pid| (figures::SELF.to_owned(), pid));
    let upstream = stubs.behind(row.over).process.pid();
    let callers = lane.callers(row.over).iter().cycle().take(row.sessions);
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
            .into_iter()
            .chain([(figures::UPSTREAM.to_owned(), upstream)])
            .collect(),
        list: Some(Arc::clone(list)),
    }
}

/// What `tools/list` says without anybody between.
pub(crate) async fn reference_list(direct: &Target) -> anyhow::Result<String> {
    let mut client = Client::connect(Caller::anonymous(direct.clone())).await?;
    client.open().await?;
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
