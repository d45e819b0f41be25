//! Calls that go on after their first answer. Two designs know them: tasks of 2025-11-25, which the
//! caller asks for (*legacy* ones), and those of the extension, which the server begins.
//!
//! `handle` are the ids that clients see, `hold` runs a task for a client that knows none. Between a
//! client and an upstream of different designs nothing else is carried.
//! Spec: SPEC §11; BRIDGING §3.8.

mod declare;
mod handle;
mod hold;
mod inputs;
mod pace;
mod state;
mod wait;
mod watched;

pub(super) use handle::{is_of_tasks, is_task};
