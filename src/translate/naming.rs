//! Names and URIs on merged endpoints, both directions, without a table. Spec: BRIDGING §4.1.
//!
//! Each shown name contains its upstream. Upstream names contain no `_`, `+` or `:`, so the first separator
//! is always the gateway's and no upstream can impersonate another. Only shortened names, bare names and
//! `http` URLs need an [`NameIndex`] of the listed items.

mod index;
mod text;
mod uri;

use std::borrow::Cow;
use std::sync::Arc;

use aws_lc_rs::digest::{SHA256, digest};

pub use index::{FoundName, NameIndex};
pub use text::{clean, looks_like};

use text::is_hidden;

/// Between the upstream and the name.
const SEPARATOR: &str = "__";
/// Characters of the longest name shown: what hosts and model providers accept (SPEC C-93).
const MAX_NAME: usize = 64;
/// Hex digits that stand for a name that cannot be shown as it is.
const DIGEST: usize = 8;

/// One upstream's mark on names and URIs.
#[derive(Debug, Clone)]
pub struct NamePrefix {
    upstream: Arc<str>,
    name: String,
    uri: String,
    segment: String,
}

/// The meaning of a name or URI from a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResolvedName<'a> {
    /// It names its upstream.
    Exact {
        /// The upstream.
        upstream: Arc<str>,
        /// The name or URI in the upstream's spelling.
        original: Cow<'a, str>,
    },
    /// It may be known from a list: a shortened name, a bare name, an unmapped URI.
    NeedsIndex,
    /// It has no meaning.
    Unknown,
}

impl ResolvedName<'_> {
    /// The upstream that the name or URI alone identifies, without a list.
    #[must_use]
    pub fn upstream(self) -> Option<Arc<str>> {
        match self {
            Self::Exact { upstream, .. } => Some(upstream),
            Self::NeedsIndex | Self::Unknown => None,
        }
    }
}

impl NamePrefix {
    /// The mark of `upstream`, a configured name.
    #[must_use]
    pub fn new(upstream: Arc<str>) -> Self {
        Self {
            name: format!("{upstream}{SEPARATOR}"),
            uri: format!("{upstream}+"),
            segment: format!("{upstream}/"),
            upstream,
        }
    }

    /// The upstream.
    #[must_use]
    pub fn upstream(&self) -> &Arc<str> {
        &self.upstream
    }

    /// A tool's or prompt's name as clients see it: at most 64 characters, none of them hidden.
    #[must_use]
    pub fn name(&self, original: &str) -> String {
        if self.is_plain(original) {
            self.name.clone() + original
        } else {
            self.shortened(original)
        }
    }

    /// The prefix to insert before an exact name, if nothing else changes.
    pub(crate) fn name_insertion(&self, original: &str) -> Option<&str> {
        self.is_plain(original).then_some(&*self.name)
    }

    /// A resource's URI, or a URI template, as clients see it.
    #[must_use]
    pub fn uri<'u>(&self, original: &'u str) -> Cow<'u, str> {
        let Some((at, mark)) = self.uri_insertion(original) else {
            return Cow::Borrowed(original);
        };
        let (head, tail) = original.split_at(at);
        Cow::Owned([head, mark, tail].concat())
    }

    /// The prefix to insert into a URI and its offset; `None` if the URI is shown unchanged.
    pub(crate) fn uri_insertion(&self, original: &str) -> Option<(usize, &str)> {
        match uri::UriForm::of(original) {
            uri::UriForm::Fetchable => None,
            uri::UriForm::Hosted { authority } => Some((authority, &self.segment)),
            uri::UriForm::Other => Some((0, &self.uri)),
        }
    }

    /// A logger as clients see it.
    #[must_use]
    pub fn logger(&self, original: &str) -> String {
        self.segment.clone() + &clean(original, usize::MAX)
    }

    /// The id of an elicitation as clients see it: an upstream can only name its own (BRIDGING §4.1).
    #[must_use]
    pub fn elicitation(&self, original: &str) -> String {
        self.segment.clone() + original
    }

    /// Whether prefix and name can be shown as they are, and could not be mistaken for shortened.
    fn is_plain(&self, original: &str) -> bool {
        let room = MAX_NAME.saturating_sub(self.name.len());
        // Bytes first: names are nearly always short ASCII.
        let short = original.len() < room;
        if short && original.bytes().all(|b| b.is_ascii_graphic()) {
            return true;
        }
        let length = original.chars().count();
        let ambiguous = length == room && ends_in_digest(original);
        length <= room && !ambiguous && !original.chars().any(is_hidden)
    }

    /// Exactly [`MAX_NAME`] characters: a readable head, padding, and a digest of the original.
    fn shortened(&self, original: &str) -> String {
        let room = MAX_NAME - DIGEST - 1;
        let mut out = self.name.clone();
        let mut length = out.chars().count();
        for c in original
            .chars()
            .filter(|c| !is_hidden(*c))
            .take(room.saturating_sub(length))
        {
            out.push(c);
            length += 1;
        }
        out.extend(std::iter::repeat_n('_', room.saturating_sub(length) + 1));
        let full = digest(&SHA256, original.as_bytes());
        let digits = full.as_ref().iter().flat_map(|byte| [byte >> 4, byte & 15]);
        out.extend(
            digits
                .take(DIGEST)
                .filter_map(|d| char::from_digit(d.into(), 16)),
        );
        out
    }
}

