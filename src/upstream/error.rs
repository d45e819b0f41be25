//! `LinkError`: why an upstream gave no reply.

use std::borrow::Cow;
use std::time::Duration;

use super::carrier::http::exchange_error::ExchangeError;
use super::not_reached::NotReached;
use crate::cause::ConnectionFault;
use crate::fault::{Fault, FaultKind, FaultSide, RetryHint};
use crate::grants::TokenFailure;
use crate::process::NoChildSlot;
use crate::telemetry::metrics::COUNTERS;
use crate::telemetry::names::error_type;

/// A failure of one exchange with an upstream. A JSON-RPC error is not one: it is a reply.
#[derive(Debug, Clone, thiserror::Error)]
pub enum LinkError {
    /// The upstream could not be reached or started; nothing has run.
    #[error("it cannot be reached: {0}")]
    Unreachable(#[source] NotReached),
    /// The connection was lost; whether the call ran is unknown.
    #[error("the connection was lost")]
    Lost {
        /// The end of a child's stderr.
        last_words: Option<String>,
    },
    /// The connection ended before the request was read, or the upstream leads elsewhere; nothing has
    /// run, and the request may be sent again.
    #[error("the connection ended before the request was read")]
    Unread {
        /// The status of the redirect that is to be followed.
        redirect: Option<u16>,
    },
    /// The connection was lost during its opening; nothing has run.
    #[error("the connection was lost while it was being opened{}", quoted(last_words.as_deref()))]
    Unopened {
        /// The end of a child's stderr.
        last_words: Option<String>,
    },
    /// The upstream no longer knows our session; nothing has run.
    #[error("it has forgotten the session")]
    SessionGone,
    /// The upstream asks us to retry later.
    #[error("it is busy: HTTP status {status}")]
    Busy {
        /// 429 or 503.
        status: u16,
        /// When, if it said so.
        retry_after: Option<Duration>,
    },
    /// Another call of the connection may be asked, and nothing would tell the two apart.
    #[error("it is busy, waiting for an answer")]
    AwaitsAnswer,
    /// A cap of ours leaves no place for another child.
    #[error("no place for a child process: {full}")]
    AtCapacity {
        /// The cap that is reached.
        full: NoChildSlot,
        /// When to try again.
        retry_after: Duration,
    },
    /// There is no token for the request, which was not sent.
    #[error("its account cannot be used: {0}")]
    Account(#[source] TokenFailure),
    /// An HTTP status that no MCP server should answer with.
    #[error("it answered with HTTP status {0}{hint}", hint = hint(*.0))]
    Status(u16),
    /// A message over the bound.
    #[error("it sent more than {limit} bytes at once")]
    TooLarge {
        /// The bound, bytes.
        limit: usize,
    },
    /// Something that is no MCP message, or not for us.
    #[error("it sent an invalid message: {0}")]
    Invalid(String),
    /// The handshake failed.
    #[error("the handshake failed: {0}")]
    Handshake(String),
    /// The request cannot be sent in a form that two readers understand alike.
    #[error("the request cannot be sent: {0}")]
    Unsendable(String),
    /// It needs an answer that the client cannot give.
    #[error("it needs an answer: {0}")]
    Unanswered(String),
    /// No frame in time.
    #[error("no answer in time")]
    Timeout,
    /// No frame in time, but lines that are no messages.
    #[error("no answer in time; its output meanwhile: {strays}")]
    Garbled {
        /// The last of those lines, masked and cut.
        strays: String,
    },
    /// The call ran, and its reply found no room among those that its caller has not read.
    #[error("its reply found no room in memory")]
    NoRoom,
    /// Another replica owns the session, or may own it; nothing was sent.
    #[error("the session may belong to another replica")]
    Fenced,
    /// The caller no longer wants the answer.
    #[error("cancelled")]
    Cancelled,
}

/// The text of [`LinkError::older_stream`].
const OLDER_STREAM: &str = "an event stream of HTTP+SSE (2024-11-05) in answer to a POST";

/// Explanation of a status by the configuration. Callers do not learn the target of a redirect.
fn hint(status: u16) -> &'static str {
    match status {
        401 => ": it wants a token, or another one than the gateway's",
        403 => ": it does not let the gateway in",
        404 | 405 => ": it has no MCP endpoint at the path of its `url`",
        301 | 302 | 303 | 307 | 308 => {
            ", a redirection, which is not followed: its `url` may lack, or have, a slash at the end"
        }
        _ => "",
    }
}

/// When to try again, in whole seconds, or in minutes where it is long until then.
fn when(retry_after: Option<Duration>) -> String {
    let Some(after) = retry_after else {
        return "later".to_owned();
    };
    let seconds = u64::try_from(after.as_millis().div_ceil(1000)).unwrap_or(u64::MAX);
    match seconds {
        0..=120 => format!("in {seconds} s"),
        _ => format!("in {} min", seconds.div_ceil(60)),
    }
}

/// The text of a call that ran and whose reply found no room.
fn no_room(upstream: &str) -> String {
    format!(
        "the request ran, but the reply of upstream \"{upstream}\" found no room: replies that your client has \
         not read yet take too much memory"
    )
}

/// The text of a call behind another one that waits for an answer.
fn awaits_answer(upstream: &str) -> String {
    format!(
        "upstream \"{upstream}\" is busy, waiting for an answer to another call's question; answer it, or try again \
         later"
    )
}

/// The last words of a child, to be appended to a text.
fn quoted(last_words: Option<&str>) -> String {
    match last_words {
        Some(words) if !words.is_empty() => format!("; its last words: {words}"),
        _ => String::new(),
    }
}

impl From<ExchangeError> for LinkError {
    fn from(error: ExchangeError) -> Self {
        if let Some(failure) = error.account() {
            if failure.is_of_upstream() {
                return Self::Unreachable(NotReached::new("it does not answer").caused_by(failure));
            }
            return Self::Account(failure.clone());
        }
        if error.is_fenced() {
            return Self::Fenced;
        }
        if error.is_connect() {
            let fault = ConnectionFault::of(&error);
            let reached = NotReached::new(error.reason()).remedied(NotReached::remedy_of(fault));
            Self::Unreachable(reached.caused_by(&error))
        } else if error.is_unread() {
            Self::Unread {
                redirect: error.redirect(),
            }
        } else {
            Self::Lost { last_words: None }
        }
    }
}

impl LinkError {
    /// The error of a reply whose result is no object, which clients cannot use. Spec: SPEC U-14, M-40.
    #[must_use]
    pub fn no_object() -> Self {
        Self::Invalid("a result that is no JSON object".to_owned())
    }

