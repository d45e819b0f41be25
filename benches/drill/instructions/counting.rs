//! Runs programs under callgrind, and reads its counts.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};

use super::{CACHED, Counts, REPLIES, WARM};
use crate::bare::{Bare, BarePlan};
use crate::cluster::Cluster;
use crate::figures;
use crate::lanes::{self, Between, Lane, Stubs};
use crate::load::Crowd;
use crate::place::{Gateway, GatewayPlan, Place, Running};
use crate::redis::Redis;
use crate::rows::{Over, Row, Variant};

/// Lines of `[cluster]` of replicas below callgrind, whose time goes fifty times as slowly as that of Redis.
const PATIENT: &str = "lease = \"1m\"";

/// What is counted, and how.
pub(crate) struct Counting<'a> {
    pub(super) place: &'a Place,
    pub(super) stubs: &'a Stubs,
    /// Needed for the rows with it alone.
    pub(super) redis: Option<&'a Redis>,
    pub(super) list: Arc<str>,
    pub(super) rows: Vec<&'a Row>,
    pub(super) replies: u64,
    pub(super) keep: Option<&'a Path>,
}

/// A process below callgrind, and the file that callgrind writes.
type Counted<'a> = (&'a Running, &'a Path);

impl<'a> Counting<'a> {
    /// As much as a report needs; nothing without valgrind.
    pub(crate) fn if_possible(
        place: &'a Place,
        stubs: &'a Stubs,
        redis: Option<&'a Redis>,
        list: &Arc<str>,
        rows: Vec<&'a Row>,
    ) -> Option<Self> {
        let is_there = Command::new("valgrind").arg("--version").output().is_ok();
        is_there.then(|| Self {
            place,
            stubs,
            redis,
            list: Arc::clone(list),
            rows,
            replies: REPLIES,
            keep: None,
        })
    }

    /// Of a gateway with one worker thread.
    pub(crate) async fn gateway(
        &self,
        name: &str,
        binary: &Path,
        stub: &Path,
    ) -> anyhow::Result<Counts> {
        let count = async |name: &str, more: &str, rows: &[&Row]| {
            let mut plan = self.stubs.plan(stub, binary, name, 1, None)?;
            plan.tables.push_str(more);
            let (under, out) = self.under(name);
            let plan = GatewayPlan { under, ..plan };
            let gateway = Gateway::start(self.place, &plan)?;
            let lane = Lane::gateway(figures::ONE, Between::gateway(self.place, &gateway)?);
            let counted = [(&gateway.process, out.as_path())];
            self.count(&counted, &lane, rows).await
        };
        let rows_of = |variants: &[Variant]| -> Vec<&Row> {
            let rows = self.rows.iter().copied();
            rows.filter(|row| variants.contains(&row.variant)).collect()
        };
        let common = rows_of(&[Variant::Tuned, Variant::Untuned]);
        let mut counts = count(name, CACHED, &common).await?;
        let uncached = rows_of(&[Variant::Uncached]);
        if !uncached.is_empty() {
            let name = format!("{name}-uncached");
            counts.extend(count(&name, lanes::UNCACHED, &uncached).await?);
        }
        let with_accounts = rows_of(&[Variant::Accounts]);
        if !with_accounts.is_empty() {
            let name = format!("{name}-accounts");
            let tables = self.stubs.accounts(self.place, &name).await? + CACHED;
            counts.extend(count(&name, &tables, &with_accounts).await?);
        }
        let Some(redis) = self.redis else {
            return Ok(counts);
        };
        let with_redis = rows_of(&[Variant::Redis]);
        if !with_redis.is_empty() {
            let name = format!("{name}-redis");
            let plan = self.stubs.plan(stub, binary, &name, 1, None)?;
            let between = |cluster: &Cluster| cluster.in_turn(self.place);
            counts.extend(self.replicas(redis, plan, 1, between, &with_redis).await?);
        }
        let forwarded = rows_of(&[Variant::Forwarded]);
        if !forwarded.is_empty() {
            let name = format!("{name}-passing");
            let plan = self.stubs.plan(stub, binary, &name, 1, None)?;
            let between = |cluster: &Cluster| cluster.passed_on(self.place);
            counts.extend(self.replicas(redis, plan, 2, between, &forwarded).await?);
        }
        Ok(counts)
    }

