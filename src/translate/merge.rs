//! Several upstreams shown as one: the answer to `initialize`, and lists. Spec: BRIDGING §5.
//!
//! Pure: answers of upstreams in, the client's answer out.

pub mod capabilities;
mod discover;
mod gateway_info;
mod initialize;
mod instructions;
mod list;
mod missing;

pub(crate) use discover::{
    WHOLE_MS as DISCOVERED_MS, absent as discover_absent, merged as discover_merged,
    pure as discover_pure,
};
pub(crate) use gateway_info::GatewayInfo;
pub(crate) use initialize::{merged, pure};
pub use list::{ListMerger, MergedList};
pub(crate) use missing::{MergedMember, MissingReason, codes as missing_codes};
