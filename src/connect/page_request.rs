//! `PageRequest`: the parts of an HTTP request that the connect pages read.

use std::fmt;
use std::sync::Arc;

use http::{HeaderMap, Method};

/// A request for a page.
pub struct PageRequest<'a> {
    /// The method.
    pub method: &'a Method,
    /// The query.
    pub query: Option<&'a str>,
    /// The headers.
    pub headers: &'a HeaderMap,
    /// The body: `application/x-www-form-urlencoded`.
    pub form: &'a [u8],
    /// The upstream of the page; `None` for the list of accounts.
    pub upstream: Option<&'a Arc<str>>,
}

impl fmt::Debug for PageRequest<'_> {
    /// Shows neither cookies nor form fields.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PageRequest")
            .field("method", &self.method)
            .field("upstream", &self.upstream)
            .finish_non_exhaustive()
    }
}
