//! Drawbridge: a remote MCP gateway.
//!
//! One HTTP service in front of many MCP servers. A request flows down one spine and its answer
//! flows back as frames; `docs/architecture.md` has the picture. Modules, lowest first; each may
//! use only what stands above it in this list (checked by `tests/layering.rs`):
//!
//! | layer | modules |
//! | --- | --- |
//! | 1 | [`address`] [`secret`] [`clock`] [`digest`] [`protocol`] [`lock`] [`runtime`]: shapes, bytes, time, background work |
//! | 2 | [`sync`] [`config`]: tools for tasks and threads; the configuration |
//! | 3 | [`telemetry`]: logs, metrics and traces |
//! | 4 | [`fault`] [`cause`] [`seal`] [`egress`] [`endpoint`] [`ownership`] [`descriptors`] [`budget`] [`database`] [`redis_client`]: failures, causes, handles and their owners, address rules, views, limits, durable data, what replicas share |
//! | 5 | [`call`] [`status`]: one request in flight and the two link traits; the state that `/status` shows |
//! | 6 | [`translate`] [`process`] [`store`] [`audit`] [`vault`] [`consent`]: messages between revisions and between views, child processes, stores, audit records, sealed accounts, links to their pages |
//! | 7 | [`grants`]: accounts at upstreams |
//! | 8 | [`auth`] [`session`] [`policy`] [`upstream`] [`cluster`]: callers, their sessions, what they may do, MCP servers, other replicas |
//! | 9 | [`outbound`]: a session's way to its upstreams |
//! | 10 | [`catalog`] [`tasks`]: what upstreams list; calls that go on after their first answer |
//! | 11 | [`relay`] [`connect`]: the spine; the pages where persons connect accounts |
//! | 12 | [`downstream`]: towards MCP clients |
//! | 13 | [`app`]: composition |
//! | 14 | [`cli`]: the command line |

pub mod address;
pub mod app;
pub mod audit;
pub mod auth;
pub mod budget;
pub mod call;
pub mod catalog;
pub mod cause;
pub mod cli;
pub mod clock;
pub mod cluster;
pub mod config;
pub mod connect;
pub mod consent;
pub mod database;
pub mod descriptors;
pub mod digest;
pub mod downstream;
pub mod egress;
pub mod endpoint;
pub mod fault;
pub mod grants;
pub mod lock;
pub mod outbound;
pub mod ownership;
pub mod policy;
pub mod process;
pub mod protocol;
pub mod redis_client;
pub mod relay;
pub mod runtime;
pub mod seal;
pub mod secret;
pub mod session;
pub mod status;
pub mod store;
pub mod sync;
pub mod tasks;
pub mod telemetry;
pub mod translate;
pub mod upstream;
pub mod vault;
