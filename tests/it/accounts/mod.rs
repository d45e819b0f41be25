//! Upstreams with an account, and the tokens of the gateway for them. Spec: SPEC §9, §10.

mod assertions;
mod attacks;
mod children;
mod client_credentials;
mod discovery;
mod draining_children;
mod exchange_end;
mod exchange_failures;
mod health;
mod id_jag;
mod login;
mod missing_account;
mod observed_children;
pub(crate) mod personal;
mod real_server;
mod refusals;
mod shared_links;
mod spying_children;
mod started_children;
mod token_exchange;
mod user;
mod user_key;
mod watch;
pub(crate) mod world;
