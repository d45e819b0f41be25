//! `kind = "user"`: an account of each caller, who agrees to it at the upstream's authorization server.

mod attacks;
mod browsers;
mod children;
mod consent;
mod killed;
mod observed;
mod refresh;
pub(super) mod server;
pub(super) mod world;
