//! Upstreams with an account: the tokens that the gateway gets for them. Spec: SPEC §9, §10.

mod client_credentials;
mod discovery;
mod real_server;
mod refusals;
mod world;
