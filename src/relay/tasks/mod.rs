//! Tasks: calls that continue after their first answer. Two designs exist: tasks of 2025-11-25, requested by
//! the caller (*legacy*), and tasks of the extension, begun by the server.
//!
//! `handle` and `sealed` seal task ids for clients, `hold` runs a task for a client without tasks, `newer` opens the
//! modern link for that on an upstream of both eras, `bridge` shows legacy tasks as extension tasks, `carried` passes
//! legacy tasks between two sides of 2025-11-25, `mark` tags their messages, `host` runs tasks that a client of
//! 2025-11-25 requests from an upstream with the extension, `hosted` answers requests about those, `follow`
//! sends task status to subscriptions. Clients see no other tasks.
//! Spec: SPEC §11; BRIDGING §3.8.

mod cancel_on_drop;
mod declare;
mod extension_over_legacy;
mod extension_passthrough;
mod follow;
mod gateway_task;
mod gateway_task_requests;
mod inputs;
mod legacy_passthrough;
mod modern_fallback;
mod pending_input;
mod polling;
mod related_task;
mod run_to_completion;
mod sealed;
mod wait;

pub(super) use declare::{declaring, is_declared, would_help};
pub(super) use extension_over_legacy::BridgedRequest;
pub(super) use extension_passthrough::{concerns_one, is_of_tasks};
pub use follow::FollowedTask;
pub(super) use gateway_task::{asks_for_task, wanted};
pub(super) use gateway_task_requests::OwnTask;
pub(super) use legacy_passthrough::status;
pub(super) use pending_input::PendingInputs;
pub(super) use related_task::{marking, renamed};
pub(super) use run_to_completion::{as_task, unasked};
