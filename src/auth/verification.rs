//! From the text of a token to its caller: by signature where it has one, by asking its issuer where
//! it is opaque.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::bearer::{self, Malformed};
use super::cache::{MAX_AGE, TokenKey, Verified};
use super::challenge::Denied;
use super::claims::Members;
use super::introspection::{self, Introspection, Unanswered};
use super::issuer::Issuer;
use super::jwt::{self, MAX_LEN, Token};
use super::refusals::Refusal;
use super::refused::REFUSED_AGE;
use super::reject::Reject;
use super::terms::Terms;
use super::{Authenticator, metadata};
use crate::call::Principal;
use crate::endpoint::Endpoint;
use crate::telemetry::metrics::COUNTERS;

/// Why a token was not verified.
#[derive(Debug, PartialEq, Eq)]
enum Failure {
    /// It is bad.
    Rejected(Rejected),
    /// It cannot be judged now.
    Unavailable(&'static str),
}

#[derive(Debug, PartialEq, Eq)]
struct Rejected {
    refusal: Refusal,
    /// For how long it stays refused without another look.
    age: Option<Duration>,
    /// What its issuer said of it, if the issuer was asked.
    answer: Option<Arc<[u8]>>,
}

impl From<Reject> for Failure {
    fn from(reject: Reject) -> Self {
        Self::Rejected(Rejected {
            refusal: reject.into(),
            // The one refusal by our own judgement that costs more than a look-up.
            age: (reject == Reject::Signature).then_some(REFUSED_AGE),
            answer: None,
        })
    }
}

impl Failure {
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
    pub(super) async fn verify_anew(
        &self,
        token: &[u8],
        from: IpAddr,
        endpoint: &Endpoint,
        key: TokenKey,
        now: Duration,
    ) -> Result<Arc<Principal>, Denied> {
        COUNTERS.token_cache_misses.add(1);
        let token = bearer::b64token(token)
            .ok_or_else(|| self.refuse_credentials(endpoint, Malformed::Syntax))?;
        match self.verify(token, from, endpoint, now).await {
            Ok((verified, max_age)) => {
                let principal = Arc::clone(&verified.principal);
                self.cache.put(key, verified, now, max_age);
                Ok(principal)
            }
            Err(Failure::Rejected(rejected)) => {
                let refusal = rejected.refusal;
                if let Some(age) = rejected.age {
                    self.refused.put(key, refusal, now, age);
                }
                let answer = rejected.answer.as_deref();
                Err(self.refuse(token.as_bytes(), endpoint, refusal, answer))
            }
            Err(Failure::Unavailable(reason)) => Err(Denied::unavailable(reason)),
        }
    }

    /// The caller, and how long that may be remembered.
    async fn verify(
        &self,
        token: &str,
        from: IpAddr,
        endpoint: &Endpoint,
        now: Duration,
    ) -> Result<(Verified, Duration), Failure> {
        if token.len() > MAX_LEN {
            return Err(Reject::TooLong.into());
        }
        let text = token;
        let token = match Token::read(text) {
            Err(Reject::NotAJwt) => return self.verify_opaque(text, from, endpoint, now).await,
            read => read?,
        };
        let claims = token.claims()?;
        // The claim picks whose rules and keys apply; it is believed once they agree. SPEC A-21
        let named = claims.text("iss").map_err(Reject::from)?;
        let (position, issuer) = self
            .issuers_of(endpoint)
            .find(|(_, issuer)| Some(issuer.id.as_str()) == named.as_deref())
            .ok_or(Reject::Issuer)?;
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
        (text, token, claims): (&str, &Token<'_>, &Members<'_>),
        (from, endpoint): (IpAddr, &Endpoint),
        now: Duration,
    ) -> Result<(Verified, Duration), Failure> {
        let terms = self.terms(issuer, endpoint, now);
        let principal = jwt::check(&token.header, claims, &terms)?;
        let minted = claims.time("iat").map_err(Reject::from)?;
        let generation = self.verify_signature(issuer, token, minted, &terms).await?;
        let mut verified = Verified {
            principal: Arc::new(principal),
            issuer: position,
            generation,
        };
        let Some(introspection) = issuer.introspection.as_ref().filter(|one| one.all) else {
            return Ok((verified, MAX_AGE));
        };
        let asked = ask(introspection, text, from, &terms).await?;
        // Spec: RFC 7662 §2.2: the introspection response supersedes the claims, but only for the same binding.
        if asked.binding() != verified.principal.binding() {
            return Err(refused(introspection, Reject::Subject, None));
        }
        verified.principal = Arc::new(asked);
        Ok((verified, introspection.max_age))
    }

    /// Verifies an opaque token. Such a token does not name its issuer, so a single issuer is asked about all.
    async fn verify_opaque(
        &self,
        token: &str,
        from: IpAddr,
        endpoint: &Endpoint,
        now: Duration,
    ) -> Result<(Verified, Duration), Failure> {
        let (position, issuer, introspection) = self
            .issuers_of(endpoint)
            .find_map(|(position, issuer)| Some((position, issuer, issuer.introspection.as_ref()?)))
            .ok_or(Reject::NotAJwt)?;
        let generation = issuer.generation();
        let terms = self.terms(issuer, endpoint, now);
        let principal = ask(introspection, token, from, &terms)
            .await
            .map_err(|failure| failure.at(position))?;
        let verified = Verified {
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

    fn terms<'a>(&'a self, issuer: &'a Issuer, endpoint: &'a Endpoint, now: Duration) -> Terms<'a> {
        Terms {
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
        token: &Token<'_>,
        minted: Option<f64>,
        terms: &Terms<'_>,
    ) -> Result<u64, Failure> {
        issuer.refresh_stale(&self.tasks);
        // Read before the keys: if they change in between, the entry is stale from the start.
        let generation = issuer.generation();
        if let Some(keys) = issuer.keys() {
            match keys.set.verify(token) {
                Err(Reject::UnknownKey) => {}
                result => return Ok(result.map(|()| generation)?),
            }
        }
        let begun = Instant::now();
        issuer.refresh(&self.tasks).await;
        let generation = issuer.generation();
        let no_keys = Failure::Unavailable("keys_unavailable");
        let keys = issuer.keys().ok_or(no_keys)?;
        match keys.set.verify(token) {
            // The issuer may have published its key since, and could not or may not be asked now: it
            // is not the token's fault, and a client told otherwise would throw it away. SPEC A-23
            Err(Reject::UnknownKey)
                if !keys.are_of(begun) && keys.may_lack_key(minted, terms.now) =>
            {
                Err(Failure::Unavailable("keys_outdated"))
            }
            result => Ok(result.map(|()| generation)?),
        }
    }
}

async fn ask(
    introspection: &Introspection,
    token: &str,
    from: IpAddr,
    terms: &Terms<'_>,
) -> Result<Principal, Failure> {
    match introspection.ask(token, from).await {
        Ok(answer) => introspection::judge(&answer, terms)
            .map_err(|reject| refused(introspection, reject, Some(answer))),
        Err(Unanswered::Refused) => Err(refused(introspection, Reject::Unasked, None)),
        Err(Unanswered::Unavailable) => Err(Failure::Unavailable("introspection_unavailable")),
    }
}

/// The refusal of a token that its issuer was asked about.
fn refused(introspection: &Introspection, reject: Reject, answer: Option<Arc<[u8]>>) -> Failure {
    Failure::Rejected(Rejected {
        refusal: reject.into(),
        age: Some(introspection.refused_age()),
        answer,
    })
}
