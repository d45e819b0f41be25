//! How the process runs: background tasks and the two steps of stopping, one runtime per core, and the filter for
//! wake-ups between them. Knows nothing of MCP. Spec: DESIGN §12.

pub mod lifecycle;
pub mod wake;
pub mod workers;
