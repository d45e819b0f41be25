//! Why a token is not accepted, in words for clients and for logs.

use super::claims::WrongType;

/// Why a token is not accepted. The order is that of the checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reject {
    TooLong,
    NotAJwt,
    Inactive,
    /// The issuer, or a firewall in front of it, refused to be asked about this token.
    Unasked,
    Algorithm,
    Type,
    Critical,
    Claim,
    Issuer,
    Audience,
    Expired,
    NotYet,
    Subject,
    Bound,
    UnknownKey,
    Signature,
}

impl Reject {
    /// One word for logs and metrics.
    pub(super) fn reason(self) -> &'static str {
        match self {
            Self::TooLong => "token_too_long",
            Self::NotAJwt => "token_not_a_jwt",
            Self::Inactive => "token_inactive",
            Self::Unasked => "token_question_refused",
            Self::Algorithm => "token_algorithm",
            Self::Type => "token_type",
            Self::Critical => "token_critical",
            Self::Claim => "token_claim",
            Self::Issuer => "token_issuer",
            Self::Audience => "token_audience",
            Self::Expired => "token_expired",
            Self::NotYet => "token_not_yet_valid",
            Self::Subject => "token_subject",
            Self::Bound => "token_bound",
            Self::UnknownKey => "token_unknown_key",
            Self::Signature => "token_signature",
        }
    }

    /// For the client, in the challenge.
    pub(super) fn description(self) -> &'static str {
        match self {
            Self::TooLong => "the token is too long",
            Self::NotAJwt => "the token is not a signed JWT",
            Self::Inactive => "the token is not active",
            Self::Unasked => "the issuer refuses the token",
            Self::Algorithm => "the signature algorithm is not accepted",
            Self::Type => "the token is not an access token",
            Self::Critical => "the token has critical header parameters",
            Self::Claim => "a claim is not of its type",
            Self::Issuer => "the issuer is not trusted here",
            Self::Audience => "the token was issued for another resource",
            Self::Expired => "the token has expired",
            Self::NotYet => "the token is not valid yet",
            Self::Subject => "the token names no subject",
            Self::Bound => "sender-constrained tokens are not accepted",
            Self::UnknownKey | Self::Signature => "the signature cannot be verified",
        }
    }
}

impl From<WrongType> for Reject {
    fn from(_: WrongType) -> Self {
        Self::Claim
    }
}
