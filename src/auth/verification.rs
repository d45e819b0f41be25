//! From the text of a token to its caller: by signature where it has one, by asking its issuer where
//! it is opaque.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::bearer::{self, MalformedCredentials};
use super::cache::{MAX_AGE, TokenKey, VerifiedCaller};
use super::challenge::DeniedResponse;
use super::claims::ClaimSet;
use super::introspection::{self, IntrospectionClient, IntrospectionFailed};
use super::issuer::Issuer;
use super::jwt::{self, MAX_LEN, ParsedToken};
use super::login::{self, IdTokenCheck, LoginRefusal, PersonLogin};
use super::refused::REFUSED_AGE;
use super::reject::{RejectReason, TokenRefusal};
use super::token_policy::TokenPolicy;
use super::{Authenticator, metadata};
use crate::call::Principal;
use crate::endpoint::Endpoint;
use crate::telemetry::metrics::COUNTERS;

/// Why a token was not verified.
#[derive(Debug, PartialEq, Eq)]
enum VerificationFailure {
    /// It is bad.
    Rejected(RejectedToken),
    /// It cannot be judged now.
    Unavailable(&'static str),
}

#[derive(Debug, PartialEq, Eq)]
struct RejectedToken {
    refusal: TokenRefusal,
    /// For how long it stays refused without another look.
    age: Option<Duration>,
    /// What its issuer said of it, if the issuer was asked.
    answer: Option<Arc<[u8]>>,
}

impl From<RejectReason> for VerificationFailure {
    fn from(reject: RejectReason) -> Self {
        Self::Rejected(RejectedToken {
            refusal: reject.into(),
            // The one refusal by our own judgement that costs more than a look-up.
            age: (reject == RejectReason::Signature).then_some(REFUSED_AGE),
            answer: None,
        })
    }
}

impl From<VerificationFailure> for LoginRefusal {
    fn from(failure: VerificationFailure) -> Self {
        match failure {
            VerificationFailure::Rejected(rejected) => rejected.refusal.reject.into(),
            VerificationFailure::Unavailable(reason) => Self {
                reason,
                wanted: "an issuer that answers: /status says why it does not",
            },
        }
    }
}

impl VerificationFailure {
    /// The same, found by the rules of the issuer at `position`.
    fn at(mut self, position: usize) -> Self {
        if let Self::Rejected(rejected) = &mut self {
            rejected.refusal.issuer = Some(position);
        }
        self
    }
}

impl Authenticator {
    /// Judges a token that is not remembered, and remembers what was found.
    pub(super) async fn verify_uncached(
        &self,
        token: &[u8],
        from: IpAddr,
        endpoint: &Endpoint,
        key: TokenKey,
        now: Duration,
    ) -> Result<Arc<Principal>, DeniedResponse> {
        COUNTERS.token_cache_misses.add(1);
        let token = bearer::b64token(token)
            .ok_or_else(|| self.refuse_credentials(endpoint, MalformedCredentials::Syntax))?;
        match self.verify(token, from, endpoint, now).await {
            Ok((mut verified, max_age)) => {
                if let Some(callers) = &self.callers {
                    let principal = Arc::unwrap_or_clone(verified.principal);
                    verified.principal = Arc::new(callers.keep(principal, &endpoint.resource));
                }
                let principal = Arc::clone(&verified.principal);
                self.cache.put(key, verified, now, max_age);
                Ok(principal)
            }
            Err(VerificationFailure::Rejected(rejected)) => {
                let refusal = rejected.refusal;
                if let Some(age) = rejected.age {
                    self.refused.put(key, refusal, now, age);
                }
                let answer = rejected.answer.as_deref();
                Err(self.refuse(token.as_bytes(), endpoint, refusal, answer))
            }
            Err(VerificationFailure::Unavailable(reason)) => {
                Err(DeniedResponse::unavailable(reason))
            }
        }
    }

    /// The caller, and how long that may be remembered.
    async fn verify(
        &self,
        token: &str,
        from: IpAddr,
        endpoint: &Endpoint,
        now: Duration,
    ) -> Result<(VerifiedCaller, Duration), VerificationFailure> {
        if token.len() > MAX_LEN {
            return Err(RejectReason::TooLong.into());
        }
        let text = token;
        let token = match ParsedToken::read(text) {
            Err(RejectReason::NotAJwt) => {
                return self.verify_opaque(text, from, endpoint, now).await;
            }
            read => read?,
        };
        let claims = token.claims()?;
        // The claim picks whose rules and keys apply; it is believed once they agree. SPEC A-21
        let named = claims.text("iss").map_err(RejectReason::from)?;
        let (position, issuer) = self
            .issuers_of(endpoint)
            .find(|(_, issuer)| Some(issuer.id.as_str()) == named.as_deref())
            .ok_or(RejectReason::Issuer)?;
        self.verify_of(
            (position, issuer),
            (text, &token, &claims),
            (from, endpoint),
            now,
        )
        .await
        .map_err(|failure| failure.at(position))
    }

