//! How the process runs: background tasks and the two steps of stopping, one runtime per core, the filter for
//! wake-ups between them, and how much one task reads at a time. Knows nothing of MCP. Spec: DESIGN §12.

pub mod lifecycle;
pub mod read_quantum;
pub mod wake;
pub mod workers;
