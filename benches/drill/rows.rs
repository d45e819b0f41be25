//! The measured rows and their budgets.

use crate::load::Scenario;

/// One line of the report.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) scenario: Scenario,
    pub(crate) sessions: usize,
    pub(crate) over: Over,
    pub(crate) variant: Variant,
    /// Each has to be kept.
    pub(crate) budgets: &'static [Budget],
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

/// Which process of the gateway, and of the bare proxy, is between.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Variant {
    /// Compiled with the profile; lists are cached.
    Tuned,
    /// The same gateway, configured to cache no lists.
    Uncached,
    /// The same gateway, where each caller has an account at the upstream.
    Accounts,
    /// Compiled without the profile, as with a compiler or for a processor that has none.
    Untuned,
}

/// What the figure is held against.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Budget {
    /// So many times nginx.
    TimesNginx(f64),
    /// So many times the bare proxy with as many threads.
    TimesBare(f64),
    /// So many times the row in front of it, by its name.
    TimesRow(f64, &'static str),
    /// So many microseconds.
    Micros(f64),
}

impl Row {
    /// Whether the budget is about what `other` costs, so that both have to be measured side by side.
    pub(crate) fn is_compared_with(&self, other: &Row) -> bool {
        let names =
            |budget: &Budget| matches!(budget, Budget::TimesRow(_, name) if *name == other.name);
        self.budgets.iter().any(names)
    }
}

impl Budget {
    pub(crate) fn limit(self) -> f64 {
        match self {
            Self::TimesNginx(limit)
            | Self::TimesBare(limit)
            | Self::TimesRow(limit, _)
            | Self::Micros(limit) => limit,
        }
    }
}

const fn http(
    name: &'static str,
    scenario: Scenario,
    sessions: usize,
    budgets: &'static [Budget],
) -> Row {
    Row {
        name,
        scenario,
        sessions,
        over: Over::Http,
        variant: Variant::Tuned,
        budgets,
    }
}

const fn stdio(name: &'static str, sessions: usize) -> Row {
    Row {
        name,
        scenario: Scenario::Call,
        sessions,
        over: Over::Stdio,
        variant: Variant::Tuned,
        budgets: &[Budget::Micros(50.0)],
    }
}

const fn modern(name: &'static str, sessions: usize, budgets: &'static [Budget]) -> Row {
    Row {
        name,
        scenario: Scenario::ModernCall,
        sessions,
        over: Over::Modern,
        variant: Variant::Tuned,
        budgets,
    }
}

const fn untuned(row: Row) -> Row {
    Row {
        variant: Variant::Untuned,
        ..row
    }
}

pub(crate) const CALL_16: &str = "call, 16 sessions";
pub(crate) const CALL_WITH_ACCOUNT: &str = "call with an account, 16 sessions";
const CALL_64: &str = "call, 64 sessions";
const CALL_256: &str = "call, 256 sessions";
const BRIDGED: &str = "modern call to a legacy upstream, 16 at once";

/// What a call of a session may cost.
const CALL: &[Budget] = &[Budget::TimesBare(1.6), Budget::TimesNginx(2.0)];
/// The same with many sessions.
const CALL_OF_MANY: &[Budget] = &[Budget::TimesBare(1.8), Budget::TimesNginx(2.0)];
const NOTICES: &[Budget] = &[Budget::TimesNginx(1.5)];

/// All rows. A row compared with another row follows that row: a modern call may cost no more than the legacy one with
/// as many at once.
pub(crate) static ROWS: [Row; 19] = [
    http("call, 1 session", Scenario::Call, 1, &[]),
    http(CALL_16, Scenario::Call, 16, CALL),
    modern(
        "modern call, 16 at once",
        16,
        &[Budget::TimesBare(1.6), Budget::TimesRow(1.0, CALL_16)],
    ),
    Row {
        variant: Variant::Accounts,
        ..http(CALL_WITH_ACCOUNT, Scenario::Call, 16, CALL)
    },
    http(CALL_64, Scenario::Call, 64, CALL),
    modern(
        "modern call, 64 at once",
        64,
        &[Budget::TimesBare(1.6), Budget::TimesRow(1.0, CALL_64)],
    ),
    http(CALL_256, Scenario::Call, 256, CALL_OF_MANY),
    modern(
        "modern call, 256 at once",
        256,
        &[Budget::TimesBare(1.8), Budget::TimesRow(1.0, CALL_256)],
    ),
    Row {
        over: Over::Bridged,
        ..modern(BRIDGED, 16, &[])
    },
    untuned(http(
        "call without the profile, 16 sessions",
        Scenario::Call,
        16,
        &[],
    )),
    untuned(modern(
        "modern call without the profile, 16 at once",
        16,
        &[],
    )),
    http(
        "tools/list of 100 from the gateway's cache, 16 sessions",
        Scenario::List,
        16,
        &[Budget::TimesNginx(1.5)],
    ),
    Row {
        variant: Variant::Uncached,
        ..http(
            "tools/list of 100 fetched each time, 16 sessions",
            Scenario::List,
            16,
            &[],
        )
    },
    http(
        "session open and close, 16 at once",
        Scenario::OpenClose,
        16,
        &[Budget::TimesNginx(3.0)],
    ),
    http(
        "20 notices and a reply, 16 sessions",
        Scenario::Notices,
        16,
        NOTICES,
    ),
    http(
        "20 notices and a reply, 64 sessions",
        Scenario::Notices,
        64,
        NOTICES,
    ),
    http(
        "20 notices written apart and a reply, 16 sessions",
        Scenario::NoticesApart,
        16,
        NOTICES,
    ),
    stdio("stdio call, 1 session", 1),
    stdio("stdio call, 16 sessions", 16),
];
