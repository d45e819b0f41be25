//! The programs of a check, and those of a bench, started, with a lane through each.

use std::path::{Path, PathBuf};

use clap::Args;

use crate::bare::{Bare, BarePlan};
use crate::bench::BenchArgs;
use crate::client::Target;
use crate::cluster::Cluster;
use crate::figures::{BARE_ONE, BARE_TWO, DIRECT, NGINX, ONE, TWO};
use crate::lanes::{self, Between, Lane, Stubs};
use crate::place::{Gateway, Nginx, Place};
use crate::redis::Redis;
use crate::rows::Variant;

// The programs that a check starts. No doc comment: it would stand in for that of the command.
#[derive(Debug, Args)]
pub(crate) struct ProgramArgs {
    /// The gateway program.
    #[arg(long, default_value = "target/release/drawbridge")]
    pub(crate) gateway: PathBuf,
    /// The stub upstream program.
    #[arg(long, default_value = "target/release/stub-upstream")]
    pub(crate) stub: PathBuf,
}

/// Starts programs for a bench.
#[derive(Clone, Copy)]
pub(crate) struct Starter<'a> {
    pub(crate) args: &'a BenchArgs,
    pub(crate) place: &'a Place,
    pub(crate) stubs: &'a Stubs,
    /// Takes the telemetry of gateways, too.
    pub(crate) nginx: Option<&'a Nginx>,
    pub(crate) redis: Option<&'a Redis>,
}

/// Running programs; they end when dropped.
#[derive(Default)]
pub(crate) struct Programs {
    gateways: Vec<Gateway>,
    clusters: Vec<Cluster>,
    bares: Vec<Bare>,
}

impl Starter<'_> {
    /// Starts what the command line does not leave out. The lanes are usable while the programs are kept.
    pub(crate) async fn lanes(self, programs: &mut Programs) -> anyhow::Result<Vec<Lane>> {
        let (legacy, modern) = self.stubs.targets()?;
        let mut lanes = vec![Lane::plain(DIRECT, Between::plain(&legacy, &modern, None))];
        if let Some(nginx) = self.nginx {
            let (http, modern) = (Target::parse(nginx.url(0)?)?, Target::parse(nginx.url(1)?)?);
            let between = Between::plain(&http, &modern, Some(nginx.worker));
            lanes.push(Lane::plain(NGINX, between));
        }
        if !self.args.no_bare {
            for (name, threads) in [(BARE_ONE, 1), (BARE_TWO, 2)] {
                lanes.push(self.bare_lane(name, threads, programs)?);
            }
        }
        if !self.args.no_gateway {
            for (name, threads) in [(ONE, 1), (TWO, 2)] {
                lanes.push(self.gateway_lane(name, threads, programs).await?);
            }
        }
        Ok(lanes)
    }

    fn bare_lane(
        self,
        name: &'static str,
        threads: usize,
        programs: &mut Programs,
    ) -> anyhow::Result<Lane> {
        let (legacy, modern) = self.stubs.targets()?;
        let mut start = |name: &str, binary: &Path| {
            let upstreams = [&legacy, &modern];
            let plan = BarePlan::new(name, binary, threads, &upstreams);
            let bare = Bare::start(self.place, plan)?;
            let between = bare.between()?;
            programs.bares.push(bare);
            anyhow::Ok(between)
        };
        let mut lane = Lane::plain(name, start(name, &self.args.bare)?);
        if let Some(untuned) = &self.args.untuned {
            let untuned = start(&format!("untuned-{name}"), &untuned.join("bare-proxy"))?;
            lane = lane.with(Variant::Untuned, untuned);
        }
        Ok(lane)
    }

    async fn gateway_lane(
        self,
        name: &'static str,
        threads: usize,
        programs: &mut Programs,
    ) -> anyhow::Result<Lane> {
        let sink = self.nginx.map(|nginx| nginx.sink.as_str());
        let args = self.args;
        let mut start = |name: &str, binary: &Path, more: &str| {
            let mut plan = self.stubs.plan(&args.stub, binary, name, threads, sink)?;
            plan.tables.push_str(more);
            let gateway = Gateway::start(self.place, &plan)?;
            let between = Between::gateway(self.place, &gateway)?;
            programs.gateways.push(gateway);
            anyhow::Ok(between)
        };
        let mut lane = Lane::gateway(name, start(name, &args.gateway, "")?);
        let uncached = format!("uncached-{name}");
        let uncached = start(&uncached, &args.gateway, lanes::UNCACHED)?;
        lane = lane.with(Variant::Uncached, uncached);
        let accounts = format!("accounts-{name}");
        let tables = self.stubs.accounts(self.place, &accounts).await?;
        let accounts = start(&accounts, &args.gateway, &tables)?;
        lane = lane.with(Variant::Accounts, accounts);
        if let Some(untuned) = &args.untuned {
            let untuned = start(&format!("untuned-{name}"), &untuned.join("drawbridge"), "")?;
            lane = lane.with(Variant::Untuned, untuned);
        }
        if let Some(redis) = self.redis {
            let clustered = format!("redis-{name}");
            let tables = redis.tables(&clustered, "");
            lane = lane.with(Variant::Redis, start(&clustered, &args.gateway, &tables)?);
        }
        // The replicas of a call that is passed on have a thread each: two in all, as the other lane has.
        if let (1, Some(redis)) = (threads, self.redis) {
            let name = format!("passing-{name}");
            let plan = self
                .stubs
                .plan(&args.stub, &args.gateway, &name, threads, sink)?;
            let under = [Vec::new(), Vec::new()];
            let cluster = Cluster::start(self.place, redis, &plan, &under, "").await?;
            lane = lane.with(Variant::Forwarded, cluster.passed_on(self.place)?);
            programs.clusters.push(cluster);
        }
        Ok(lane)
    }
}
