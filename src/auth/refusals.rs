//! Log lines for refused credentials: claims presented, values expected, client and endpoint.
//!
//! One line a minute for each reason and issuer; the claims are read for a line that is written, never before. They
//! are not verified, and no line shows a token or a subject.

use std::borrow::Cow;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;

use super::bearer::MalformedCredentials;
use super::challenge::DeniedResponse;
use super::claims::ClaimSet;
use super::issuer::Issuer;
use super::jwt::MAX_LEN;
use super::reject::{RejectReason, TokenRefusal};
use super::{Authenticator, metadata, refuse_malformed, refuse_token};
use crate::call::Principal;
use crate::endpoint::Endpoint;
use crate::telemetry::line_limit::LineLimit;
use crate::telemetry::redact::shown;

/// Bytes shown of one value.
const MAX_VALUE: usize = 128;
/// Values shown of one list.
const MAX_VALUES: usize = 8;

/// Lines that were written, by reason and the issuer's place in the configuration. Both are few.
pub(super) type RefusalLines = LineLimit<(&'static str, Option<usize>)>;

/// Fields of the presented token in a log line. Every value is untrusted.
#[derive(Debug, Default, PartialEq, Eq)]
struct TokenFields {
    client: Option<String>,
    iss: Option<String>,
    aud: Option<String>,
    kid: Option<String>,
    alg: Option<String>,
    typ: Option<String>,
    /// A flaw that these fields do not show, in words of the gateway.
    flaw: Option<String>,
}

impl Authenticator {
    /// Refuses a token, and logs its claims; `answer` is the issuer's introspection response, if any.
    pub(super) fn refuse(
        &self,
        token: &[u8],
        endpoint: &Endpoint,
        refusal: TokenRefusal,
        answer: Option<&[u8]>,
    ) -> DeniedResponse {
        let TokenRefusal { reject, issuer } = refusal;
        if let Some(muted) = self.refusal_lines.admit((reject.reason(), issuer)) {
            let issuer = issuer.and_then(|at| self.issuers.get(at));
            let came = self.came(token, reject, issuer, answer);
            let wanted = self.wanted(reject, endpoint, issuer);
            let wanted: &str = &wanted;
            tracing::warn!(
                reason = reject.reason(),
                endpoint = &*endpoint.name,
                issuer = issuer.map(|issuer| issuer.id.as_str()),
                wanted,
                flaw = came.flaw,
                unverified_client = came.client,
                unverified_iss = came.iss,
                unverified_aud = came.aud,
                unverified_kid = came.kid,
                unverified_alg = came.alg,
                unverified_typ = came.typ,
                muted,
                "refused a token"
            );
        }
        refuse_token(endpoint, reject)
    }

    /// Refuses credentials that are no single bearer token.
    pub(super) fn refuse_credentials(
        &self,
        endpoint: &Endpoint,
        malformed: MalformedCredentials,
    ) -> DeniedResponse {
        let reason = malformed.reason();
        if let Some(muted) = self.refusal_lines.admit((reason, None)) {
            let flaw = malformed.description();
            let endpoint = &*endpoint.name;
            tracing::warn!(reason, endpoint, flaw, muted, "refused credentials");
        }
        refuse_malformed(endpoint, malformed)
    }

    /// Logs that the verified token of `principal` lacks a scope of `wanted`.
    pub(super) fn note_missing_scope(
        &self,
        endpoint: &Endpoint,
        wanted: &[String],
        principal: &Principal,
    ) {
        let reason = "insufficient_scope";
        let issuer = (self.issuers.iter()).position(|issuer| issuer.id == principal.issuer());
        let Some(muted) = self.refusal_lines.admit((reason, issuer)) else {
            return;
        };
        let missing = wanted
            .iter()
            .filter(|scope| !principal.scopes().contains(scope));
        tracing::warn!(
            reason,
            endpoint = &*endpoint.name,
            issuer = principal.issuer(),
            client = &*shown(principal.client(), MAX_VALUE),
            scope = list(principal.scopes()),
            wanted = format!("scope {}", list(missing)),
            muted,
            "refused a token"
        );
    }

    fn came(
        &self,
        token: &[u8],
        reject: RejectReason,
        issuer: Option<&std::sync::Arc<Issuer>>,
        answer: Option<&[u8]>,
    ) -> TokenFields {
        let (header, claims) = match answer {
            Some(answer) => (None, Some(answer.to_vec())),
            None => parts(token),
        };
        let header = header.as_deref().and_then(ClaimSet::read);
        let claims = claims.as_deref().and_then(ClaimSet::read);
        let of_header = |name| header.as_ref().and_then(|members| text(members, name));
        let of_claims = |name| claims.as_ref().and_then(|members| text(members, name));
        let mut came = TokenFields {
            client: of_claims("client_id").or_else(|| of_claims("azp")),
            iss: if issuer.is_none() {
                of_claims("iss")
            } else {
                None
            },
            ..TokenFields::default()
        };
        match reject {
            RejectReason::NotAJwt => came.flaw = Some(shape(token).to_owned()),
            RejectReason::Inactive => came.flaw = Some(INACTIVE.to_owned()),
            RejectReason::Issuer => came.iss = came.iss.or_else(|| Some("none".to_owned())),
            RejectReason::Audience => {
                came.aud = of_claims("aud").or_else(|| Some("none".to_owned()));
            }
            RejectReason::UnknownKey | RejectReason::Signature => {
                came.kid = of_header("kid").or_else(|| Some("none".to_owned()));
                came.alg = of_header("alg");
            }
            RejectReason::Algorithm => {
                came.alg = of_header("alg").or_else(|| Some("none".to_owned()));
            }
            RejectReason::Type => {
                let claimed = ["typ", "token_type", "token_use"].into_iter();
                came.typ = of_header("typ")
                    .into_iter()
                    .chain(claimed.filter_map(of_claims))
                    .reduce(|typ, more| format!("{typ}, {more}"));
                came.flaw = claims.as_ref().and_then(foreign_claim);
            }
            RejectReason::Expired => {
                came.flaw = claims.as_ref().map(|claims| self.lateness(claims));
            }
            RejectReason::NotYet => {
                came.flaw = claims.as_ref().map(|claims| self.earliness(claims));
            }
            RejectReason::Claim => came.flaw = claims.as_ref().and_then(|c| wrong_claim(c, issuer)),
            RejectReason::TooLong => came.flaw = Some(format!("{} bytes", token.len())),
            RejectReason::Critical => {
                came.flaw = of_header("crit").map(|crit| format!("crit {crit}"));
            }
            _ => {}
        }
        came
    }

    fn lateness(&self, claims: &ClaimSet<'_>) -> String {
        let late = self.now().as_secs_f64() - time(claims, "exp");
        format!("expired {late:.0} s ago")
    }

    fn earliness(&self, claims: &ClaimSet<'_>) -> String {
        let start = time(claims, "nbf").max(time(claims, "iat"));
        let early = start - self.now().as_secs_f64();
        format!("`nbf` or `iat` is {early:.0} s from now: compare the clocks")
    }

    /// The values that would have been accepted, in words of the gateway.
    fn wanted(
        &self,
        reject: RejectReason,
        endpoint: &Endpoint,
        issuer: Option<&std::sync::Arc<Issuer>>,
    ) -> Cow<'static, str> {
        match reject {
            RejectReason::Audience => {
                let more = issuer.map_or(&[][..], |issuer| issuer.audiences.as_slice());
                let all = [&endpoint.resource]
                    .into_iter()
                    .chain(&endpoint.audiences)
                    .chain(more);
                format!("`aud` {}: the issuer has to put it there", one_of(all)).into()
            }
            RejectReason::Issuer => {
                let ids = self.issuers.iter().map(|issuer| &issuer.id);
                let ids = ids.filter(|id| metadata::accepts_issuer(endpoint, id));
                format!("`iss` {}", one_of(ids)).into()
            }
            RejectReason::UnknownKey => {
                let keys = issuer.and_then(|issuer| issuer.keys());
                let ids = keys.map(|keys| list(keys.set.ids())).unwrap_or_default();
                format!("a key that the issuer publishes: `kid` {ids}").into()
            }
            other => Cow::Borrowed(other.wanted()),
        }
    }
}

