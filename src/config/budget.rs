//! Checks that the byte budgets leave room for the largest message.

use super::report::ReadReport;
use super::types::Config;

/// One byte budget, as configured.
struct ConfiguredBudget<'a> {
    /// Paths of the keys: the share, the total, and those whose messages must fit in.
    share: &'a str,
    total: &'a str,
    messages: &'a [&'a str],
    hint: &'a str,
    per_holder: usize,
    all: usize,
    /// The largest message, bytes.
    largest: usize,
}

/// Reports byte budgets that are too small for the largest message.
pub(super) fn check(config: &Config, report: &ReadReport<'_>) {
    let limits = &config.limits;
    let of_clients = ConfiguredBudget {
        share: "limits.bytes_per_principal",
        total: "limits.bytes_total",
        messages: &["limits.body"],
        hint: "a message counts twice: its copy is sent on",
        per_holder: limits.bytes_per_principal,
        all: limits.bytes_total,
        largest: limits.body,
    };
    let of_replies = ConfiguredBudget {
        share: "limits.replies_per_principal",
        total: "limits.replies_total",
        messages: &["limits.upstream_message", "limits.sse_event"],
        hint: "a reply counts twice: it is copied",
        per_holder: limits.replies_per_principal,
        all: limits.replies_total,
        largest: limits.upstream_message.max(limits.sse_event),
    };
    check_one(&of_clients, report);
    check_one(&of_replies, report);
}

fn check_one(budget: &ConfiguredBudget<'_>, report: &ReadReport<'_>) {
    let ConfiguredBudget { share, total, .. } = *budget;
    let mut keys = budget.messages.iter().chain([&share, &total]);
    if keys.any(|key| report.is_wrong(key)) {
        return;
    }
    let messages = budget.messages.join(" and ");
    let hint = Some(budget.hint);
    let largest = budget.largest.saturating_mul(2);
    if budget.per_holder < largest {
        let what = format!("must be at least twice {messages}");
        report.error(share, what, hint);
    }
    // Beside one full share the reserve must hold one message.
    if budget.all < budget.per_holder.saturating_add(largest) {
        let what = format!("must be at least {share} and twice {messages}");
        report.error(total, what, hint);
    }
}
