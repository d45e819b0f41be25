//! `fault_point`: places where a test ends the process as `kill -9` would, between two steps that must survive it.
//!
//! Only programs of tests and benchmarks have them (feature `stubs`); elsewhere [`reached`] is empty.

/// Name of the place where this process ends, in its environment.
#[cfg(feature = "stubs")]
const VARIABLE: &str = "DRAWBRIDGE_FAULT_POINT";

/// Ends the process by SIGKILL if `name` is the place in `DRAWBRIDGE_FAULT_POINT`: no destructor runs, and nothing is
/// flushed.
#[cfg(feature = "stubs")]
pub(crate) fn reached(name: &str) {
    use rustix::process::{Signal, getpid, kill_process};
    if std::env::var_os(VARIABLE).is_some_and(|wanted| wanted == name) {
        // Fails only for a process that does not exist.
        kill_process(getpid(), Signal::KILL).unwrap_or_default();
        std::process::abort();
    }
}

/// Nothing: this program has no fault points.
#[cfg(not(feature = "stubs"))]
pub(crate) fn reached(_name: &str) {}
