//! Aggregates the turns of each row and compares the figures with the budget.

use std::collections::BTreeMap;

use crate::instructions::{self, Counts};
use crate::load::Measured;
use crate::memory::Memory;
use crate::provenance::Provenance;
use crate::replica_calls::ReplicaCalls;
use crate::rows::{Budget, Row};
use crate::watch::Ticks;

pub(crate) const DIRECT: &str = "direct";
pub(crate) const NGINX: &str = "nginx";
pub(crate) const BARE_ONE: &str = "bare-1";
pub(crate) const BARE_TWO: &str = "bare-2";
pub(crate) const ONE: &str = "gateway-1";
pub(crate) const TWO: &str = "gateway-2";
/// The process that is measured.
pub(crate) const SELF: &str = "self";
/// The stub behind it.
pub(crate) const UPSTREAM: &str = "upstream";

/// The runs of one row, by target: one per turn, in order.
pub(crate) type Runs = BTreeMap<&'static str, Vec<Measured>>;

/// Everything measured.
#[derive(Debug, Default)]
pub(crate) struct Figures {
    pub(crate) provenance: Provenance,
    pub(crate) rows: Vec<RowFigures>,
    pub(crate) handshakes: Option<Handshakes>,
    pub(crate) memory: Option<Memory>,
    pub(crate) start_millis: Option<f64>,
    /// The same of a gateway with a database: without accounts, and with many.
    pub(crate) account_start_millis: Option<(f64, f64)>,
    /// The same of the bare proxy.
    pub(crate) bare_start_millis: Option<f64>,
    /// Instructions per reply with one worker thread.
    pub(crate) instructions: Counts,
    /// The same of the bare proxy.
    pub(crate) bare_instructions: Counts,
    /// Calls through one, two and three replicas; empty without Redis.
    pub(crate) replicas: Vec<ReplicaCalls>,
    /// Recorded instructions per reply: a row fails above them (`Figures::keeps_recorded`).
    pub(crate) recorded: Counts,
}

/// What modern calls cost a legacy upstream in sessions.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Handshakes {
    /// How often it was greeted.
    pub(crate) seen: u64,
    /// How often at most: once for each caller and gateway, however many calls there are.
    pub(crate) allowed: u64,
}

/// One row as measured.
#[derive(Debug)]
pub(crate) struct RowFigures {
    pub(crate) row: Row,
    runs: Runs,
    /// The middle run of each target.
    pub(crate) medians: BTreeMap<&'static str, Measured>,
}

impl RowFigures {
    pub(crate) fn new(row: Row, runs: Runs) -> Self {
        let medians = runs.iter().map(|(name, runs)| (*name, median(runs)));
        Self {
            row,
            medians: medians.collect(),
            runs,
        }
    }

    /// Median CPU time of a target, in microseconds per reply.
    pub(crate) fn cpu(&self, target: &str) -> Option<f64> {
        self.medians.get(target)?.own_cpu()
    }

    /// The same apart: in the program's own code, and in the kernel for it. The kernel's clock tells the shares, over
    /// all turns.
    pub(crate) fn user_and_kernel(&self, target: &str) -> Option<(f64, f64)> {
        let cpu = self.cpu(target)?;
        let runs = self.runs.get(target)?.iter();
        let ticks: Ticks = runs.filter_map(|run| run.ticks.get(SELF)).copied().sum();
        let user = cpu * ticks.user_share()?;
        Some((user, cpu - user))
    }

    /// How many times nginx a target costs; nothing where nginx cannot be between.
    pub(crate) fn times_nginx(&self, target: &str) -> Option<f64> {
        ratio(self.runs.get(target)?, self.runs.get(NGINX)?)
    }

    /// How many times the bare proxy with as many threads a gateway costs; nothing where that cannot be between.
    pub(crate) fn times_bare(&self, gateway: &str) -> Option<f64> {
        let bare = if gateway == TWO { BARE_TWO } else { BARE_ONE };
        ratio(self.runs.get(gateway)?, self.runs.get(bare)?)
    }
}

impl Figures {
    /// The ratio or time that a budget of the row is about, for one target.
    pub(crate) fn figure(&self, row: &RowFigures, budget: Budget, target: &str) -> Option<f64> {
        match budget {
            Budget::TimesNginx(_) => row.times_nginx(target),
            Budget::TimesBare(_) => row.times_bare(target),
            Budget::Micros(_) => row.cpu(target),
            Budget::TimesRow(_, name) => {
                let mut rows = self.rows.iter();
                let other = rows.find(|other| other.row.name == name)?;
                ratio(row.runs.get(target)?, other.runs.get(target)?)
            }
            // Instructions are counted with one worker thread.
            Budget::TimesInstructions(..) if target == ONE => {
                let (_, ratio) = instructions::ratio(&self.instructions, &row.row, budget)?;
                Some(ratio)
            }
            Budget::TimesInstructions(..) => None,
        }
    }

    /// Whether a row takes about as many instructions as are recorded of it, or fewer.
    pub(crate) fn keeps_recorded(&self, name: &str) -> Option<bool> {
        let (recorded, count) = (self.recorded.get(name)?, self.instructions.get(name)?);
        Some(instructions::is_within(
            *recorded,
            *count,
            instructions::LIMIT,
        ))
    }

