//! Logs, metrics and traces: their names and fields, and the code behind them.

#[cfg(test)]
pub(crate) mod captured;
pub mod chain;
mod exporter_health;
pub mod line_limit;
mod log;
pub mod metrics;
pub mod names;
pub mod record;
mod record_fields;
pub mod redact;
pub mod request_tag;
pub mod setup;
pub mod trace;
