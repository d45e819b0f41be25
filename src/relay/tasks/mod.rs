//! Tasks: calls that continue after their first answer. Two designs exist: tasks of 2025-11-25, requested by
//! the caller (*legacy*), and tasks of the extension, begun by the server.
//!
//! `handle` and `sealed` seal task ids for clients, `hold` runs a task for a client without tasks, `newer` opens the
//! modern link for that on an upstream of both eras, `bridge` shows legacy tasks as extension tasks, `carried` passes
//! legacy tasks between two sides of 2025-11-25, `mark` tags their messages, `host` runs tasks that a client of
//! 2025-11-25 requests from an upstream with the extension, `hosted` answers requests about those, `follow`
//! sends task status to subscriptions. Clients see no other tasks.
//! Spec: SPEC §11; BRIDGING §3.8.

mod bridge;
mod carried;
mod declare;
mod desk;
mod follow;
mod handle;
mod hold;
mod host;
mod hosted;
mod inputs;
mod mark;
mod newer;
mod pace;
mod sealed;
mod wait;
mod watched;

pub(super) use bridge::Bridged;
pub(super) use carried::status;
pub(super) use declare::{declaring, is_declared, would_help};
pub(super) use desk::Desks;
pub use follow::FollowedTask;
pub(super) use handle::{concerns_one, is_of_tasks};
pub(super) use hold::{as_task, unasked};
pub(super) use host::{asks_for_task, wanted};
pub(super) use hosted::OwnTask;
pub(super) use mark::{marking, renamed};
