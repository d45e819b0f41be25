//! Why a token is not accepted, in words for clients and for logs.

use super::claims::WrongType;

/// Why a token is not accepted. The order is that of the checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RejectReason {
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
    /// An ID token of another login.
    Nonce,
    /// An ID token for another client.
    Party,
    /// The subject is an address that the issuer has not verified.
    Unverified,
    UnknownKey,
    Signature,
}

impl RejectReason {
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
            Self::Nonce => "token_nonce",
            Self::Party => "token_party",
            Self::Unverified => "token_unverified",
            Self::UnknownKey => "token_unknown_key",
            Self::Signature => "token_signature",
        }
    }

    /// For the log: what would have been accepted, where that needs no name.
    pub(super) fn wanted(self) -> &'static str {
        match self {
            Self::TooLong => "at most 16 KiB: let the issuer put fewer claims into its tokens",
            Self::NotAJwt => {
                "a signed JWT; opaque tokens need `introspection` at one issuer of the endpoint"
            }
            Self::Inactive => "a token that its issuer calls active",
            Self::Unasked => "a token that its issuer answers questions about",
            Self::Algorithm => "RS256 to RS512, PS256 to PS512, ES256, ES384 or EdDSA",
            Self::Type => {
                "an access token (`typ` at+jwt, JWT or none): is an ID token or a refresh token sent?"
            }
            Self::Critical => "no `crit` in the header",
            Self::Claim => "`exp`, and every claim of its type",
            Self::Issuer => "another `iss`",
            Self::Audience => "another `aud`",
            Self::Expired => "a token that has not expired: the client has to refresh it",
            Self::NotYet => "`nbf` and `iat` in the past",
            Self::Subject => "a subject, the one of the introspected token: see `subject_claim`",
            Self::Bound => "a plain bearer token, without `cnf`",
            Self::Nonce => "the `nonce` that this login was begun with",
            Self::Party => "`azp` the client id, also where `aud` names others besides",
            Self::Unverified => {
                "`email_verified` true beside the subject `email`: else another `subject_claim`"
            }
            Self::UnknownKey => "a key that the issuer publishes",
            Self::Signature => "a signature by the key of this `kid`",
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
            Self::Nonce => "the token is of another login",
            Self::Party => "the token is for another client",
            Self::Unverified => "the address of the subject is not verified",
            Self::UnknownKey | Self::Signature => "the signature cannot be verified",
        }
    }
}

impl From<WrongType> for RejectReason {
    fn from(_: WrongType) -> Self {
        Self::Claim
    }
}

/// A refusal, and the place of the issuer whose rules were applied, if one was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TokenRefusal {
    pub(super) reject: RejectReason,
    pub(super) issuer: Option<usize>,
}

impl From<RejectReason> for TokenRefusal {
    fn from(reject: RejectReason) -> Self {
        Self {
            reject,
            issuer: None,
        }
    }
}