    /// [`verify`](Self::verify) by the rules of one issuer.
    async fn verify_of(
        &self,
        (position, issuer): (usize, &Arc<Issuer>),
        (text, token, claims): (&str, &ParsedToken<'_>, &ClaimSet<'_>),
        (from, endpoint): (IpAddr, &Endpoint),
        now: Duration,
    ) -> Result<(VerifiedCaller, Duration), VerificationFailure> {
        let terms = self.terms(issuer, endpoint, now);
        let principal = jwt::check(&token.header, claims, &terms)?;
        let minted = claims.time("iat").map_err(RejectReason::from)?;
        let generation = self.verify_signature(issuer, token, minted, &terms).await?;
        let mut verified = VerifiedCaller {
            principal: Arc::new(principal),
            issuer: position,
            generation,
        };
        let Some(introspection) = issuer.introspection.as_ref().filter(|one| one.all) else {
            return Ok((verified, MAX_AGE));
        };
        let told = ask(introspection, text, from, &terms).await?;
        let Some(caller) = same_caller(&verified.principal, told) else {
            return Err(refused(introspection, RejectReason::Subject, None));
        };
        // The answer may leave the end out.
        let end = verified.principal.expires_at();
        verified.principal = Arc::new(caller.ending_by(end));
        Ok((verified, introspection.max_age))
    }

    /// Verifies an opaque token. Such a token does not name its issuer, so a single issuer is asked about all.
    async fn verify_opaque(
        &self,
        token: &str,
        from: IpAddr,
        endpoint: &Endpoint,
        now: Duration,
    ) -> Result<(VerifiedCaller, Duration), VerificationFailure> {
        let (position, issuer, introspection) = self
            .issuers_of(endpoint)
            .find_map(|(position, issuer)| Some((position, issuer, issuer.introspection.as_ref()?)))
            .ok_or(RejectReason::NotAJwt)?;
        let generation = issuer.generation();
        let terms = self.terms(issuer, endpoint, now);
        let principal = ask(introspection, token, from, &terms)
            .await
            .map_err(|failure| failure.at(position))?;
        let verified = VerifiedCaller {
            principal: Arc::new(principal),
            issuer: position,
            generation,
        };
        Ok((verified, introspection.max_age))
    }

    /// The issuers that count on `endpoint`, with their positions.
    fn issuers_of<'a>(
        &'a self,
        endpoint: &'a Endpoint,
    ) -> impl Iterator<Item = (usize, &'a Arc<Issuer>)> {
        self.issuers
            .iter()
            .enumerate()
            .filter(|(_, issuer)| metadata::accepts_issuer(endpoint, &issuer.id))
    }

