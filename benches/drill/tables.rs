//! The tables of the report: what each program costs, how the gateway compares, how fast it all goes.

use crate::figures::{BARE_ONE, BARE_TWO, DIRECT, Figures, NGINX, ONE, RowFigures, TWO};
use crate::rows::Budget;

const NONE: &str = "–";

/// Whether a budget is kept, in a word.
pub(crate) fn word(verdict: Option<bool>) -> &'static str {
    match verdict {
        Some(true) => "pass",
        Some(false) => "**miss**",
        None => NONE,
    }
}

/// CPU time per reply of every program, in user mode and in the kernel.
pub(crate) fn costs(figures: &Figures) -> String {
    let mut out = String::from(
        "| CPU µs per reply: all = user + kernel | nginx | bare proxy, 1 thread | gateway, 1 thread | bare proxy, 2 threads | gateway, 2 threads |\n\
         | --- | --- | --- | --- | --- | --- |\n",
    );
    for row in &figures.rows {
        let cells = [NGINX, BARE_ONE, ONE, BARE_TWO, TWO].map(|target| cost(row, target));
        out += &line(row.row.name, &cells);
    }
    out
}

/// The gateway beside nginx and the bare proxy, and its budgets.
pub(crate) fn ratios(figures: &Figures) -> String {
    let mut out = String::from(
        "| gateway, 1 / 2 threads | × bare proxy | × nginx | budget | verdict |\n\
         | --- | --- | --- | --- | --- |\n",
    );
    for row in &figures.rows {
        let budgets = row.row.budgets.iter();
        let budgets: Vec<String> = budgets.map(|budget| limit(figures, row, *budget)).collect();
        let budgets = if budgets.is_empty() {
            NONE.to_owned()
        } else {
            budgets.join(", ")
        };
        let cells = [
            [ONE, TWO].map(|it| shown(row.times_bare(it))).join(" / "),
            [ONE, TWO].map(|it| shown(row.times_nginx(it))).join(" / "),
            budgets,
            word(figures.verdict(row)).to_owned(),
        ];
        out += &line(row.row.name, &cells);
    }
    out
}

/// Throughput of every program, and latency through the gateway.
pub(crate) fn paces(figures: &Figures) -> String {
    let mut out = String::from(
        "| replies/s | direct | nginx | bare proxy, 1 / 2 threads | gateway, 1 / 2 threads | p99 ms of the gateway, 1 / 2 threads |\n\
         | --- | --- | --- | --- | --- | --- |\n",
    );
    for row in &figures.rows {
        let rate = |target| {
            let median = row.medians.get(target);
            median.map_or_else(|| NONE.to_owned(), |m| format!("{:.0}", m.per_second))
        };
        #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
        let p99 = [ONE, TWO].map(|target| {
            let median = row.medians.get(target);
            median.map_or_else(
                || NONE.to_owned(),
                |m| format!("{:.1}", m.p99_micros as f64 / 1000.0),
            )
        });
        let cells = [
            rate(DIRECT),
            rate(NGINX),
            [BARE_ONE, BARE_TWO].map(rate).join(" / "),
            [ONE, TWO].map(rate).join(" / "),
            p99.join(" / "),
        ];
        out += &line(row.row.name, &cells);
    }
    out
}

/// Instructions per reply; empty where none were counted.
pub(crate) fn instructions(figures: &Figures) -> String {
    if figures.instructions.is_empty() {
        return String::new();
    }
    let mut out = String::from(
        "| instructions per reply, 1 thread | bare proxy | gateway | × bare proxy | recorded | verdict |\n\
         | --- | --- | --- | --- | --- | --- |\n",
    );
    for (name, count) in &figures.instructions {
        let bare = figures.bare_instructions.get(name);
        let whole =
            |count: Option<&f64>| count.map_or_else(|| NONE.to_owned(), |c| format!("{c:.0}"));
        let cells = [
            whole(bare),
            whole(Some(count)),
            shown(bare.map(|bare| count / bare)),
            whole(figures.recorded.get(name)),
            word(figures.keeps_recorded(name)).to_owned(),
        ];
        out += &line(name, &cells);
    }
    out
}

/// Calls through several replicas; empty where there were none.
pub(crate) fn replicas(figures: &Figures) -> String {
    if figures.replicas.is_empty() {
        return String::new();
    }
    let mut out = String::from(
        "| call, 16 sessions, through | passed on | CPU µs per call, all replicas | × one replica | CPU µs of Redis | replies/s | p99 ms |\n\
         | --- | --- | --- | --- | --- | --- | --- |\n",
    );
    for calls in &figures.replicas {
        let name = match calls.replicas {
            1 => "1 replica".to_owned(),
            count => format!("{count} replicas"),
        };
        let micros = |cpu: Option<f64>| cpu.map_or_else(|| NONE.to_owned(), |c| format!("{c:.1}"));
        #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
        let p99 = calls.median.p99_micros as f64 / 1000.0;
        let cells = [
            format!("{:.0} %", calls.forwarded * 100.0),
            micros(calls.median.own_cpu()),
            format!("{:.2}", calls.times_one),
            micros(calls.redis_cpu()),
            format!("{:.0}", calls.median.per_second),
            format!("{p99:.1}"),
        ];
        out += &line(&name, &cells);
    }
    out
}

fn line(name: &str, cells: &[String]) -> String {
    format!("| {name} | {} |\n", cells.join(" | "))
}

fn cost(row: &RowFigures, target: &str) -> String {
    match (row.cpu(target), row.user_and_kernel(target)) {
        (Some(all), Some((user, kernel))) => format!("{all:.1} = {user:.1} + {kernel:.1}"),
        (Some(all), None) => format!("{all:.1}"),
        (None, _) => NONE.to_owned(),
    }
}

fn limit(figures: &Figures, row: &RowFigures, budget: Budget) -> String {
    match budget {
        Budget::TimesNginx(limit) => format!("≤ {limit} × nginx"),
        Budget::TimesBare(limit) => format!("≤ {limit} × bare proxy"),
        Budget::TimesRow(limit, other) => {
            let is = [ONE, TWO].map(|target| shown(figures.figure(row, budget, target)));
            format!("≤ {limit} × \"{other}\": {}", is.join(" / "))
        }
        Budget::TimesInstructions(limit, other) => {
            let is = shown(figures.figure(row, budget, ONE));
            format!("≤ {limit} × instructions of \"{other}\": {is}")
        }
        Budget::Micros(limit) => format!("≤ {limit} µs"),
    }
}

fn shown(ratio: Option<f64>) -> String {
    ratio.map_or_else(|| NONE.to_owned(), |r| format!("{r:.2}"))
}
