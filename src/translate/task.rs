//! Tasks in the two designs: of 2025-11-25, and of the extension.

pub(crate) mod convert;
pub(crate) mod state;
