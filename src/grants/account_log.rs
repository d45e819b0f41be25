//! `AccountLog`: the log lines about one upstream's accounts, at most one a minute of each kind, and the last cause.

use std::sync::Arc;

use super::failure::TokenFailure;
use crate::call::OwnerKey;
use crate::cause::{ErrorCause, LastCause};
use crate::config::AccountKind;
use crate::telemetry::line_limit::LineLimit;

/// The last cause, and when each kind of line was last logged.
#[derive(Debug)]
pub(super) struct AccountLog {
    upstream: Arc<str>,
    kind: AccountKind,
    cause: LastCause,
    lines: LineLimit<&'static str>,
}

impl AccountLog {
    pub(super) fn new(upstream: Arc<str>, kind: AccountKind) -> Self {
        Self {
            upstream,
            kind,
            cause: LastCause::default(),
            lines: LineLimit::default(),
        }
    }

    /// Why the last token request failed, or why the upstream refused the token; `None` after the next success.
    pub(super) fn last_cause(&self) -> Option<ErrorCause> {
        self.cause.snapshot()
    }

    /// Records a token for the scopes `asked`; `granted` are the scopes that the server reports, if it does.
    pub(super) fn succeeded(&self, asked: &[String], granted: Option<&Vec<String>>) {
        if self.cause.snapshot().is_some() {
            tracing::info!(upstream = %self.upstream, "the account of an upstream can be used again");
        }
        self.cause.clear();
        if let Some(granted) = granted.filter(|granted| lacks(granted, asked))
            && self.lines.admit("scopes").is_some()
        {
            tracing::warn!(
                upstream = %self.upstream, asked = asked.join(" "), granted = granted.join(" "),
                "the authorization server grants fewer scopes than were asked for"
            );
        }
    }

    /// Records that there is no token; `owner` is the principal where the account is a principal's own.
    pub(super) fn failed(&self, failure: &TokenFailure, owner: Option<OwnerKey>) {
        let remedy = failure.remedy();
        self.cause.set(failure, Some(remedy.to_owned().into()));
        if let Some(muted) = self.lines.admit(failure.outcome) {
            let error: &(dyn std::error::Error + 'static) = failure;
            let principal = owner.map(tracing::field::display);
            tracing::warn!(
                upstream = %self.upstream, kind = self.kind.as_str(), principal, error, remedy, muted,
                "the account of an upstream cannot be used"
            );
        }
    }

    /// Records that the upstream refused a token issued by the authorization server.
    pub(super) fn refused(&self, status: u16) {
        let remedy = match status {
            403 => {
                "let the upstream allow this to the account, or write the scopes that it wants into `scopes`"
            }
            _ => {
                "look what the upstream wants a token for: `resource`, `audience` and `issuer` of \
                 [upstreams.<name>.auth] say what it is given"
            }
        };
        let text =
            format!("the upstream answers with HTTP status {status} to a token of its account");
        self.cause.set_text(&text, Some(remedy.into()));
        let what = if status == 403 { "403" } else { "401" };
        if let Some(muted) = self.lines.admit(what) {
            tracing::warn!(upstream = %self.upstream, status, remedy, muted, "an upstream refuses its account");
        }
    }
}

/// Whether `granted` lacks one of the scopes `asked`. For a server that separates scopes by commas (Slack) several may be
/// configured as one.
fn lacks(granted: &[String], asked: &[String]) -> bool {
    let has = |scope: &str| granted.iter().any(|one| one == scope);
    asked
        .iter()
        .any(|scope| !has(scope) && !scope.split(',').all(has))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::all("a b", "b a c", false)]
    #[case::one_less("a b", "a", true)]
    #[case::separated_by_commas("a,b", "a b", false)]
    #[case::comma_within("a,b", "a,b c", false)]
    #[case::one_of_them_less("a,b", "a", true)]
    fn granted_scopes_are_compared_one_by_one(
        #[case] asked: &str,
        #[case] granted: &str,
        #[case] expected: bool,
    ) {
        let [granted, asked] = [granted, asked].map(|text| {
            let words = text.split(' ').map(str::to_owned);
            words.collect::<Vec<_>>()
        });
        assert_eq!(lacks(&granted, &asked), expected);
    }
}
