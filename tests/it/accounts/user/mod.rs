//! `kind = "user"`: an account of each caller, who agrees to it at the upstream's authorization server.

mod attacks;
mod children;
mod consent;
mod observed;
mod refresh;
mod server;
mod world;