    /// Whether its budgets are kept by all gateways; nothing without a budget or a figure.
    pub(crate) fn verdict(&self, row: &RowFigures) -> Option<bool> {
        let verdicts = row.row.budgets.iter().flat_map(|budget| {
            let figures = [ONE, TWO].map(|target| self.figure(row, *budget, target));
            let is_kept = |figure| figure <= budget.limit();
            figures.into_iter().flatten().map(is_kept)
        });
        verdicts.reduce(|a, b| a && b)
    }
}

/// How many times `under` costs `over`, over the turns.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ratios {
    /// A quarter of the turns is below.
    pub(crate) lower: f64,
    pub(crate) median: f64,
    /// A quarter of the turns is above.
    pub(crate) upper: f64,
}

/// The ratios of each turn: a slow one slows both. `None` without a turn that has both figures.
pub(crate) fn ratios(over: &[Measured], under: &[Measured]) -> Option<Ratios> {
    let of_turn = |(over, under): (&Measured, &Measured)| Some(over.own_cpu()? / under.own_cpu()?);
    let mut ratios: Vec<f64> = over.iter().zip(under).filter_map(of_turn).collect();
    ratios.sort_unstable_by(f64::total_cmp);
    let at = |quarter: usize| ratios.get(ratios.len() * quarter / 4).copied();
    Some(Ratios {
        lower: at(1)?,
        median: at(2)?,
        upper: at(3)?,
    })
}

pub(crate) fn median_of(mut figures: Vec<f64>) -> Option<f64> {
    figures.sort_unstable_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied()
}

fn ratio(over: &[Measured], under: &[Measured]) -> Option<f64> {
    Some(ratios(over, under)?.median)
}

/// The run with the median CPU time; replies and failures of all runs are kept.
pub(crate) fn median(runs: &[Measured]) -> Measured {
    let mut sorted: Vec<&Measured> = runs.iter().collect();
    let key = |run: &Measured| {
        run.own_cpu()
            .or_else(|| run.cpu_micros.get(UPSTREAM).copied())
            .unwrap_or(0.0)
    };
    sorted.sort_unstable_by(|a, b| key(a).total_cmp(&key(b)));
    let mut median = sorted
        .get(sorted.len() / 2)
        .map_or_else(Measured::default, |m| (*m).clone());
    median.failures = runs.iter().map(|run| run.failures).sum();
    median.replies = runs.iter().map(|run| run.replies).sum();
    median.problems = runs.iter().flat_map(|run| run.problems.clone()).collect();
    median
}

impl Measured {
    /// CPU time of the process that is measured, in microseconds per reply.
    pub(crate) fn own_cpu(&self) -> Option<f64> {
        self.cpu_micros.get(SELF).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::{CALL_16, CALL_WITH_REDIS, ROWS, groups};

    fn runs(target: &'static str, cpu: &[f64]) -> Runs {
        let run = |micros: &f64| Measured {
            cpu_micros: BTreeMap::from([(SELF.to_owned(), *micros)]),
            ..Measured::default()
        };
        Runs::from([(target, cpu.iter().map(run).collect())])
    }

    #[test]
    fn rows_are_compared_turn_by_turn() {
        let (row, other) = ROWS
            .iter()
            .find_map(|row| {
                let of_row = |budget: &&Budget| matches!(budget, Budget::TimesRow(..));
                let name = row.budgets.iter().find(of_row)?.other();
                Some((*row, *ROWS.iter().find(|other| Some(other.name) == name)?))
            })
            .unwrap();
        // The medians alone, 30 and 20, would say 1.5.
        let other = RowFigures::new(other, runs(ONE, &[10.0, 20.0, 40.0]));
        let row = RowFigures::new(row, runs(ONE, &[9.0, 30.0, 36.0]));
        let figures = Figures {
            rows: vec![other, row],
            ..Figures::default()
        };
        let [_, row] = figures.rows.as_slice() else {
            unreachable!()
        };
        let mut budgets = row.row.budgets.iter();
        let budget = budgets.find(|budget| matches!(budget, Budget::TimesRow(..)));
        let budget = *budget.unwrap();
        assert_eq!(figures.figure(row, budget, ONE), Some(0.9));
        assert_eq!(figures.verdict(row), Some(true));
    }

    #[test]
    fn row_misses_its_budget_with_too_many_instructions() {
        let row = ROWS.iter().find(|row| row.name == CALL_WITH_REDIS).unwrap();
        let verdict = |count| {
            let name = |name: &str| name.to_owned();
            let counts = [(name(CALL_16), 1000.0), (name(CALL_WITH_REDIS), count)];
            let figures = Figures {
                rows: vec![RowFigures::new(*row, runs(ONE, &[1.0]))],
                instructions: counts.into(),
                ..Figures::default()
            };
            figures.verdict(&figures.rows[0])
        };
        assert_eq!(verdict(1049.0), Some(true));
        assert_eq!(verdict(1051.0), Some(false));
    }

    #[test]
    fn row_is_measured_beside_the_row_that_it_is_compared_with() {
        for group in groups(&ROWS) {
            for row in &group {
                for name in row.budgets.iter().filter_map(|budget| budget.other()) {
                    let is_there = group.iter().any(|other| other.name == name);
                    assert!(is_there, "{}: {name}", row.name);
                }
            }
        }
    }
}
