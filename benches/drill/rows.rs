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
    /// The same gateway with `[cluster]`: one replica, with a Redis of its own.
    Redis,
    /// Two such replicas: all calls are made at the one that does not own their sessions.
    Forwarded,
    /// Compiled without the profile, as with a compiler or for a processor that has none.
    Untuned,
}

impl Variant {
    /// Whether it has a Redis.
    pub(crate) fn is_clustered(self) -> bool {
        matches!(self, Self::Redis | Self::Forwarded)
    }
}

/// What the figure is held against.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Budget {
    /// So many times nginx.
    TimesNginx(f64),
    /// So many times the bare proxy with as many threads.
    TimesBare(f64),
    /// So many times a row in front of it, by its name.
    TimesRow(f64, &'static str),
    /// So many times the instructions of a row in front of it, by its name.
    TimesInstructions(f64, &'static str),
    /// So many microseconds.
    Micros(f64),
}

impl Row {
    /// The same of another process.
    pub(crate) fn with(self, variant: Variant) -> Self {
        Self { variant, ..self }
    }

    /// Whether the budget is about what `other` costs, so that both have to be measured side by side.
    pub(crate) fn is_compared_with(&self, other: &Row) -> bool {
        let mut budgets = self.budgets.iter();
        budgets.any(|budget| budget.other() == Some(other.name))
    }
}

/// Groups of rows that are measured side by side. A row is in the group of the earlier row that it is compared with.
pub(crate) fn groups(rows: &[Row]) -> Vec<Vec<Row>> {
    let mut groups: Vec<Vec<Row>> = Vec::new();
    for row in rows {
        let is_compared = |group: &Vec<Row>| group.iter().any(|it| row.is_compared_with(it));
        match groups.last_mut() {
            Some(group) if is_compared(group) => group.push(*row),
            _ => groups.push(vec![*row]),
        }
    }
    groups
}

impl Budget {
    pub(crate) fn limit(self) -> f64 {
        match self {
            Self::TimesNginx(limit)
            | Self::TimesBare(limit)
            | Self::TimesRow(limit, _)
            | Self::TimesInstructions(limit, _)
            | Self::Micros(limit) => limit,
        }
    }

    /// The row that the budget compares with, if any.
    pub(crate) fn other(self) -> Option<&'static str> {
        match self {
            Self::TimesRow(_, name) | Self::TimesInstructions(_, name) => Some(name),
            Self::TimesNginx(_) | Self::TimesBare(_) | Self::Micros(_) => None,
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
        over: Over::Stdio,
        ..http(name, Scenario::Call, sessions, &[Budget::Micros(50.0)])
    }
}

const fn modern(name: &'static str, sessions: usize, budgets: &'static [Budget]) -> Row {
    Row {
        over: Over::Modern,
        ..http(name, Scenario::ModernCall, sessions, budgets)
    }
}

/// A row of one replica that has a Redis.
const fn with_redis(name: &'static str, scenario: Scenario, budgets: &'static [Budget]) -> Row {
    Row {
        variant: Variant::Redis,
        ..http(name, scenario, 16, budgets)
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
pub(crate) const CALL_WITH_REDIS: &str = "call with Redis, 16 sessions";
const NOTICES_16: &str = "20 notices and a reply, 16 sessions";
const NOTICES_APART_16: &str = "20 notices written apart and a reply, 16 sessions";
const CALL_64: &str = "call, 64 sessions";
const CALL_256: &str = "call, 256 sessions";
const BRIDGED: &str = "modern call to a legacy upstream, 16 at once";

/// What a call of a session may cost.
const CALL: &[Budget] = &[Budget::TimesBare(1.6), Budget::TimesNginx(2.0)];
/// The same with an account of each caller at the upstream.
const CALL_OF_ACCOUNT: &[Budget] = &[
    Budget::TimesBare(1.6),
    Budget::TimesNginx(2.0),
    Budget::TimesInstructions(1.02, CALL_16),
];
/// The same with many sessions.
const CALL_OF_MANY: &[Budget] = &[Budget::TimesBare(1.8), Budget::TimesNginx(2.0)];
const NOTICES: &[Budget] = &[Budget::TimesNginx(1.5)];

/// All rows. A row compared with another row is in the group of that row: a modern call may cost no more than the legacy one with
/// as many at once.
pub(crate) static ROWS: [Row; 23] = [
    http("call, 1 session", Scenario::Call, 1, &[]),
    http(CALL_16, Scenario::Call, 16, CALL),
    with_redis(
        CALL_WITH_REDIS,
        Scenario::Call,
        &[Budget::TimesInstructions(1.05, CALL_16)],
    ),
    Row {
        variant: Variant::Forwarded,
        ..http(
            "call that is passed on to another replica, 16 sessions",
            Scenario::Call,
            16,
            &[
                Budget::TimesRow(2.2, CALL_WITH_REDIS),
                Budget::TimesInstructions(2.2, CALL_WITH_REDIS),
            ],
        )
    },
    modern(
        "modern call, 16 at once",
        16,
        &[Budget::TimesBare(1.6), Budget::TimesRow(1.0, CALL_16)],
    ),
    Row {
        variant: Variant::Accounts,
        ..http(CALL_WITH_ACCOUNT, Scenario::Call, 16, CALL_OF_ACCOUNT)
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
    http(NOTICES_16, Scenario::Notices, 16, NOTICES),
    with_redis(
        "20 notices and a reply with Redis, 16 sessions",
        Scenario::Notices,
        &[Budget::TimesInstructions(1.5, NOTICES_16)],
    ),
    http(
        "20 notices and a reply, 64 sessions",
        Scenario::Notices,
        64,
        NOTICES,
    ),
    http(NOTICES_APART_16, Scenario::NoticesApart, 16, NOTICES),
    with_redis(
        "20 notices written apart and a reply with Redis, 16 sessions",
        Scenario::NoticesApart,
        &[Budget::TimesInstructions(3.0, NOTICES_APART_16)],
    ),
    stdio("stdio call, 1 session", 1),
    stdio("stdio call, 16 sessions", 16),
];
