//! What operators see: names of spans, metrics and fields, and the machinery behind them.

pub mod metrics;
pub mod names;
pub mod trace;
