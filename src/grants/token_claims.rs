//! Claims of tokens that are JWTs, unverified. An ID token that is kept came from its server itself, and the first one of a
//! login was verified by `auth`.

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use serde::Deserialize;

use crate::secret::Secret;
use crate::vault::GrantRecord;

#[derive(Debug, Deserialize)]
struct IdClaims {
    iss: String,
    sub: String,
    aud: Audience,
    exp: f64,
}

/// `aud`. Spec: RFC 7519 §4.1.3
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum Audience {
    One(String),
    Several(Vec<String>),
}

impl Audience {
    pub(super) fn into_list(self) -> Vec<String> {
        match self {
            Self::One(one) => vec![one],
            Self::Several(all) => all,
        }
    }
}

/// The claims of a JWT, unverified; `None` for any other token.
pub(super) fn claims<T: for<'de> Deserialize<'de>>(token: &Secret) -> Option<T> {
    let mut parts = token.expose().split('.');
    let (Some(_), Some(claims), Some(_), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return None;
    };
    let claims = BASE64_URL_SAFE_NO_PAD.decode(claims).ok()?;
    serde_json::from_slice(&claims).ok()
}

/// When `token` ends, milliseconds since the Unix epoch; `None` without a usable `exp`.
pub(super) fn ends(token: &Secret) -> Option<u64> {
    let ends = std::time::Duration::try_from_secs_f64(claims::<IdClaims>(token)?.exp).ok()?;
    u64::try_from(ends.as_millis()).ok()
}

/// `sub` of `token`.
pub(super) fn subject(token: &Secret) -> Option<String> {
    Some(claims::<IdClaims>(token)?.sub)
}

/// Whether `token` is of the person, the issuer and the client of `record`.
pub(super) fn is_of(token: &Secret, record: &GrantRecord) -> bool {
    claims::<IdClaims>(token).is_some_and(|claims| {
        let client = record.client_id.as_deref();
        claims.iss == record.issuer
            && Some(&claims.sub) == record.account.as_ref()
            && (claims.aud.into_list().iter()).any(|one| Some(&**one) == client)
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::vault::GrantKind;
    use crate::vault::samples::user_grant;

    fn token(claims: &serde_json::Value) -> Secret {
        let claims = BASE64_URL_SAFE_NO_PAD.encode(claims.to_string());
        Secret::new(format!("e30.{claims}.c2ln"))
    }

    #[rstest]
    #[case::same(json!({"iss": "https://as.test", "sub": "alice", "aud": "gw", "exp": 7}), true)]
    #[case::several(json!({"iss": "https://as.test", "sub": "alice", "aud": ["x", "gw"], "exp": 7.5}), true)]
    #[case::other_person(json!({"iss": "https://as.test", "sub": "bob", "aud": "gw", "exp": 7}), false)]
    #[case::other_issuer(json!({"iss": "https://as.test/", "sub": "alice", "aud": "gw", "exp": 7}), false)]
    #[case::other_client(json!({"iss": "https://as.test", "sub": "alice", "aud": "x", "exp": 7}), false)]
    #[case::endless(json!({"iss": "https://as.test", "sub": "alice", "aud": "gw"}), false)]
    fn id_token_is_of_the_person_who_logged_in(
        #[case] claims: serde_json::Value,
        #[case] is_of_alice: bool,
    ) {
        let record = GrantRecord {
            kind: GrantKind::Login,
            client_id: Some("gw".to_owned()),
            account: Some("alice".to_owned()),
            ..user_grant("opaque")
        };
        assert_eq!(is_of(&token(&claims), &record), is_of_alice);
    }

    #[rstest]
    #[case(json!(7), Some(7000))]
    #[case(json!(7.5), Some(7500))]
    #[case(json!(-1), None)]
    #[case(json!("7"), None)]
    fn end_of_an_id_token_is_read(#[case] exp: serde_json::Value, #[case] ends_at: Option<u64>) {
        let claims = json!({"iss": "i", "sub": "s", "aud": "a", "exp": exp});
        assert_eq!(ends(&token(&claims)), ends_at);
        assert_eq!(ends(&Secret::new("opaque")), None);
    }
}