/// Explanation of an answer that a token is not active.
const INACTIVE: &str =
    "its issuer does not call it active: it has expired, was revoked, or is of another issuer";

/// How a token differs from a signed JWT, without any part of it.
fn shape(token: &[u8]) -> &'static str {
    match token.split(|byte| *byte == b'.').count() {
        1 => "it has no dot, as opaque tokens have none",
        3 => "its header or its claims are no JSON object in base64url",
        5 => "it has five parts, as encrypted tokens (JWE) do",
        _ => "it has neither one part nor three",
    }
}

/// Header and claims of a token; each `None` if not decodable.
fn parts(token: &[u8]) -> (Option<Vec<u8>>, Option<Vec<u8>>) {
    if token.len() > MAX_LEN {
        return (None, None);
    }
    let mut parts = token.split(|byte| *byte == b'.');
    let mut part = || BASE64_URL_SAFE_NO_PAD.decode(parts.next()?).ok();
    (part(), part())
}

/// A text or a list of texts, cut and masked.
fn text(members: &ClaimSet<'_>, name: &str) -> Option<String> {
    let texts = members.texts(name).ok()?;
    (!texts.is_empty()).then(|| list(texts))
}

fn time(claims: &ClaimSet<'_>, name: &str) -> f64 {
    claims.time(name).ok().flatten().unwrap_or_default()
}

/// The first values, each cut and masked.
fn list<T: AsRef<str>>(values: impl IntoIterator<Item = T>) -> String {
    let mut values = values.into_iter();
    let mut text = String::new();
    for value in values.by_ref().take(MAX_VALUES) {
        if !text.is_empty() {
            text.push_str(", ");
        }
        text.push_str(&shown(value.as_ref(), MAX_VALUE));
    }
    match values.count() {
        0 => text,
        more => format!("{text} and {more} more"),
    }
}

fn one_of<T: AsRef<str>>(values: impl Iterator<Item = T>) -> String {
    let text = list(values);
    if text.contains(", ") {
        format!("one of {text}")
    } else {
        text
    }
}

/// A claim that stands in ID tokens and logout tokens alone.
fn foreign_claim(claims: &ClaimSet<'_>) -> Option<String> {
    let name = super::jwt::FOREIGN.iter().find(|name| claims.has(name))?;
    Some(format!("it has the claim `{name}`"))
}

/// The first claim that is not of its type.
fn wrong_claim(claims: &ClaimSet<'_>, issuer: Option<&std::sync::Arc<Issuer>>) -> Option<String> {
    let subject = issuer.map_or("sub", |issuer| issuer.subject_claim.as_str());
    let kinds = ["typ", "token_type", "token_use"];
    let texts = ["iss", "client_id", "azp", subject];
    let wrong = texts
        .into_iter()
        .chain(kinds)
        .find(|name| claims.text(name).is_err())
        .or_else(|| (["aud", "scope", "scp"].into_iter()).find(|name| claims.texts(name).is_err()))
        .or_else(|| (["exp", "nbf", "iat"].into_iter()).find(|name| claims.time(name).is_err()));
    match wrong {
        Some(name) => Some(format!("`{name}` is not of its type")),
        None => (!claims.has("exp")).then(|| "`exp` is missing".to_owned()),
    }
}
