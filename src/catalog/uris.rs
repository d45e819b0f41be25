//! URIs that a client asks for: what is none is refused, unless the upstream itself names its resources so.
//! Spec: SPEC C-53; RFC 3986 §3.1.

use std::borrow::Cow;

use crate::call::Call;
use crate::fault::Fault;
use crate::outbound::invalid;
use crate::protocol::methods::MethodRow;

/// Whether `text` begins with a scheme and holds no control character. Blanks inside are let through, as
/// many servers list files with blanks in their names.
pub(crate) fn is_uri(text: &str) -> bool {
    let Some((scheme, _)) = text.split_once(':') else {
        return false;
    };
    let begins = scheme.starts_with(|c: char| c.is_ascii_alphabetic());
    let is_scheme = |b: u8| b.is_ascii_alphanumeric() || b"+-.".contains(&b);
    begins && scheme.bytes().all(is_scheme) && !text.chars().any(char::is_control)
}

/// The refusal of what is no URI.
pub(crate) fn malformed() -> Fault {
    invalid("params.uri is no URI: it has to begin with a scheme, as file:///a does")
}

/// The `uri` parameter of `resources/read`, if it is not a valid URI.
pub(crate) fn odd<'a>(call: &'a Call, known: Option<&MethodRow>) -> Option<Cow<'a, str>> {
    if known.is_none_or(|known| known.name != "resources/read") {
        return None;
    }
    let uri = call.message.param_str("uri");
    uri.filter(|uri| !is_uri(uri))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    // SPEC C-53.
    #[rstest]
    #[case("file:///my docs/a.txt", true)]
    #[case("x-vendor+v1.2:opaque", true)]
    #[case("C:\\notes\\a", true)]
    #[case("memo://", true)]
    #[case("a:", true)]
    #[case("not a uri", false)]
    #[case("", false)]
    #[case(" ", false)]
    #[case("/a/b", false)]
    #[case(" file:///a", false)]
    #[case("1a:b", false)]
    #[case(":b", false)]
    #[case("file:///a\nb", false)]
    fn uri_begins_with_a_scheme(#[case] text: &str, #[case] expected: bool) {
        assert_eq!(is_uri(text), expected);
    }
}
