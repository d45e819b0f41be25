//! Links: one logical connection to an upstream. `legacy` and `modern` speak one era each, `negotiated` finds out
//! which, `shared` puts several sessions on one link. The other files are what two of these need.

mod abandoned_calls;
mod cancellation;
pub mod legacy;
pub(super) mod modern;
pub(super) mod negotiated;
mod observe;
mod session_state;
pub(super) mod shared;
