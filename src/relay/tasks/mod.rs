//! Calls that go on after their first answer. Two designs know them: tasks of 2025-11-25, which the
//! caller asks for (*legacy* ones), and those of the extension, which the server begins.
//!
//! `handle` are the ids that clients see, `hold` runs a task for a client that knows none, `newer` is
//! where an upstream of both eras runs it, `bridge` shows legacy tasks as those of the extension,
//! `carried` passes them between two sides of 2025-11-25, `mark` says what belongs to them, `host` runs
//! those that a client of 2025-11-25 asks for where its upstream has the extension, `hosted` answers for
//! them, `follow` tells subscriptions how tasks stand. Clients are told of no others.
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
mod shape;
mod state;
mod wait;
mod watched;

pub(super) use bridge::Bridged;
pub(super) use carried::status;
pub(super) use desk::Desks;
pub use follow::FollowedTask;
pub(super) use handle::{concerns_one, is_of_tasks};
pub(super) use host::asks_for_task;
pub(super) use hosted::OwnTask;
pub(super) use mark::{marking, renamed};
