//! The gateway from outside: the real binary, real children, real clients.
//!
//! Each module is a topic. The shared [`harness`] starts a gateway, gives a principal a token, sends requests, and
//! cleans up.

#![expect(
    clippy::disallowed_methods,
    reason = "tests start processes and tasks, and read the clock and the environment, themselves"
)]
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stderr,
    reason = "a test that cannot go on fails loudly"
)]

mod accounts;
mod apps;
mod auth;
mod bad_input;
mod browser;
mod budget;
mod causes;
mod check;
mod check_online;
mod check_stores;
mod child_caps;
mod clients;
mod cluster;
mod completions;
mod conformance;
mod crowds;
mod descriptors;
mod detached;
mod discovery;
mod drain;
mod era_changes;
mod extensions;
mod failed_connections;
mod fair_start;
mod first_lists;
mod h2_upstream;
mod harness;
mod health;
mod held_posts;
mod hostile;
mod http_upstream;
mod icons;
mod id_scans;
mod isolation;
mod lifecycle;
mod limits;
mod lists;
mod log_level;
mod matrix;
mod merged;
mod misbehaviour;
mod modern;
mod modern_upstream;
mod names;
mod negotiation;
mod networks;
mod notices;
mod notifications;
mod oauth;
mod odd_children;
mod odd_resources;
mod old_upstream;
mod question_limits;
mod questions;
mod quiet_streams;
mod refusals;
mod renewed_sessions;
mod replicas;
mod request_ids;
mod resumption;
mod rounds;
mod schemas;
mod sessions;
mod slow_children;
mod slow_lists;
mod start;
mod status;
mod stdio;
mod stores;
mod stray_progress;
mod tasks;
mod telemetry;
mod tool_errors;
mod transport;
mod turns;
mod unannounced;
mod undeclared;
mod unsteady_upstream;
mod vault;
mod visits;
