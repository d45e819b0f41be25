//! The measured rows and their budgets.

use crate::load::Scenario;

/// One line of the report.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) scenario: Scenario,
    pub(crate) sessions: usize,
    pub(crate) over: Over,
    pub(crate) budget: Option<Budget>,
}

/// What is behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Over {
    /// A legacy upstream over HTTP.
    Http,
    /// A modern upstream over HTTP.
    Modern,
    /// A legacy upstream over HTTP that is called in the modern era; gateway only.
    Bridged,
    /// A legacy upstream as a child; gateway only.
    Stdio,
}

/// What the figure is held against.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Budget {
    /// So many times nginx.
    TimesNginx(f64),
    /// So many times the row in front of it, by its name.
    TimesRow(f64, &'static str),
    /// So many microseconds.
    Micros(f64),
}

impl Row {
    /// Whether the budget is about what `other` costs, so that both have to be measured side by side.
    pub(crate) fn is_compared_with(&self, other: &Row) -> bool {
        matches!(self.budget, Some(Budget::TimesRow(_, name)) if name == other.name)
    }
}

const fn http(name: &'static str, scenario: Scenario, sessions: usize, budget: f64) -> Row {
    Row {
        name,
        scenario,
        sessions,
        over: Over::Http,
        budget: Some(Budget::TimesNginx(budget)),
    }
}

const fn unbudgeted(row: Row) -> Row {
    Row {
        budget: None,
        ..row
    }
}

const fn stdio(name: &'static str, sessions: usize) -> Row {
    Row {
        name,
        scenario: Scenario::Call,
        sessions,
        over: Over::Stdio,
        budget: Some(Budget::Micros(50.0)),
    }
}

/// A modern call may cost no more than the legacy one with as many at once.
const fn modern(name: &'static str, sessions: usize, legacy: &'static str) -> Row {
    Row {
        name,
        scenario: Scenario::ModernCall,
        sessions,
        over: Over::Modern,
        budget: Some(Budget::TimesRow(1.0, legacy)),
    }
}

const CALL_16: &str = "call, 16 sessions";
const CALL_64: &str = "call, 64 sessions";
const BRIDGED: &str = "modern call to a legacy upstream, 16 at once";

/// All rows. A row compared with another row follows that row.
pub(crate) const ROWS: [Row; 14] = [
    unbudgeted(http("call, 1 session", Scenario::Call, 1, 2.0)),
    http(CALL_16, Scenario::Call, 16, 2.0),
    modern("modern call, 16 at once", 16, CALL_16),
    http(CALL_64, Scenario::Call, 64, 2.0),
    modern("modern call, 64 at once", 64, CALL_64),
    http("call, 256 sessions", Scenario::Call, 256, 2.0),
    unbudgeted(Row {
        over: Over::Bridged,
        ..modern(BRIDGED, 16, CALL_16)
    }),
    http("tools/list of 100, 16 sessions", Scenario::List, 16, 1.5),
    http(
        "session open and close, 16 at once",
        Scenario::OpenClose,
        16,
        3.0,
    ),
    http(
        "20 notices and a reply, 16 sessions",
        Scenario::Notices,
        16,
        1.6,
    ),
    http(
        "20 notices and a reply, 64 sessions",
        Scenario::Notices,
        64,
        1.6,
    ),
    http(
        "20 notices written apart and a reply, 16 sessions",
        Scenario::NoticesApart,
        16,
        1.6,
    ),
    stdio("stdio call, 1 session", 1),
    stdio("stdio call, 16 sessions", 16),
];
