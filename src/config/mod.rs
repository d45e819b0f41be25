//! One TOML file: its types, its reading and checking, its generated reference.

mod types;

pub use types::*;
