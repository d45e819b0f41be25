//! Where things are kept, behind traits: each with one contract that every backend must pass.

pub mod events;
pub mod lists;
