//! `MessageHeaders`: what the headers of a request say of its message.

use std::sync::Arc;

use http::{HeaderName, HeaderValue};

use crate::call::CallerAccess;

/// Headers of one message, besides the fixed headers. A `Vec`, as the list is moved at each of many steps and a
/// `HeaderMap` is larger.
#[derive(Debug, Default, Clone)]
pub struct MessageHeaders {
    pub(super) all: Vec<(HeaderName, HeaderValue)>,
    /// The caller that makes the call of the message, where callers' tokens are exchanged.
    pub(super) caller: Option<Arc<CallerAccess>>,
}

impl MessageHeaders {
    /// Headers of most messages, at most.
    const USUAL: usize = 8;

    /// These and `value` under `name`, if there is one. Names that repeat stay repeated.
    #[must_use]
    pub fn with(mut self, name: HeaderName, value: Option<HeaderValue>) -> Self {
        if let Some(value) = value {
            if self.all.is_empty() {
                self.all.reserve(Self::USUAL);
            }
            self.all.push((name, value));
        }
        self
    }

    /// These headers and `more`.
    #[must_use]
    pub fn and(mut self, more: impl IntoIterator<Item = (HeaderName, HeaderValue)>) -> Self {
        self.all.extend(more);
        self
    }

    /// These headers, of a message that belongs to a call of `caller`.
    #[must_use]
    pub fn called_by(self, caller: Option<&Arc<CallerAccess>>) -> Self {
        Self {
            caller: caller.cloned(),
            ..self
        }
    }
}
