//! What operators see: names of spans, metrics and fields, and the machinery behind them.

pub mod trace;
