//! Instructions per reply, counted by callgrind: repeatable where the clock of a shared machine is not. Rows over
//! stdio are left out.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;

use crate::bare::{Bare, BarePlan};
use crate::client::Target;
use crate::figures;
use crate::lanes::{self, Between, Lane, Stubs};
use crate::load::Crowd;
use crate::place::{Gateway, GatewayPlan, Place, Running};
use crate::rows::{CALL_16, CALL_WITH_ACCOUNT, Over, ROWS, Row, Variant};

/// Steps of each session before anything is counted: caches are full then, and lists kept.
const WARM: u64 = 30;
/// Replies that are counted for each row, at least.
const REPLIES: u64 = 1_600;

/// How much a row may cost more than before, in percent: repeated counts differ by up to 2.
pub(crate) const LIMIT: f64 = 3.0;

/// How much a caller's account at the upstream may add to a call, in percent.
const ACCOUNT_LIMIT: f64 = 2.0;

/// Configuration for all other rows: below callgrind a row may outlive the cached lists.
const CACHED: &str = "\n[lists]\nfresh = \"1h\"\n";

/// `drill instructions`.
#[derive(Debug, Args)]
pub(crate) struct InstructionsArgs {
    /// The gateway program (release build).
    #[arg(long, default_value = "target/release/drawbridge")]
    gateway: PathBuf,
    /// Baseline build, counted first: a row that costs over `--limit` percent more than the baseline fails.
    #[arg(long, conflicts_with = "recorded")]
    before: Option<PathBuf>,
    /// File with the figures that a row may exceed by `--limit` percent.
    #[arg(long)]
    recorded: Option<PathBuf>,
    /// Writes the figures into the file of `--recorded` instead, and compares nothing.
    #[arg(long, requires = "recorded", conflicts_with = "only")]
    record: bool,
    /// The stub upstream program (release build).
    #[arg(long, default_value = "target/release/stub-upstream")]
    stub: PathBuf,
    /// Replies that are counted for each row, at least.
    #[arg(long, default_value_t = REPLIES)]
    replies: u64,
    /// Only rows whose name contains this.
    #[arg(long)]
    only: Option<String>,
    /// How much a row may cost more than before, in percent.
    #[arg(long, default_value_t = LIMIT)]
    limit: f64,
    /// Directory that keeps callgrind's files, one per row, for `callgrind_annotate`.
    #[arg(long)]
    keep: Option<PathBuf>,
}

/// Instructions per reply, by the name of the row.
pub(crate) type Counts = BTreeMap<String, f64>;

/// Counts every row; true when no row costs more than the limit allows.
pub(crate) async fn run(args: InstructionsArgs) -> anyhow::Result<bool> {
    let place = Place::new()?;
    let stubs = Stubs::start(&place, &args.stub)?;
    let list = lanes::reference_list(&Target::parse(&stubs.legacy.url)?).await?;
    let wanted = |row: &&Row| {
        let only = args.only.as_ref();
        only.is_none_or(|only| row.name.contains(only))
    };
    let counting = Counting {
        place: &place,
        stubs: &stubs,
        list: list.into(),
        rows: ROWS.iter().filter(wanted).collect(),
        replies: args.replies,
        keep: args.keep.as_deref(),
    };
    let gateway = async |name, binary| counting.gateway(name, binary, &args.stub).await;
    let before = match (&args.before, &args.recorded) {
        (Some(binary), _) => gateway("before", binary).await?,
        (None, Some(file)) if !args.record => read(file)?,
        (None, _) => Counts::new(),
    };
    let after = gateway("after", &args.gateway).await?;
    let passed = report(&before, &after, args.limit)?;
    if let Some(file) = args.recorded.filter(|_| args.record) {
        std::fs::write(file, text_of(&after)?).context("cannot write the figures")?;
    }
    drop(counting);
    drop(stubs);
    place.clean()?;
    Ok(passed)
}

/// Prints every row; true when none costs more than before by over `limit` percent, and an account no more than it may.
fn report(before: &Counts, after: &Counts, limit: f64) -> anyhow::Result<bool> {
    let mut passed = true;
    if let (Some(without), Some(with)) = (after.get(CALL_16), after.get(CALL_WITH_ACCOUNT)) {
        let is_kept = is_within(*without, *with, ACCOUNT_LIMIT);
        passed &= is_kept;
        let verdict = if is_kept { "" } else { "  OVER THE LIMIT" };
        let ratio = with / without;
        writeln!(
            std::io::stdout(),
            "an account of the caller makes a call x {ratio:.3}{verdict}"
        )?;
    }
    for (name, after) in after {
        let verdict = match before.get(name) {
            Some(before) => {
                let is_kept = is_within(*before, *after, limit);
                passed &= is_kept;
                let ratio = after / before;
                let verdict = if is_kept { "" } else { "  OVER THE LIMIT" };
                format!("  before {before:>9.0}  x {ratio:.3}{verdict}")
            }
            None => String::new(),
        };
        writeln!(
            std::io::stdout(),
            "{name:<56} instructions {after:>9.0}{verdict}"
        )?;
    }
    Ok(passed)
}

