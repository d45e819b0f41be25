//! What the load runs through: nothing, nginx, the bare proxy or a gateway, in front of the stub upstreams.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;

use crate::client::{Caller, Client, Target};
use crate::figures;
use crate::load::Plan;
use crate::place::{Gateway, GatewayPlan, Place, Stub};
use crate::rows::{Over, Row};

/// The modern upstream. Its name is as long as the legacy upstream's, so that tokens for both have the same
/// length: longer tokens cost more to verify.
const MODERN: &str = "next";
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
}

impl Lane {
    pub(crate) fn callers(&self, over: Over) -> &[Caller] {
        match over {
            Over::Bridged if !self.bridges => &[],
            Over::Http | Over::Bridged => &self.http,
            Over::Modern => &self.modern,
            Over::Stdio => &self.stdio,
        }
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
        }
    }

    /// The callers of a gateway.
    pub(crate) fn through(
        name: &'static str,
        place: &Place,
        gateway: &Gateway,
    ) -> anyhow::Result<Self> {
        let callers = |upstream: &str| {
            let caller = |n: usize| gateway.caller(place, upstream, &format!("principal-{n}"));
            (0..PRINCIPALS)
                .map(caller)
                .collect::<anyhow::Result<Vec<_>>>()
        };
        Ok(Self {
            name,
            http: callers("http")?,
            modern: callers(MODERN)?,
            stdio: callers("stdio")?,
            pid: Some(gateway.process.pid()),
            bridges: true,
        })
    }
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
    let own = lane.pid.map(|pid| (figures::SELF.to_owned(), pid));
    let upstream = stubs.behind(row.over).process.pid();
    let callers = lane.callers(row.over).iter().cycle();
    Plan {
        scenario: row.scenario,
        callers: callers.take(row.sessions).cloned().collect(),
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

/// Room for everything; limits and rates are checked all the same.
fn tables(sink: Option<&str>) -> String {
    let sink = sink.map_or_else(String::new, |sink| {
        format!("\n[telemetry]\notlp_endpoint = \"{sink}\"\notlp_every_request = false\n")
    });
    format!("[limits]\nrate = \"1000000/s\"\n\n[sessions]\nmax_per_principal = 10000\n{sink}")
}
