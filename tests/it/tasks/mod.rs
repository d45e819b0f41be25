//! Tasks of upstreams, in both designs. Spec: SPEC §11; BRIDGING §3.8.

mod asking_first;
mod bridged;
mod carried;
mod held;
pub(crate) mod hosted;
mod hosted_mishaps;
mod late;