fn ends_in_digest(name: &str) -> bool {
    let hex = |b: &u8| b.is_ascii_digit() || (b'a'..=b'f').contains(b);
    let Some((head, digits)) = name.as_bytes().split_last_chunk::<DIGEST>() else {
        return false;
    };
    head.last() == Some(&b'_') && digits.iter().all(hex)
}

/// The marks of all upstreams of an endpoint, in configured order.
#[derive(Debug, Clone)]
pub struct NamePrefixes(Vec<NamePrefix>);

impl NamePrefixes {
    /// The marks of `upstreams`.
    pub fn new(upstreams: impl IntoIterator<Item = Arc<str>>) -> Self {
        Self(upstreams.into_iter().map(NamePrefix::new).collect())
    }

    /// All marks.
    pub fn iter(&self) -> impl Iterator<Item = &NamePrefix> {
        self.0.iter()
    }

    /// The mark of one upstream.
    #[must_use]
    pub fn of(&self, upstream: &str) -> Option<&NamePrefix> {
        self.0.iter().find(|prefix| *prefix.upstream == *upstream)
    }

    /// Resolves a tool's or prompt's name from a client.
    #[must_use]
    pub fn resolve_name<'a>(&self, name: &'a str) -> ResolvedName<'a> {
        if name.is_empty() || name.chars().any(is_hidden) {
            return ResolvedName::Unknown;
        }
        let Some((upstream, original)) = name.split_once(SEPARATOR) else {
            return ResolvedName::NeedsIndex;
        };
        let Some(prefix) = self.of(upstream) else {
            return ResolvedName::NeedsIndex;
        };
        if prefix.is_plain(original) {
            return exact(prefix, original.into());
        }
        // Longer than any name that the gateway lists: no upstream's bare name may stand for it.
        if name.chars().count() > MAX_NAME {
            ResolvedName::Unknown
        } else {
            ResolvedName::NeedsIndex
        }
    }

    /// Resolves a URI or a URI template from a client.
    #[must_use]
    pub fn resolve_uri<'a>(&self, uri: &'a str) -> ResolvedName<'a> {
        if uri.is_empty() || uri.chars().any(char::is_control) {
            return ResolvedName::Unknown;
        }
        if let uri::UriForm::Hosted { authority } = uri::UriForm::of(uri) {
            let (scheme, rest) = uri.split_at(authority);
            let owner = rest
                .split_once('/')
                .and_then(|(up, rest)| Some((self.of(up)?, rest)));
            return owner.map_or(ResolvedName::NeedsIndex, |(prefix, rest)| {
                exact(prefix, [scheme, rest].concat().into())
            });
        }
        let owner = uri
            .split_once('+')
            .and_then(|(up, rest)| Some((self.of(up)?, rest)));
        owner.map_or(ResolvedName::NeedsIndex, |(prefix, rest)| {
            exact(prefix, rest.into())
        })
    }
}

/// Whether clients may fetch `uri` themselves, so that the URI is shown unchanged.
#[must_use]
pub fn is_fetchable(uri: &str) -> bool {
    uri::UriForm::of(uri) == uri::UriForm::Fetchable
}

fn exact<'a>(prefix: &NamePrefix, original: Cow<'a, str>) -> ResolvedName<'a> {
    ResolvedName::Exact {
        upstream: prefix.upstream.clone(),
        original,
    }
}

#[cfg(test)]
mod tests;
