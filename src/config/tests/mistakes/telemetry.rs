//! `[telemetry]`.

use rstest::rstest;

use super::{OPEN, assert_refused};

// Columns: lines added to a valid file, the place, the cause, the remedy.
#[rstest]
#[case::log_level(
    "[telemetry]\nlog_level = \"loud\"",
    "6:13: telemetry.log_level: ",
    "\"loud\": expected levels",
    "each one of off, error, warn, info, debug, trace"
)]
#[case::part_of_a_log_level(
    "[telemetry]\nlog_level = \"info,drawbridge::upstraem=debug\"",
    "6:13: telemetry.log_level: ",
    "has no part `upstraem`",
    "did you mean `drawbridge::upstream`?"
)]
#[case::one_signal(
    "[telemetry]\notlp_endpoint = \"http://c:4318/v1/traces\"",
    "6:17: telemetry.otlp_endpoint: ",
    "collector's base URL",
    "for example \"http://collector:4318\""
)]
#[case::share_in_percent(
    "[telemetry]\nsample_ratio = 5",
    "6:16: telemetry.sample_ratio: ",
    "expected a number from 0 to 1",
    "0.01 is one of a hundred"
)]
#[case::log_format(
    "[telemetry]\nlog_format = \"xml\"",
    "6:14: telemetry.log_format: ",
    "\"xml\"",
    "not one of json, text"
)]
fn a_mistake_is_refused(
    #[case] lines: &str,
    #[case] place: &str,
    #[case] cause: &str,
    #[case] remedy: &str,
) {
    assert_refused(&format!("{OPEN}{lines}\n"), place, cause, remedy);
}
