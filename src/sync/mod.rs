//! Tools that synchronise tasks and threads, one of each kind. They know nothing of MCP, and each is tested by itself.

pub mod backoff;
pub mod desired;
pub mod event_number;
pub mod fair_permits;
pub mod fast_maps;
pub mod keyed_counter;
pub mod keyed_permits;
pub mod lazy_cache;
pub mod on_drop;
pub mod shared_failure;
pub mod single_flight;
pub mod wait_until;