    fn terms<'a>(
        &'a self,
        issuer: &'a Issuer,
        endpoint: &'a Endpoint,
        now: Duration,
    ) -> TokenPolicy<'a> {
        TokenPolicy {
            issuer: &issuer.id,
            resource: &endpoint.resource,
            audiences: [&endpoint.audiences, &issuer.audiences],
            subject_claim: &issuer.subject_claim,
            hierarchy: &self.hierarchy,
            now: now.as_secs_f64(),
        }
    }

    /// Verifies the signature, if need be with keys fetched for it, and tells their generation.
    /// `minted` is when the token says that it was issued.
    async fn verify_signature(
        &self,
        issuer: &Arc<Issuer>,
        token: &ParsedToken<'_>,
        minted: Option<f64>,
        terms: &TokenPolicy<'_>,
    ) -> Result<u64, VerificationFailure> {
        issuer.refresh_stale(&self.tasks);
        // A token that names no key fits every key of its kind, also where its own is not loaded yet.
        let names_none = token.header.key_id.is_none();
        let is_of_unknown_key = |reject: RejectReason| {
            reject == RejectReason::UnknownKey || (reject == RejectReason::Signature && names_none)
        };
        // Read before the keys: if they change in between, the entry is stale from the start.
        let generation = issuer.generation();
        if let Some(keys) = issuer.keys() {
            match keys.set.verify(token) {
                Err(reject) if is_of_unknown_key(reject) => {}
                result => return Ok(result.map(|()| generation)?),
            }
        }
        let begun = Instant::now();
        issuer.refresh(&self.tasks).await;
        let generation = issuer.generation();
        let no_keys = VerificationFailure::Unavailable("keys_unavailable");
        let keys = issuer.keys().ok_or(no_keys)?;
        match keys.set.verify(token) {
            // The issuer may have published its key since, and could not or may not be asked now: it
            // is not the token's fault, and a client told otherwise would throw it away. SPEC A-23
            Err(reject)
                if is_of_unknown_key(reject)
                    && !keys.are_of(begun)
                    && keys.may_lack_key(minted, terms.now) =>
            {
                Err(VerificationFailure::Unavailable("keys_outdated"))
            }
            result => Ok(result.map(|()| generation)?),
        }
    }

    /// Says who logged in, by an ID token that the token endpoint gave for a code.
    ///
    /// # Errors
    /// The rule that the token breaks, or that its issuer's keys cannot be had.
    ///
    /// # Cancel safety
    /// A fetch of keys that it has started goes on.
    pub async fn identify_by_id_token(
        &self,
        token: &str,
        check: &IdTokenCheck<'_>,
    ) -> Result<PersonLogin, LoginRefusal> {
        let issuer = self.issuers.iter().find(|issuer| issuer.id == check.issuer);
        let issuer = issuer.ok_or(RejectReason::Issuer)?;
        let token = ParsedToken::read(token)?;
        let claims = token.claims()?;
        let terms = TokenPolicy {
            issuer: &issuer.id,
            resource: check.client_id,
            audiences: [&[], &[]],
            subject_claim: check.subject_claim.unwrap_or(&issuer.subject_claim),
            hierarchy: &self.hierarchy,
            now: self.now().as_secs_f64(),
        };
        let expected = (check.client_id, check.nonce);
        let principal = jwt::check_id(&token.header, &claims, &terms, expected)?;
        let minted = claims.time("iat").map_err(RejectReason::from)?;
        self.verify_signature(issuer, &token, minted, &terms)
            .await?;
        Ok(PersonLogin {
            principal,
            name: login::name(&claims),
        })
    }

    /// Says who logged in at `issuer`, by an access token for `endpoint` that the token endpoint gave for a code. It is
    /// judged as a caller's is, but for scopes.
    ///
    /// # Errors
    /// The rule that the token breaks, or that its issuer's keys or answers cannot be had.
    ///
    /// # Cancel safety
    /// A fetch of keys that it has started goes on.
    pub async fn identify_by_access_token(
        &self,
        token: &str,
        (issuer, endpoint): (&str, &Endpoint),
    ) -> Result<PersonLogin, LoginRefusal> {
        // Not the person's address: the gateway brings this token itself.
        let from = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let (verified, _) = self.verify(token, from, endpoint, self.now()).await?;
        if verified.principal.issuer() != issuer {
            return Err(RejectReason::Issuer.into());
        }
        Ok(PersonLogin {
            principal: Principal::clone(&verified.principal),
            name: None,
        })
    }
}

async fn ask(
    introspection: &IntrospectionClient,
    token: &str,
    from: IpAddr,
    terms: &TokenPolicy<'_>,
) -> Result<Principal, VerificationFailure> {
    match introspection.ask(token, from).await {
        Ok(answer) => introspection::validate(&answer, terms)
            .map_err(|reject| refused(introspection, reject, Some(answer))),
        Err(IntrospectionFailed::Refused) => {
            Err(refused(introspection, RejectReason::Unasked, None))
        }
        Err(IntrospectionFailed::Unavailable) => Err(VerificationFailure::Unavailable(
            "introspection_unavailable",
        )),
    }
}

/// The caller that a JWT names, as its issuer `told` of it; `None` where that is another caller. The introspection
/// response supersedes the claims, but for the client, which either of them may leave out. Spec: RFC 7662 §2.2
fn same_caller(named: &Principal, told: Principal) -> Option<Principal> {
    if told.binding() == named.binding() {
        return Some(told);
    }
    let ((client, "") | ("", client)) = (named.client(), told.client()) else {
        return None;
    };
    (told.owner() == named.owner()).then(|| {
        let scopes = told.scopes().to_vec();
        Principal::new(
            told.issuer(),
            told.subject(),
            client,
            scopes,
            told.expires_at(),
        )
    })
}

/// The refusal of a token that its issuer was asked about.
fn refused(
    introspection: &IntrospectionClient,
    reject: RejectReason,
    answer: Option<Arc<[u8]>>,
) -> VerificationFailure {
    VerificationFailure::Rejected(RejectedToken {
        refusal: reject.into(),
        age: Some(introspection.refused_age()),
        answer,
    })
}
