//! Upstreams that are child processes, one JSON-RPC message per line (SPEC §4, DESIGN §6).
//!
//! Owns starting, watching and ending them: [`StdioRuntime::open`] gives a [`StdioConnection`] to
//! write to and [`StdoutReader`] to read from; everything a child needs happens in one background task
//! per child, its keeper. Knows nothing of MCP beyond "a message begins with a brace".
//!
//! Whatever happens, no process stays behind: each child leads a process group that is ended as a
//! whole, a guardian process ends the groups when the gateway itself is killed, and orphans are
//! adopted and reaped.

mod admission;
mod backoff;
mod child;
mod child_lines;
mod child_use;
mod environment;
mod exec_child;
mod full;
mod guardian;
pub mod holders;
mod home_dirs;
mod isolation;
mod keeper;
mod launcher;
mod missing;
mod open_error;
mod orphan_sweep;
mod reap;
mod spawn_plan;
mod start_limiter;
mod state;
mod state_check;
mod stderr;
mod stdin_writer;
mod stdout_reader;
mod stop_reason;
mod supervisor;

pub use admission::WaitPolicy;
pub use child::{BusyGuard, HoldGuard, StdioConnection, UnusedGuard};
pub use environment::HostEnvironment;
pub use exec_child::{SUBCOMMAND as EXEC_CHILD, exec_child, resource};
pub use full::{ChildCap, NoChildSlot};
pub use guardian::{SUBCOMMAND as GUARDIAN, guardian};
pub use isolation::{ChildIsolation, hide_memory};
pub use missing::{MissingPath, missing};
pub use open_error::OpenError;
pub use state_check::refused_state_dirs;
pub use stdin_writer::SendError;
pub use stdout_reader::{ReadRoom, StdoutReader};
pub use supervisor::{ChildCounts, StdioRuntime};
