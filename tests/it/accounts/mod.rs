//! Upstreams with an account: the tokens that the gateway gets for them. Spec: SPEC §9, §10.

mod client_credentials;
mod discovery;
mod exchange_end;
mod exchange_failures;
mod id_jag;
mod personal;
mod real_server;
mod refusals;
mod token_exchange;
mod world;
