//! The two forms of the report.

use std::fmt::Write as _;
use std::io::Write as _;

use anyhow::Context as _;
use serde_json::{Value, json};

use crate::accounts;
use crate::bench::BenchArgs;
use crate::figures::{Figures, Handshakes, ONE, RowFigures, TWO};
use crate::tables::{self, word};

/// Says on stderr how far we are.
pub(crate) fn progress(row: &RowFigures) -> anyhow::Result<()> {
    let mut line = format!("{:<38}", row.row.name);
    for (name, measured) in &row.medians {
        write!(
            line,
            " {name}: {:.1} µs {:.0}/s",
            measured.own_cpu().unwrap_or(0.0),
            measured.per_second
        )?;
        if measured.failures > 0 {
            write!(
                line,
                " FAILED {} {:?}",
                measured.failures, measured.problems
            )?;
        }
    }
    writeln!(std::io::stderr(), "{line}")?;
    Ok(())
}

/// One single figure and its budget.
struct Single {
    name: &'static str,
    value: f64,
    unit: &'static str,
    limit: Option<f64>,
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
fn singles(figures: &Figures) -> Vec<Single> {
    let mut singles = Vec::new();
    let mut add = |name, value, unit, limit| {
        singles.push(Single {
            name,
            value,
            unit,
            limit,
        });
    };
    let mib = |kib: u64| kib as f64 / 1024.0;
    if let Some(Handshakes { seen, allowed }) = figures.handshakes {
        add(
            "opened at the legacy upstream for all those modern calls",
            seen as f64,
            "sessions",
            Some(allowed as f64),
        );
    }
    if let Some(memory) = &figures.memory {
        add("resident after start", mib(memory.after_start), "MiB", None);
        add(
            "resident after the first call",
            mib(memory.after_first_call),
            "MiB",
            Some(20.0),
        );
        let own = mib(memory.own_after_first_call);
        add("anonymous after the first call", own, "MiB", None);
        add(
            "idle session with an open stream",
            memory.idle,
            "KiB",
            Some(24.0),
        );
        add(
            "the same after one call",
            memory.idle_after_call,
            "KiB",
            None,
        );
        add(
            "resident with 2,000 sessions open",
            mib(memory.crowd),
            "MiB",
            None,
        );
        add(
            "resident 60 s after 2,000 sessions ended",
            mib(memory.rested),
            "MiB",
            Some(40.0),
        );
        let own = mib(memory.own_rested);
        add(
            "anonymous 60 s after 2,000 sessions ended",
            own,
            "MiB",
            None,
        );
    }
    if let Some(millis) = figures.bare_start_millis {
        add("start to first answer, bare proxy", millis, "ms", None);
    }
    if let Some(millis) = figures.start_millis {
        let limit = figures.bare_start_millis.map(|bare| bare + 15.0);
        add("start to first answer", millis, "ms", limit);
    }
    if let Some((none, many)) = figures.account_start_millis {
        add("start to first answer, no accounts", none, "ms", None);
        let limit = none * accounts::START_LIMIT;
        add(
            "start to first answer, 10,000 accounts",
            many,
            "ms",
            Some(limit),
        );
    }
    singles
}

/// Writes both forms; true when nothing failed and no budget that counts is missed.
pub(crate) fn write(args: &BenchArgs, figures: &Figures) -> anyhow::Result<bool> {
    let singles = singles(figures);
    let measured = figures.rows.iter().flat_map(|row| row.medians.values());
    let measured = measured.chain(figures.replicas.iter().map(|calls| &calls.median));
    let failures: u64 = measured.map(|measured| measured.failures).sum();
    let rows_pass = figures
        .rows
        .iter()
        .all(|row| figures.verdict(row) != Some(false));
    let singles_pass = singles
        .iter()
        .all(|s| s.limit.is_none_or(|limit| s.value <= limit));
    let counts_pass = figures
        .instructions
        .keys()
        .all(|name| figures.keeps_recorded(name) != Some(false));
    let markdown = markdown(args, figures, &singles, failures)?;
    if let Some(file) = &args.markdown {
        std::fs::write(file, &markdown).context("cannot write the report")?;
    }
    if let Some(file) = &args.json {
        let json = serde_json::to_string_pretty(&as_json(figures, &singles))?;
        std::fs::write(file, json + "\n").context("cannot write the figures")?;
    }
    std::io::stdout().write_all(markdown.as_bytes())?;
    Ok(failures == 0 && (args.no_budgets || rows_pass && singles_pass && counts_pass))
}

fn markdown(
    args: &BenchArgs,
    figures: &Figures,
    singles: &[Single],
    failures: u64,
) -> anyhow::Result<String> {
    let mut out = String::from(INTRODUCTION);
    writeln!(
        out,
        "Measured {} at commit {} on {}.\nMedians of {} rounds of {} ms for each figure. Failed or wrong answers: {failures}.\n",
        figures.provenance.date,
        figures.provenance.commit,
        figures.provenance.machine,
        args.rounds,
        args.window
    )?;
    for table in [
        tables::costs(figures),
        tables::ratios(figures),
        tables::paces(figures),
        tables::replicas(figures),
        tables::instructions(figures),
    ] {
        if !table.is_empty() {
            writeln!(out, "{table}")?;
        }
    }
    if !singles.is_empty() {
        out.push_str("| what | figure | budget | verdict |\n| --- | --- | --- | --- |\n");
        for single in singles {
            let limit = single
                .limit
                .map_or_else(|| "–".to_owned(), |l| format!("≤ {l:.0} {}", single.unit));
            let verdict = single.limit.map(|limit| single.value <= limit);
            writeln!(
                out,
                "| {} | {:.1} {} | {limit} | {} |",
                single.name,
                single.value,
                single.unit,
                word(verdict)
            )?;
        }
    }
    Ok(out)
}

fn as_json(figures: &Figures, singles: &[Single]) -> Value {
    let rows = figures.rows.iter().map(|row| {
        let targets: serde_json::Map<String, Value> = row
            .medians
            .iter()
            .map(|(name, m)| {
                let (user, kernel) = row.user_and_kernel(name).unzip();
                let value = json!({
                    "cpu_micros": m.cpu_micros, "user_micros": user, "kernel_micros": kernel, "per_second": m.per_second, "replies": m.replies,
                    "failures": m.failures, "problems": m.problems,
                    "p50_micros": m.p50_micros, "p99_micros": m.p99_micros,
                });
                ((*name).to_owned(), value)
            })
            .collect();
        json!({
            "name": row.row.name, "sessions": row.row.sessions, "targets": targets,
            "times_bare": [row.times_bare(ONE), row.times_bare(TWO)],
            "times_nginx": [row.times_nginx(ONE), row.times_nginx(TWO)],
            "instructions": figures.instructions.get(row.row.name),
            "bare_instructions": figures.bare_instructions.get(row.row.name),
            "recorded_instructions": figures.recorded.get(row.row.name),
            "pass": figures.verdict(row),
        })
    });
    let singles = singles.iter().map(|single| {
        json!({"name": single.name, "value": single.value, "unit": single.unit,
               "limit": single.limit})
    });
    let replicas = figures.replicas.iter().map(|calls| {
        json!({
            "replicas": calls.replicas, "forwarded": calls.forwarded, "times_one": calls.times_one,
            "cpu_micros": calls.median.cpu_micros, "per_second": calls.median.per_second,
            "failures": calls.median.failures, "problems": calls.median.problems,
        })
    });
    json!({
        "date": figures.provenance.date, "commit": figures.provenance.commit, "machine": figures.provenance.machine,
        "rows": rows.collect::<Vec<_>>(), "singles": singles.collect::<Vec<_>>(),
        "replicas": replicas.collect::<Vec<_>>(),
    })
}

const INTRODUCTION: &str = "# Benchmarks

Written by `make bench`; do not edit. The same load goes straight to a small stub upstream, through
nginx (Debian's, one worker, plain reverse proxy, no access log, kept-alive upstream connections), through a bare hyper
proxy and through the gateway, each of both with one and with two worker threads, in alternating turns of one run.
The gateway verifies a JWT per request, decides by policy, counts metrics, exports sampled traces and writes
its access and audit log to standard output.
The bare proxy (`benches/bare`) sends every request on as it is, with hyper's connection types and nothing else, and with
the gateway's threads, allocator, compiler flags and profile: what the gateway costs beyond it is its own work. In the two
rows without the profile both are compiled as with a compiler, or for a processor, that has none (`make untuned`).
Figures are microseconds of CPU time of the process itself (`/proc/<pid>/task/*/schedstat`) per verified reply:
every reply's id and content is checked. How much of it is the program's own code, and how much the kernel's work for it,
the kernel's clock tells, which looks 100 times a second (`/proc/<pid>/stat`): good to a few percent over all turns.
Whatever is held against each other is measured in turn, in ten short turns a
round (children, and 256 sessions, in one), and a ratio is the median of the ratios of all turns. Compare ratios, not
absolute times: they travel between machines.
Callers describe themselves in 32 ways, in turn; a quarter of them send a `traceparent` in the `_meta` of each request,
another quarter a progress token. One list row is answered from the gateway's cache, the other by a gateway that asks the
upstream each time (`lists.fresh = \"0s\"`); nginx and the bare proxy ask it in both.
Instructions are those of user mode, counted by callgrind where valgrind is installed; they repeat within 2 % on a busy
machine. A row fails where the gateway takes over 3 % more than `benches/instructions.toml` records, as in `make instructions`.
In the row with an account each caller has an account at the upstream, whose token is sent with the call. The start with 10,000
accounts is held against the start of the same gateway with an empty database. A start within some 25 ms of the end of a killed
gateway takes up to that much longer: it waits until that gateway's guardian has looked for left children.
In the rows with Redis the gateway is a replica (`[cluster]`) with a Redis of its own (Debian's, not counted): events of streams
get their ids from it, JSON calls do not wait for it. In the row that is passed on all calls reach a second replica, which
forwards them to the owner of the session; the cost is that of both. In the table of one, two and three replicas each gets an equal
share of all requests, and owns an equal share of the sessions; the share that was passed on is counted by the replicas.
Modern calls are of 2026-07-28, without sessions, to a stub that speaks that revision. Those to the legacy stub must
not open a session each: one for every caller and gateway is enough, and the stub counts them.
Resident memory has pages of the program and of libraries too, which the kernel maps as far as they are in its cache: it differs
between machines. Anonymous memory is what the gateway has allocated.

";