    /// Of `count` replicas together, each with one worker thread.
    async fn replicas(
        &self,
        redis: &Redis,
        mut plan: GatewayPlan<'_>,
        count: usize,
        between: impl Fn(&Cluster) -> anyhow::Result<Between>,
        rows: &[&Row],
    ) -> anyhow::Result<Counts> {
        plan.tables.push_str(CACHED);
        let name = plan.name;
        let counted = (0..count).map(|number| self.under(&format!("{name}-{number}")));
        let (under, outs): (Vec<_>, Vec<_>) = counted.unzip();
        let cluster = Cluster::start(self.place, redis, &plan, &under, PATIENT).await?;
        let lane = Lane::plain(figures::ONE, between(&cluster)?);
        // Whatever the rows are about, these processes are it.
        let rows: Vec<Row> = rows.iter().map(|row| row.with(Variant::Tuned)).collect();
        let processes = cluster.replicas.iter().map(|replica| &replica.process);
        let counted: Vec<Counted<'_>> = processes.zip(outs.iter().map(PathBuf::as_path)).collect();
        self.count(&counted, &lane, &rows.iter().collect::<Vec<_>>())
            .await
    }

    /// Of the bare proxy with one worker thread.
    pub(crate) async fn bare(&self, binary: &Path) -> anyhow::Result<Counts> {
        let (legacy, modern) = self.stubs.targets()?;
        let (under, out) = self.under("bare");
        let upstreams = [&legacy, &modern];
        let plan = BarePlan {
            under: &under,
            ..BarePlan::new("bare-counted", binary, 1, &upstreams)
        };
        let bare = Bare::start(self.place, plan)?;
        let lane = Lane::plain(figures::BARE_ONE, bare.between()?);
        let counted = [(&bare.process, out.as_path())];
        self.count(&counted, &lane, &self.rows).await
    }

    /// The callgrind command, and the file that it writes.
    fn under(&self, name: &str) -> (Vec<String>, PathBuf) {
        let out = self.place.dir.join(format!("{name}.callgrind"));
        let words = vec![
            "valgrind".to_owned(),
            "--tool=callgrind".to_owned(),
            "--instr-atstart=no".to_owned(),
            format!("--callgrind-out-file={}", out.display()),
        ];
        (words, out)
    }

    /// Counts rows in processes under callgrind. A child is started through the program
    /// itself, which under callgrind is another one: rows over stdio are left out, and so are those of other builds.
    async fn count(
        &self,
        counted: &[Counted<'_>],
        lane: &Lane,
        rows: &[&Row],
    ) -> anyhow::Result<Counts> {
        let is_counted = |row: &&&Row| {
            let is_here = row.over != Over::Stdio && row.variant != Variant::Untuned;
            is_here && !lane.callers(row).is_empty()
        };
        let mut counts = Counts::new();
        for (number, row) in rows.iter().filter(is_counted).enumerate() {
            let plan = lanes::plan_of(Duration::ZERO, row, lane, self.stubs, &self.list);
            let mut crowd = Crowd::open(&plan).await?;
            crowd.step(WARM).await?;
            control(counted, &["-i", "on"])?;
            control(counted, &["-z"])?;
            // What happens once a minute would count too much where accounts are used.
            let times = if row.variant == Variant::Accounts {
                5
            } else {
                1
            };
            let each = (self.replies * times).div_ceil(crowd.len().max(1));
            let replies = crowd.step(each).await?;
            control(counted, &["--dump"])?;
            control(counted, &["-i", "off"])?;
            crowd.close().await?;
            let mut sum = 0;
            for (_, out) in counted {
                // Dumps are numbered from one on.
                let file = PathBuf::from(format!("{}.{}", out.display(), number + 1));
                sum += total(&file)?;
                if let (Some(keep), Some(name)) = (self.keep, file.file_name()) {
                    std::fs::create_dir_all(keep)?;
                    std::fs::copy(&file, keep.join(name))?;
                }
            }
            #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
            let count = sum as f64 / replies as f64;
            counts.insert(row.name.to_owned(), count);
        }
        Ok(counts)
    }
}

/// Has callgrind do something in each process.
fn control(counted: &[Counted<'_>], what: &[&str]) -> anyhow::Result<()> {
    for (process, _) in counted {
        let mut command = Command::new("callgrind_control");
        let output = command.args(what).arg(process.pid().to_string()).output();
        let output = output.context("cannot run callgrind_control: apt-get install valgrind")?;
        if !output.status.success() {
            bail!(
                "callgrind_control {what:?}: {}",
                String::from_utf8_lossy(&output.stderr)
            );
        }
    }
    Ok(())
}

/// The sum in a dump.
fn total(file: &Path) -> anyhow::Result<u64> {
    let text = std::fs::read_to_string(file)
        .with_context(|| format!("callgrind wrote no {}", file.display()))?;
    let line = text.lines().find_map(|line| line.strip_prefix("totals: "));
    // Instructions come first, where more is counted.
    let total = line.and_then(|line| line.split_whitespace().next());
    Ok(total.context("a dump without its total")?.parse()?)
}
