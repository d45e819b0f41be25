//! The three kinds of URI that are mapped differently.

/// How a URI, or a URI template, carries its upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum UriForm {
    /// `http:` and `https:`: shown unchanged, since clients may fetch the URL directly. Spec: SPEC C-52.
    Fetchable,
    /// `ui://` and `skill://`: the upstream becomes the first segment, which keeps the scheme and
    /// every relative reference.
    Hosted {
        /// Where the part after `//` begins.
        authority: usize,
    },
    /// Anything else, templates that open with an expression included: `up+` goes in front.
    Other,
}

impl UriForm {
    pub(super) fn of(uri: &str) -> Self {
        let Some((scheme, rest)) = uri.split_once(':') else {
            return Self::Other;
        };
        let is = |name: &str| scheme.eq_ignore_ascii_case(name);
        if is("http") || is("https") {
            return Self::Fetchable;
        }
        if (is("ui") || is("skill")) && rest.starts_with("//") {
            return Self::Hosted {
                authority: scheme.len() + "://".len(),
            };
        }
        Self::Other
    }
}
