//! `MessageHeaders`: what the headers of a request say of its message.

use http::{HeaderName, HeaderValue};

/// Headers of one message, besides the fixed headers. A `Vec`, as the list is moved at each of many steps and a
/// `HeaderMap` is larger.
#[derive(Debug, Default, Clone)]
pub struct MessageHeaders(Vec<(HeaderName, HeaderValue)>);

impl MessageHeaders {
    /// Headers of most messages, at most.
    const USUAL: usize = 8;

    /// These and `value` under `name`, if there is one. Names that repeat stay repeated.
    #[must_use]
    pub fn with(mut self, name: HeaderName, value: Option<HeaderValue>) -> Self {
        if let Some(value) = value {
            if self.0.is_empty() {
                self.0.reserve(Self::USUAL);
            }
            self.0.push((name, value));
        }
        self
    }

    /// These headers and `more`.
    #[must_use]
    pub fn and(mut self, more: impl IntoIterator<Item = (HeaderName, HeaderValue)>) -> Self {
        self.0.extend(more);
        self
    }
}

impl IntoIterator for MessageHeaders {
    type Item = (HeaderName, HeaderValue);
    type IntoIter = std::vec::IntoIter<Self::Item>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}
