//! Stdio children, driven through [`drawbridge::process`] with real scripts as children.
//!
//! The helper and the guardian are the real binary; the runtime is the test's own.

mod caps;
mod endings;
mod framing;
mod guardian;
mod isolation;
mod stderr;
mod surroundings;
mod world;