    /// The error of a call that ran and whose reply found no room; counted.
    pub(super) fn no_room() -> Self {
        COUNTERS.replies_failed.add(1);
        Self::NoRoom
    }

    /// One word for metrics and spans.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Unreachable(_)
            | Self::Unopened { .. }
            | Self::Status(_)
            | Self::Account(_)
            | Self::Handshake(_) => error_type::UNAVAILABLE,
            Self::Lost { .. } | Self::Unread { .. } | Self::SessionGone => error_type::LOST,
            Self::Busy { .. }
            | Self::AtCapacity { .. }
            | Self::AwaitsAnswer
            | Self::NoRoom
            | Self::Fenced => error_type::BUSY,
            Self::TooLarge { .. }
            | Self::Invalid(_)
            | Self::Unanswered(_)
            | Self::Unsendable(_) => error_type::INVALID,
            Self::Timeout | Self::Garbled { .. } => error_type::TIMEOUT,
            Self::Cancelled => error_type::CANCELLED,
        }
    }

    /// The error in words for every caller: without text of a child or the upstream.
    pub(super) fn public_reason(&self) -> Cow<'static, str> {
        match self {
            Self::Unreachable(reached) => Cow::Owned(reached.text.clone()),
            Self::Status(_) | Self::Account(_) | Self::Busy { .. } => Cow::Owned(self.to_string()),
            Self::Handshake(_) => Cow::Borrowed("the handshake failed"),
            Self::Invalid(_) | Self::TooLarge { .. } => Cow::Borrowed("it sent an invalid message"),
            Self::Unopened { .. } => Cow::Borrowed("it ended while it was being opened"),
            Self::Timeout | Self::Garbled { .. } => Cow::Borrowed("no answer in time"),
            _ => Cow::Borrowed("the connection was lost"),
        }
    }

    /// The error of a request that is not retried: a redirect becomes its status.
    pub(super) fn of_last_try(self) -> Self {
        match self {
            Self::Unread {
                redirect: Some(status),
            } => Self::Status(status),
            other => other,
        }
    }

    /// The error for a connection on which no request was sent yet.
    pub(super) fn of_opening(self) -> Self {
        match self {
            Self::Lost { last_words } => Self::Unopened { last_words },
            other => other,
        }
    }

    /// Whether an HTTP status is about the caller and does not tell the era of the upstream.
    // Spec: SPEC U-06
    pub(super) fn is_wall(&self) -> bool {
        self.is_of_credential() || matches!(self, Self::Busy { status: 429, .. })
    }

    /// Whether the upstream, or an authorization server, refuses the credential of a request, or wants one.
    pub(super) fn is_of_credential(&self) -> bool {
        matches!(self, Self::Status(401 | 403) | Self::Account(_))
    }

    /// An answer to a POST that is the event stream of HTTP+SSE: its end, and a reply, never come.
    pub(super) fn older_stream() -> Self {
        Self::Invalid(OLDER_STREAM.to_owned())
    }

    /// Whether it is [`older_stream`](Self::older_stream).
    pub(super) fn is_older_stream(&self) -> bool {
        matches!(self, Self::Invalid(what) if what == OLDER_STREAM)
    }

    /// Whether the upstream has refused what was asked, of itself.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::Status(400 | 404 | 405) | Self::Handshake(_))
    }

    /// The stray lines of a child, to be appended to a text.
    fn quoted_strays(&self) -> String {
        match self {
            Self::Garbled { strays } => {
                format!("; it wrote lines that are no messages: {strays}")
            }
            _ => String::new(),
        }
    }

    /// When to retry an unavailable upstream: never after a 401 or 403, which only the operator can solve.
    fn retry_of_unavailable(&self) -> RetryHint {
        match self {
            Self::Status(401 | 403) => RetryHint::Never,
            Self::Account(failure) if !failure.may_pass() => RetryHint::Never,
            _ => RetryHint::After(Duration::from_secs(2)),
        }
    }

    /// The fault for the caller. Names the upstream as configured, never an address.
    #[must_use]
    pub fn into_fault(self, upstream: &str) -> Fault {
        let (kind, text, retry) = match &self {
            Self::Unreachable(_)
            | Self::Unread { .. }
            | Self::Handshake(_)
            | Self::Account(_)
            | Self::Status(_) => (
                FaultKind::UpstreamUnavailable,
                format!("upstream \"{upstream}\" is not available: {self}"),
                self.retry_of_unavailable(),
            ),
            Self::Busy { retry_after, .. } => (
                FaultKind::UpstreamUnavailable,
                format!(
                    "upstream \"{upstream}\" is busy, try again {}",
                    when(*retry_after)
                ),
                RetryHint::After(retry_after.unwrap_or(Duration::from_secs(1))),
            ),
            Self::AwaitsAnswer => (
                FaultKind::UpstreamUnavailable,
                awaits_answer(upstream),
                RetryHint::After(Duration::from_secs(2)),
            ),
            Self::AtCapacity { full, retry_after } => (
                FaultKind::GatewayBusy,
                format!("no free child process for upstream \"{upstream}\": {full}"),
                RetryHint::After(*retry_after),
            ),
            Self::Lost { last_words } => (
                FaultKind::UpstreamLost,
                format!(
                    "upstream \"{upstream}\" broke off; whether the request ran is unknown{}",
                    quoted(last_words.as_deref())
                ),
                RetryHint::Never,
            ),
            Self::Unopened { last_words } => (
                FaultKind::UpstreamUnavailable,
                format!(
                    "upstream \"{upstream}\" broke off while it was being opened{}",
                    quoted(last_words.as_deref())
                ),
                RetryHint::After(Duration::from_secs(2)),
            ),
            Self::SessionGone => (
                FaultKind::UpstreamLost,
                format!("upstream \"{upstream}\" keeps forgetting its session"),
                RetryHint::Same,
            ),
            Self::TooLarge { .. } | Self::Invalid(_) => (
                FaultKind::UpstreamInvalid,
                format!("upstream \"{upstream}\" misbehaved: {self}"),
                RetryHint::Never,
            ),
            Self::Unsendable(why) => {
                let text = format!("the request cannot be sent on: {why}");
                return Fault::downstream(FaultKind::InvalidParams, text);
            }
            Self::Unanswered(why) => (
                FaultKind::CannotAsk,
                format!("upstream \"{upstream}\" needs an answer: {why}"),
                RetryHint::Never,
            ),
            Self::Timeout | Self::Garbled { .. } => (
                FaultKind::UpstreamTimeout,
                format!(
                    "upstream \"{upstream}\" did not answer in time{}",
                    self.quoted_strays()
                ),
                RetryHint::Never,
            ),
            Self::NoRoom => (FaultKind::ReplyDropped, no_room(upstream), RetryHint::Never),
            Self::Fenced => return fenced(),
            Self::Cancelled => (
                FaultKind::Cancelled,
                "the request was cancelled".to_owned(),
                RetryHint::Never,
            ),
        };
        Fault::upstream(kind, text).retry(retry).caused_by(self)
    }
}

