//! Towards MCP servers: links, the carriers under them, and whose traffic may share one.

mod activity;
mod carrier;
mod duplex;
mod era;
pub mod error;
mod health;
pub mod http;
pub mod isolation;
pub mod knowledge;
pub mod legacy;
mod modern;
mod shared;
pub mod stdio;

pub use isolation::{Seat, SetupError, Upstreams};

use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

/// JSON text of our own `Implementation`, declared where no single client stands behind a link.
pub const OWN_INFO: Bytes = Bytes::from_static(
    concat!(
        r#"{"name":"drawbridge","version":""#,
        env!("CARGO_PKG_VERSION"),
        "\"}"
    )
    .as_bytes(),
);

/// What a mutex holds, whatever happened to its last holder.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
