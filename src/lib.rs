//! Drawbridge: a remote MCP gateway.
//!
//! One HTTP service in front of many MCP servers. A request flows down one spine and its answer
//! flows back as frames; `docs/architecture.md` has the picture. Modules, lowest first; each may
//! use only what stands above it in this list (checked by `tests/layering.rs`):
//!
//! | layer | modules |
//! | --- | --- |
//! | 1 | [`secret`] [`clock`] [`config`] [`protocol`] [`telemetry`] [`lifecycle`]: shapes, bytes, time, names |
//! | 2 | [`fault`] [`seal`] [`egress`] [`endpoint`]: failures, handles, address rules, views |
//! | 3 | [`call`]: one request in flight and the two link traits |
//! | 4 | [`store`] [`audit`]: where things are kept |
//! | 5 | [`auth`] [`session`] [`policy`] [`upstream`]: who, which, may, where to |
//! | 6 | [`relay`]: the spine |
//! | 7 | [`downstream`]: towards MCP clients |
//! | 8 | [`app`], [`cli`]: composition |

pub mod call;
pub mod clock;
pub mod config;
pub mod downstream;
pub mod endpoint;
pub mod fault;
pub mod lifecycle;
pub mod protocol;
pub mod secret;
pub mod telemetry;