/// The fault of a message that was not sent as the lease of this replica is over.
fn fenced() -> Fault {
    let text = "the replica has lost its lease: nothing was sent";
    let fault = Fault::new(FaultKind::GatewayBusy, FaultSide::Gateway, text);
    fault.retry(RetryHint::After(Duration::from_secs(2)))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::cause::chain;

    // BRIDGING §3.10.
    #[rstest]
    #[case::unknown(None, "is busy, try again later")]
    #[case::seconds(Some(Duration::from_secs(7)), "is busy, try again in 7 s")]
    #[case::less(Some(Duration::from_millis(300)), "is busy, try again in 1 s")]
    #[case::minutes(Some(Duration::from_secs(601)), "is busy, try again in 11 min")]
    fn a_busy_upstream_says_when_to_come_back(
        #[case] retry_after: Option<Duration>,
        #[case] said: &str,
    ) {
        let status = 503;
        let fault = LinkError::Busy {
            status,
            retry_after,
        }
        .into_fault("up");
        assert!(fault.public.ends_with(said), "{fault}");
    }

    // The last words of a child that served callers may quote their input.
    #[test]
    fn last_words_are_told_of_an_opening_alone() {
        let last_words = || Some("no database".to_owned());
        let unopened = LinkError::Unopened {
            last_words: last_words(),
        };
        assert!(chain(&unopened).ends_with("; its last words: no database"));
        let lost = LinkError::Lost {
            last_words: last_words(),
        };
        assert_eq!(chain(&lost), "the connection was lost");
    }
}
