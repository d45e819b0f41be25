//! How the process runs: background tasks and the two steps of stopping, one runtime per core, the filter for
//! wake-ups between them, one clock read for each poll, how much one task reads at a time, and how much of a message, the
//! adapter of streams that are watched, places where tests kill the process. Knows nothing of MCP. Spec: DESIGN §12.

pub(crate) mod fault_point;
pub mod lifecycle;
pub mod observed_stream;
pub mod poll_time;
pub mod read_meter;
pub mod read_quantum;
pub mod wake;
pub mod workers;
