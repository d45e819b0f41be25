//! Whether the bounds of memory fit together.

use super::report::Report;
use super::types::Config;

/// Reports a byte budget in which the largest message has no room.
pub(super) fn check(config: &Config, report: &Report<'_>) {
    let limits = &config.limits;
    let hint = "a message counts twice: its copy is sent on";
    let largest = limits.body.saturating_mul(2);
    let keys = [
        "limits.body",
        "limits.bytes_per_principal",
        "limits.bytes_total",
    ];
    if keys.iter().any(|key| report.is_wrong(key)) {
        return;
    }
    if limits.bytes_per_principal < largest {
        let what = "must be at least twice limits.body";
        report.error("limits.bytes_per_principal", what, Some(hint));
    }
    // Beside the share there is a message in the reserve.
    if limits.bytes_total < limits.bytes_per_principal.saturating_add(largest) {
        let what = "must be at least limits.bytes_per_principal and twice limits.body";
        report.error("limits.bytes_total", what, Some(hint));
    }
}
