//! `[limits]`, `[sessions]` and `[lists]`.

use rstest::rstest;

use super::{OPEN, assert_refused};

// Columns: lines added to a valid file, the place, the cause, the remedy.
#[rstest]
#[case::small_share(
    "[limits]\nbytes_per_principal = \"7MiB\"",
    "6:23: limits.bytes_per_principal: ",
    "must be at least twice limits.body",
    "a message counts twice: its copy is sent on"
)]
#[case::small_budget(
    "[limits]\nbytes_total = \"130MiB\"",
    "6:15: limits.bytes_total: ",
    "must be at least limits.bytes_per_principal and twice",
    "a message counts twice: its copy is sent on"
)]
#[case::small_share_of_replies(
    "[limits]\nreplies_per_principal = \"31MiB\"",
    "6:25: limits.replies_per_principal: ",
    "must be at least twice limits.upstream_message and limits.sse_event",
    "a reply counts twice: it is copied"
)]
#[case::small_budget_of_replies(
    "[limits]\nreplies_total = \"150MiB\"",
    "6:17: limits.replies_total: ",
    "must be at least limits.replies_per_principal and twice limits.upstream_message",
    "a reply counts twice: it is copied"
)]
#[case::wrong_table(
    "[server.sse]\n[stdio]\nidle = 5\n[events]\n[limits.rate]",
    "9:9: limits.rate: ",
    "expected rate in quotes, found a table",
    "as in \"100/s\""
)]
#[case::too_deep(
    "[limits]\njson_depth = 2000",
    "6:14: limits.json_depth: ",
    "must be a whole number",
    "from 1 to 1024"
)]
#[case::size_in_decimal_units(
    "[limits]\nbody = \"4MB\"",
    "6:8: limits.body: ",
    "\"4MB\"",
    "such as \"4MiB\""
)]
#[case::rate_without_a_period(
    "[limits]\nrate = \"100\"",
    "6:8: limits.rate: ",
    "\"100\"",
    "such as \"100/s\""
)]
#[case::rate_of_nothing(
    "[limits]\nrate = \"0/s\"",
    "6:8: limits.rate: ",
    "\"0/s\"",
    "must be more than zero"
)]
#[case::spelt_as_elsewhere(
    "[sessions]\nidle_timeout = \"1m\"",
    "6:1: sessions.idle_timeout: ",
    "unknown key",
    "known here: idle,"
)]
#[case::bare_duration(
    "[sessions]\nidle = 10",
    "6:8: sessions.idle: ",
    "expected duration in quotes, found a whole",
    "with its unit, as in \"10s\""
)]
#[case::too_many(
    "[sessions]\nmax_detached = 9223372036854775807",
    "6:16: sessions.max_detached: ",
    "must be a whole number",
    "from 1 to 100000000"
)]
#[case::duration_over_a_year(
    "[sessions]\nabsolute = \"400d\"",
    "6:12: sessions.absolute: ",
    "longer than a year",
    "which is the longest time"
)]
#[case::of_another_table(
    "[lists]\nrate = \"1/s\"",
    "6:1: lists.rate: ",
    "unknown key",
    "(`rate` is a key of [limits])"
)]
fn a_mistake_is_refused(
    #[case] lines: &str,
    #[case] place: &str,
    #[case] cause: &str,
    #[case] remedy: &str,
) {
    assert_refused(&format!("{OPEN}{lines}\n"), place, cause, remedy);
}
