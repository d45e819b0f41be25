//! The instruments that count a session: one set for sessions of clients, another for implicit sessions.

use crate::session::Session;
use crate::telemetry::metrics::{COUNTERS, CounterHandle, GAUGES, GaugeHandle};

/// The instruments of one kind of session.
#[derive(Debug)]
pub(super) struct SessionInstruments {
    pub(super) open: &'static GaugeHandle,
    pub(super) evicted: &'static CounterHandle,
    pub(super) expired: &'static CounterHandle,
}

/// The instruments that count `session`.
pub(super) fn counted(session: &Session) -> SessionInstruments {
    if session.implicit_session().is_some() {
        SessionInstruments {
            open: &GAUGES.implicit_sessions_open,
            evicted: &COUNTERS.implicit_sessions_evicted,
            expired: &COUNTERS.implicit_sessions_expired,
        }
    } else {
        SessionInstruments {
            open: &GAUGES.sessions_open,
            evicted: &COUNTERS.sessions_evicted,
            expired: &COUNTERS.sessions_expired,
        }
    }
}
