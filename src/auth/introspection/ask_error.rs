//! Why a question to an issuer about one token brought no answer.

use super::super::discovery::DiscoveryError;
use super::super::fetch::NO_ANSWER;
use super::issuer_health::FailureCause;
use crate::egress::DocumentError;

/// Why nothing was learned of a token; for the log, and without a word of the token.
#[derive(Debug, thiserror::Error)]
pub(super) enum IntrospectionError {
    #[error(transparent)]
    Discovery(#[from] DiscoveryError),
    #[error("it does not accept the gateway's credentials (HTTP {0}, invalid_client)")]
    Credentials(u16),
    #[error("it, or something in front of it, refuses the question about this token (HTTP {0})")]
    Refused(u16),
    #[error("it does not answer")]
    Fetch(#[source] DocumentError),
    #[error("its answer is HTTP {0}")]
    Status(u16),
    #[error("its answer cannot be read")]
    Answer,
    #[error("it does not answer in time")]
    TimedOut,
}

impl IntrospectionError {
    /// The error that an answer with a status other than 200 is.
    ///
    /// Which status comes may be the presenter's choice: a firewall or a limit in front of the issuer looks
    /// at the token. Only `invalid_client` is about the gateway. Spec: RFC 7662 §2.3, RFC 6749 §5.2
    pub(super) fn of_status(status: u16, body: &[u8]) -> Self {
        match status {
            400 | 401 if is_invalid_client(body) => Self::Credentials(status),
            // No such endpoint, no such method, too slow, too early, too often: not about a token.
            401 | 404 | 405 | 407 | 408 | 410 | 425 | 429 => Self::Status(status),
            400..500 => Self::Refused(status),
            _ => Self::Status(status),
        }
    }

    /// The likely cause of the failed request.
    pub(super) fn blame(&self) -> FailureCause {
        match self {
            Self::Credentials(_) => FailureCause::Credentials,
            Self::Discovery(_) | Self::Fetch(DocumentError::Refused(_)) => FailureCause::Issuer,
            Self::Fetch(DocumentError::Transport(error)) if error.is_connect() => {
                FailureCause::Issuer
            }
            Self::Refused(_) => FailureCause::Token,
            _ => FailureCause::Unknown,
        }
    }

    /// What an operator can do.
    pub(super) fn remedy(&self) -> &'static str {
        match self {
            Self::Discovery(error) => error.remedy(),
            Self::Credentials(_) => {
                "correct `introspection.client_id` and `client_secret`, let the issuer know this client, or set \
                 `introspection.auth_method` to the one that the issuer takes"
            }
            Self::Refused(_) => {
                "look into the log of the issuer, or of the firewall in front of it: it refuses this token; if it refuses \
                 every token, see `introspection.auth_method`"
            }
            Self::Fetch(error) => error.remedy(),
            Self::Status(_) | Self::Answer => {
                "correct `introspection.endpoint`: what answers there is no introspection endpoint (RFC 7662), \
                 or look into the issuer's own log"
            }
            Self::TimedOut => NO_ANSWER,
        }
    }

    /// One word for each kind, for the limit on log lines.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Discovery(_) => "discovery",
            Self::Credentials(_) => "credentials",
            Self::Refused(_) => "refused",
            Self::Fetch(_) => "transport",
            Self::Status(_) => "status",
            Self::Answer => "answer",
            Self::TimedOut => "timed_out",
        }
    }
}

fn is_invalid_client(body: &[u8]) -> bool {
    super::ClaimSet::read(body)
        .and_then(|members| members.text("error").ok().flatten())
        .is_some_and(|error| error == "invalid_client")
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::invalid_client(401, "{\"error\":\"invalid_client\"}", "credentials")]
    #[case::invalid_client_as_400(400, "{\"error\":\"invalid_client\"}", "credentials")]
    #[case::other_401(401, "<html>", "status")]
    #[case::bad_request(400, "{\"error\":\"invalid_request\"}", "refused")]
    #[case::firewall(403, "invalid_client", "refused")]
    #[case::too_large(413, "", "refused")]
    #[case::no_such_endpoint(404, "", "status")]
    #[case::too_often(429, "", "status")]
    #[case::down(503, "", "status")]
    #[case::redirect(302, "", "status")]
    fn only_invalid_client_is_about_our_credentials(
        #[case] status: u16,
        #[case] body: &str,
        #[case] kind: &str,
    ) {
        assert_eq!(
            IntrospectionError::of_status(status, body.as_bytes()).kind(),
            kind
        );
    }
}