/// Whether `after` exceeds `before` by `limit` percent at most.
pub(crate) fn is_within(before: f64, after: f64, limit: f64) -> bool {
    after <= before * (1.0 + limit / 100.0)
}

/// The figures of a file of `--recorded`.
pub(crate) fn read(file: &Path) -> anyhow::Result<Counts> {
    let text =
        std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    toml::from_str(&text).with_context(|| format!("{} is no list of figures", file.display()))
}

/// The text of a file of `--recorded`.
fn text_of(counts: &Counts) -> anyhow::Result<String> {
    let mut text = String::from(
        "# Instructions per reply of the tuned build with one worker thread, counted by callgrind. `make instructions` fails\n\
         # where a row takes over 3 % more. Written by `make record-instructions`: commit it with the change that needs it.\n",
    );
    for (name, count) in counts {
        writeln!(text, "{name:?} = {count:.1}")?;
    }
    Ok(text)
}

/// What is counted, and how.
pub(crate) struct Counting<'a> {
    place: &'a Place,
    stubs: &'a Stubs,
    list: Arc<str>,
    rows: Vec<&'a Row>,
    replies: u64,
    keep: Option<&'a Path>,
}

impl<'a> Counting<'a> {
    /// As much as a report needs; nothing without valgrind.
    pub(crate) fn if_possible(
        place: &'a Place,
        stubs: &'a Stubs,
        list: &Arc<str>,
        rows: Vec<&'a Row>,
    ) -> Option<Self> {
        let is_there = Command::new("valgrind").arg("--version").output().is_ok();
        is_there.then(|| Self {
            place,
            stubs,
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
            self.count(&gateway.process, &lane, &out, rows).await
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
        Ok(counts)
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
        self.count(&bare.process, &lane, &out, &self.rows).await
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

    /// Counts rows in a process below callgrind, which writes to `out`. A child is started through the program itself,
    /// which below callgrind is another one: rows over stdio are left out, and so are those of other builds.
    async fn count(
        &self,
        process: &Running,
        lane: &Lane,
        out: &Path,
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
            control(process, &["-i", "on"])?;
            control(process, &["-z"])?;
            let each = self.replies.div_ceil(crowd.len().max(1));
            let replies = crowd.step(each).await?;
            control(process, &["--dump"])?;
            control(process, &["-i", "off"])?;
            crowd.close().await?;
            // Dumps are numbered from one on.
            let file = PathBuf::from(format!("{}.{}", out.display(), number + 1));
            #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
            let count = total(&file)? as f64 / replies as f64;
            counts.insert(row.name.to_owned(), count);
            if let (Some(keep), Some(name)) = (self.keep, file.file_name()) {
                std::fs::create_dir_all(keep)?;
                std::fs::copy(&file, keep.join(name))?;
            }
        }
        Ok(counts)
    }
}

/// Has callgrind do something in a process.
fn control(process: &Running, what: &[&str]) -> anyhow::Result<()> {
    let mut command = Command::new("callgrind_control");
    let output = command.args(what).arg(process.pid().to_string()).output();
    let output = output.context("cannot run callgrind_control: apt-get install valgrind")?;
    if !output.status.success() {
        bail!(
            "callgrind_control {what:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
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

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(figures: &[(&str, f64)]) -> Counts {
        let own = |(name, figure): &(&str, f64)| ((*name).to_owned(), *figure);
        figures.iter().map(own).collect()
    }

    #[test]
    fn what_is_recorded_is_read_again() {
        let written = counts(&[("call, 16 sessions", 1234.5), ("the \"other\" row", 7.0)]);
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("instructions.toml");
        std::fs::write(&file, text_of(&written).unwrap()).unwrap();
        assert_eq!(read(&file).unwrap(), written);
    }

    #[test]
    fn account_that_costs_a_call_more_than_the_limit_fails() {
        let judge = |with| {
            let after = counts(&[(CALL_16, 1000.0), (CALL_WITH_ACCOUNT, with)]);
            report(&Counts::new(), &after, 3.0)
        };
        assert!(judge(1019.0).unwrap());
        assert!(!judge(1021.0).unwrap());
    }

    #[test]
    fn a_row_fails_that_exceeds_what_is_recorded_by_more_than_the_limit() {
        let recorded = counts(&[("a", 1000.0), ("b", 1000.0)]);
        let judge = |b| {
            report(
                &recorded,
                &counts(&[("a", 900.0), ("b", b), ("c", 1.0)]),
                3.0,
            )
        };
        assert!(judge(1029.0).unwrap());
        assert!(!judge(1031.0).unwrap());
    }
}
