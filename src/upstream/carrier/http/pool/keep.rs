//! How long an idle connection may be used again.

use std::time::Duration;

use http::{HeaderMap, HeaderName};

/// The longest that a connection is kept where its upstream names a time.
pub(in crate::upstream::carrier::http) const LONGEST: Duration = Duration::from_secs(30);
/// How long before the end of the named time a connection is not used any more: the request has to
/// arrive before the upstream closes, and its clock began when it wrote the answer.
const MARGIN: Duration = Duration::from_secs(1);

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");

/// The rule of one upstream.
#[derive(Debug, Clone, Copy)]
pub(in crate::upstream::carrier::http) struct KeepRule {
    /// Where the upstream names no time (`pool_idle`); zero keeps no connection at all.
    pub(in crate::upstream::carrier::http) unnamed: Duration,
}

impl KeepRule {
    /// How long the connection of an answer with these headers may be idle and still be used.
    pub(super) fn of(self, headers: &HeaderMap) -> Duration {
        match named(headers) {
            Some(named) if !self.unnamed.is_zero() => {
                named.saturating_sub(MARGIN).min(LONGEST.max(self.unnamed))
            }
            _ => self.unnamed,
        }
    }
}

/// The time that an upstream names in `KeepRule-Alive: timeout=`, the shortest where there are several.
fn named(headers: &HeaderMap) -> Option<Duration> {
    let values = headers.get_all(KEEP_ALIVE);
    let parameters = values
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split([',', ';']));
    let seconds = parameters.filter_map(|parameter| {
        let (name, value) = parameter.split_once('=')?;
        let value = value.trim().trim_matches('"');
        let is_timeout = name.trim().eq_ignore_ascii_case("timeout");
        is_timeout.then(|| value.parse().ok()).flatten()
    });
    seconds.min().map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::none(&[], 4_000)]
    #[case::node(&["timeout=5"], 4_000)]
    #[case::apache(&["timeout=15, max=100"], 14_000)]
    #[case::spelt_otherwise(&["max=3, Timeout = \"7\""], 6_000)]
    #[case::short(&["timeout=1"], 0)]
    #[case::nothing(&["timeout=0"], 0)]
    #[case::long(&["timeout=3600"], 30_000)]
    #[case::endless(&["timeout=18446744073709551615"], 30_000)]
    #[case::no_number(&["timeout=soon, x"], 4_000)]
    #[case::several(&["timeout=60", "timeout=3"], 2_000)]
    fn named_times_bound_reuse(#[case] values: &[&'static str], #[case] millis: u64) {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(KEEP_ALIVE, http::HeaderValue::from_static(value));
        }
        let keep = KeepRule {
            unnamed: Duration::from_secs(4),
        };
        assert_eq!(keep.of(&headers), Duration::from_millis(millis));
        let never = KeepRule {
            unnamed: Duration::ZERO,
        };
        assert_eq!(never.of(&headers), Duration::ZERO);
    }
}
