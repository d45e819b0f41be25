//! Instructions per reply, counted by callgrind: repeatable where the clock of a shared machine is not. Rows over
//! stdio are left out.

mod counting;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Args;

pub(crate) use self::counting::Counting;
use crate::client::Target;
use crate::lanes::{self, Stubs};
use crate::place::Place;
use crate::redis::Redis;
use crate::rows::{Budget, ROWS, Row};

/// Steps of each session before anything is counted: caches are full then, and lists kept.
const WARM: u64 = 30;
/// Replies that are counted for each row, at least.
const REPLIES: u64 = 1_600;

/// How much a row may cost more than before, in percent: repeated counts differ by up to 2.
pub(crate) const LIMIT: f64 = 3.0;

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
    let rows: Vec<&Row> = ROWS.iter().filter(wanted).collect();
    let needs_redis = rows.iter().any(|row| row.variant.is_clustered());
    let redis = needs_redis.then(|| Redis::start(&place)).transpose()?;
    let counting = Counting {
        place: &place,
        stubs: &stubs,
        redis: redis.as_ref(),
        list: list.into(),
        rows,
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
    drop((stubs, redis));
    place.clean()?;
    Ok(passed)
}

/// Prints every row; true when none costs more than before by over `limit` percent, and none more than another row
/// allows it.
fn report(before: &Counts, after: &Counts, limit: f64) -> anyhow::Result<bool> {
    let mut passed = true;
    for row in &ROWS {
        let of_instructions = |budget: &&Budget| matches!(budget, Budget::TimesInstructions(..));
        for budget in row.budgets.iter().filter(of_instructions) {
            let Some((other, ratio)) = ratio(after, row, *budget) else {
                continue;
            };
            let is_kept = ratio <= budget.limit();
            passed &= is_kept;
            let verdict = if is_kept { "" } else { "  OVER THE LIMIT" };
            writeln!(
                std::io::stdout(),
                "{:<62} x {ratio:.3} of \"{other}\", at most {}{verdict}",
                row.name,
                budget.limit()
            )?;
        }
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
            "{name:<62} instructions {after:>9.0}{verdict}"
        )?;
    }
    Ok(passed)
}

/// The row that a budget is about, and how many times its instructions a row takes; nothing where either was not
/// counted.
pub(crate) fn ratio(counts: &Counts, row: &Row, budget: Budget) -> Option<(&'static str, f64)> {
    let other = budget.other()?;
    Some((other, counts.get(row.name)? / counts.get(other)?))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::{CALL_16, CALL_WITH_ACCOUNT, CALL_WITH_REDIS};

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
    fn row_that_takes_more_than_another_row_allows_fails() {
        let judge = |row, count| {
            let after = counts(&[(CALL_16, 1000.0), (row, count)]);
            report(&Counts::new(), &after, 3.0).unwrap()
        };
        assert!(judge(CALL_WITH_ACCOUNT, 1019.0));
        assert!(!judge(CALL_WITH_ACCOUNT, 1021.0));
        assert!(judge(CALL_WITH_REDIS, 1049.0));
        assert!(!judge(CALL_WITH_REDIS, 1051.0));
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
