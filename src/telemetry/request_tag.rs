//! The id of the HTTP request, or message of a WebSocket, that is being served: callers quote it, and what the
//! gateway writes about the request carries it.
//!
//! The id is task-local to the task that serves the request, so that functions in between need no
//! parameter. Work spawned on another task carries the id along by [`keep`].

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{HeaderMap, HeaderName, HeaderValue};
use pin_project_lite::pin_project;
use tokio::task_local;

/// The header of requests and answers.
pub const HEADER: HeaderName = HeaderName::from_static("x-request-id");

/// The longest id that is taken over, in bytes.
const MOST: usize = 64;
/// Hexadecimal digits of an id of our own.
const OWN: usize = 16;

task_local! {
    static CURRENT: RequestTag;
}

/// An id of 1 to 64 letters, digits, `.`, `_` and `-`. Clones share the text.
#[derive(Clone, PartialEq, Eq)]
pub struct RequestTag(Arc<str>);

impl RequestTag {
    /// A random one.
    #[must_use]
    pub fn random() -> Self {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut rest = rand::random::<u64>();
        let mut text = [b'0'; OWN];
        for place in &mut text {
            let digit = usize::try_from(rest & 0xf).unwrap_or_default();
            *place = DIGITS.get(digit).copied().unwrap_or(b'0');
            rest >>= 4;
        }
        Self(std::str::from_utf8(&text).unwrap_or_default().into())
    }

    /// That of a request with these headers, whose sender `is_trusted` to choose it; a random one where the
    /// sender is not, or chose none that is well-formed.
    #[must_use]
    pub fn of_request(is_trusted: impl FnOnce() -> bool, headers: &HeaderMap) -> Self {
        let mut lines = headers.get_all(HEADER).iter();
        match (lines.next(), lines.next()) {
            (Some(line), None) if is_trusted() => {
                Self::read(line.as_bytes()).unwrap_or_else(Self::random)
            }
            _ => Self::random(),
        }
    }

    fn read(sent: &[u8]) -> Option<Self> {
        let fits = |byte: &u8| byte.is_ascii_alphanumeric() || b"._-".contains(byte);
        if sent.is_empty() || sent.len() > MOST || !sent.iter().all(fits) {
            return None;
        }
        Some(Self(std::str::from_utf8(sent).ok()?.into()))
    }

    /// The id as text, without characters that need escaping.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The value of [`HEADER`].
    #[must_use]
    pub fn header(&self) -> Option<HeaderValue> {
        HeaderValue::from_str(self.as_str()).ok()
    }

    /// Runs `work` as part of this request.
    pub fn within<T>(&self, work: impl FnOnce() -> T) -> T {
        CURRENT.sync_scope(self.clone(), work)
    }
}

impl fmt::Debug for RequestTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The id of the request that this task serves now.
#[must_use]
pub fn current() -> Option<RequestTag> {
    CURRENT.try_with(RequestTag::clone).ok()
}

pin_project! {
    /// Work that is part of a request wherever it is polled.
    #[derive(Debug)]
    pub struct TaggedWork<F> {
        #[pin]
        work: F,
        tag: Option<RequestTag>,
    }
}

/// `work` as part of the request that this task serves now, wherever it is polled. Large futures are boxed first:
/// this moves them.
pub fn keep<F: Future>(work: F) -> TaggedWork<F> {
    TaggedWork {
        work,
        tag: current(),
    }
}

impl<F: Future> Future for TaggedWork<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        match this.tag {
            Some(tag) => tag.within(|| this.work.poll(cx)),
            None => this.work.poll(cx),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(lines: &[&'static str]) -> HeaderMap {
        let lines = lines.iter().copied().map(HeaderValue::from_static);
        lines.map(|line| (HEADER, line)).collect()
    }

    #[test]
    fn only_a_trusted_sender_chooses_the_id() {
        let headers = sent(&["7b1c-42.A_z"]);
        assert_eq!(
            RequestTag::of_request(|| true, &headers).as_str(),
            "7b1c-42.A_z"
        );
        let own = RequestTag::of_request(|| false, &headers);
        assert_eq!(own.as_str().len(), OWN);
        assert_ne!(own, RequestTag::of_request(|| false, &headers));
    }

    #[test]
    fn ids_that_are_not_well_formed_are_replaced() {
        let long = "a".repeat(MOST + 1);
        for bad in ["", "a b", "a\"b", "a\\b", "ä", "a=b", &long] {
            assert_eq!(RequestTag::read(bad.as_bytes()), None, "{bad}");
        }
        let longest = "a".repeat(MOST);
        let read = RequestTag::read(longest.as_bytes()).unwrap();
        assert_eq!(read.as_str(), longest);
        let two = RequestTag::of_request(|| true, &sent(&["one", "two"]));
        assert_eq!(two.as_str().len(), OWN);
    }

    #[tokio::test]
    async fn work_elsewhere_keeps_its_id() {
        assert_eq!(current(), None);
        let tag = RequestTag::random();
        let kept = tag.within(|| {
            assert_eq!(current().as_ref(), Some(&tag));
            keep(async { current() })
        });
        assert_eq!(kept.await, Some(tag));
        assert_eq!(keep(async { current() }).await, None);
    }
}
