//! Upstreams that are child processes, one JSON-RPC message per line (SPEC §4, DESIGN §6).
//!
//! Owns starting, watching and ending them: [`StdioRuntime::open`] gives a [`StdioConnection`] to
//! write to and [`Lines`] to read from; everything a child needs happens in one background task
//! per child, its keeper. Knows nothing of MCP beyond "a message begins with a brace".
//!
//! Whatever happens, no process stays behind: each child leads a process group that is ended as a
//! whole, a guardian process ends the groups when the gateway itself is killed, and orphans are
//! adopted and reaped.

mod assembly;
mod backoff;
mod child;
mod child_lines;
mod environment;
mod exec_child;
mod framing;
mod full;
mod guardian;
mod homes;
mod launcher;
mod missing;
mod outbox;
mod pool;
mod process;
mod reap;
mod runtime;
mod starts;
mod state;
mod stderr;
mod stop_reason;
mod strays;

pub use child::{BusyGuard, HoldGuard, StdioConnection, UnusedGuard};
pub use environment::Host;
pub use exec_child::{SUBCOMMAND as EXEC_CHILD, exec_child, resource};
pub use framing::Lines;
pub use full::{Cap, Full};
pub use guardian::{SUBCOMMAND as GUARDIAN, guardian};
pub use missing::{Missing, missing};
pub use outbox::SendError;
pub use pool::Patience;
pub use runtime::{Counts, OpenError, StdioRuntime};
