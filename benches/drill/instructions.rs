//! Instructions per reply, counted by callgrind: repeatable where the clock of a shared machine is not. Rows over
//! stdio are left out.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail};
use clap::Args;

use crate::client::Target;
use crate::lanes::{self, Lane, Stubs};
use crate::load::Crowd;
use crate::place::{Gateway, Place, Running};
use crate::rows::{Over, ROWS, Row};

/// Steps of each session before anything is counted: caches are full then, and lists kept.
const WARM: u64 = 30;

/// `drill instructions`.
#[derive(Debug, Args)]
pub(crate) struct InstructionsArgs {
    /// The gateway program (release build).
    #[arg(long, default_value = "target/release/drawbridge")]
    gateway: PathBuf,
    /// Baseline build, counted first: a row that costs over `--limit` percent more than the baseline fails.
    #[arg(long)]
    before: Option<PathBuf>,
    /// The stub upstream program (release build).
    #[arg(long, default_value = "target/release/stub-upstream")]
    stub: PathBuf,
    /// Replies that are counted for each row, at least.
    #[arg(long, default_value_t = 1_600)]
    replies: u64,
    /// Only rows whose name contains this.
    #[arg(long)]
    only: Option<String>,
    /// How much a row may cost more than before, in percent.
    #[arg(long, default_value_t = 3.0)]
    limit: f64,
    /// Directory that keeps callgrind's files, one per row, for `callgrind_annotate`.
    #[arg(long)]
    keep: Option<PathBuf>,
}

/// Counts every row; true when no row costs more than the limit allows.
pub(crate) async fn run(args: InstructionsArgs) -> anyhow::Result<bool> {
    let place = Place::new()?;
    let stubs = Stubs::start(&place, &args.stub)?;
    let list = lanes::reference_list(&Target::parse(&stubs.legacy.url)?).await?;
    // A child is started through the program itself, which below callgrind is another one.
    let wanted = |row: &&Row| {
        let only = args.only.as_ref();
        row.over != Over::Stdio && only.is_none_or(|only| row.name.contains(only))
    };
    let rows: Vec<&Row> = ROWS.iter().filter(wanted).collect();
    let before = match &args.before {
        Some(binary) => count(&args, &place, &stubs, ("before", binary), &rows, &list).await?,
        None => Vec::new(),
    };
    let after = count(
        &args,
        &place,
        &stubs,
        ("after", &args.gateway),
        &rows,
        &list,
    )
    .await?;
    let mut passed = true;
    for (number, (row, after)) in rows.iter().zip(&after).enumerate() {
        let verdict = match before.get(number) {
            Some(before) => {
                let ratio = after / before;
                let is_kept = ratio <= 1.0 + args.limit / 100.0;
                passed &= is_kept;
                let verdict = if is_kept { "" } else { "  OVER THE LIMIT" };
                format!("  before {before:>9.0}  x {ratio:.3}{verdict}")
            }
            None => String::new(),
        };
        writeln!(
            std::io::stdout(),
            "{:<50} instructions {after:>9.0}{verdict}",
            row.name
        )?;
    }
    drop(stubs);
    place.clean()?;
    Ok(passed)
}

/// Instructions per reply of each row, in a gateway with one worker thread.
async fn count(
    args: &InstructionsArgs,
    place: &Place,
    stubs: &Stubs,
    (name, binary): (&str, &Path),
    rows: &[&Row],
    list: &str,
) -> anyhow::Result<Vec<f64>> {
    let mut plan = stubs.plan(&args.stub, binary, name, 1, None)?;
    let out = place.dir.join(format!("{name}.callgrind"));
    plan.under = vec![
        "valgrind".to_owned(),
        "--tool=callgrind".to_owned(),
        "--instr-atstart=no".to_owned(),
        format!("--callgrind-out-file={}", out.display()),
    ];
    let gateway = Gateway::start(place, &plan)?;
    let lane = Lane::through("instructions", place, &gateway)?;
    let mut counts = Vec::new();
    for (number, row) in rows.iter().enumerate() {
        let plan = lanes::plan_of(std::time::Duration::ZERO, row, &lane, stubs, &list.into());
        let mut crowd = Crowd::open(&plan).await?;
        crowd.step(WARM).await?;
        control(&gateway.process, &["-i", "on"])?;
        control(&gateway.process, &["-z"])?;
        let each = args.replies.div_ceil(crowd.len().max(1));
        let replies = crowd.step(each).await?;
        control(&gateway.process, &["--dump"])?;
        control(&gateway.process, &["-i", "off"])?;
        crowd.close().await?;
        // Dumps are numbered from one on.
        let file = PathBuf::from(format!("{}.{}", out.display(), number + 1));
        #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
        counts.push(total(&file)? as f64 / replies as f64);
        if let Some(keep) = &args.keep {
            std::fs::create_dir_all(keep)?;
            std::fs::copy(&file, keep.join(format!("{name}.{number}.callgrind")))?;
        }
    }
    Ok(counts)
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
