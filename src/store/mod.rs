//! Where things are kept, behind traits: each with one contract that every backend must pass.

mod calls;
pub mod events;
pub mod fenced;
pub mod lists;
pub mod notices;
mod owner_calls;
pub mod pause;
pub mod quotas;
pub mod rates;
pub mod records;
mod retries;
pub mod scripts;
