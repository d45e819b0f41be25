//! Where a session is counted: those of clients, and those that the gateway keeps for modern clients, who know
//! of none, are different instruments.

use crate::session::Session;
use crate::telemetry::metrics::{COUNTERS, CounterHandle, GAUGES, GaugeHandle};

/// The instruments of one kind of session.
#[derive(Debug)]
pub(super) struct Counted {
    pub(super) open: &'static GaugeHandle,
    pub(super) evicted: &'static CounterHandle,
    pub(super) expired: &'static CounterHandle,
}

/// The instruments that count `session`.
pub(super) fn counted(session: &Session) -> Counted {
    if session.visit().is_some() {
        Counted {
            open: &GAUGES.implicit_sessions_open,
            evicted: &COUNTERS.implicit_sessions_evicted,
            expired: &COUNTERS.implicit_sessions_expired,
        }
    } else {
        Counted {
            open: &GAUGES.sessions_open,
            evicted: &COUNTERS.sessions_evicted,
            expired: &COUNTERS.sessions_expired,
        }
    }
}
