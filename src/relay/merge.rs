//! Several upstreams shown as one: the answer to `initialize`, and lists. Spec: BRIDGING §5.
//!
//! Pure: what each upstream said goes in, what the client gets comes out.

pub mod capabilities;
mod discover;
mod initialize;
mod instructions;
mod list;
mod missing;
mod ourselves;

pub(super) use discover::{
    WHOLE_MS as DISCOVERED_MS, absent as discover_absent, merged as discover_merged,
    pure as discover_pure,
};
pub(super) use initialize::{merged, pure};
pub use instructions::{Instructions, Part};
pub use list::{ListMerger, Merged};
pub(super) use missing::{Known, Missing, member as missing_member};
pub(super) use ourselves::Ourselves;
