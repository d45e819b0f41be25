//! `TokenAnswer`: the answer of a token endpoint that grants a token. Spec: RFC 6749 §5.1
//!
//! It may hold the only copy of the next refresh token, so only the access token and its type have to be as the RFC demands.
//! Some servers write `expires_in` as text, with a fraction or as zero for a token that does not end, an absent refresh token as
//! an empty text, and `scope` as a list or with commas.

use std::time::Duration;

use oauth2::basic::BasicTokenType;
use oauth2::{AccessToken, RefreshToken, Scope, TokenResponse};
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

/// A granted token. `Debug` shows no secret.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct TokenAnswer {
    #[serde(deserialize_with = "access_token")]
    access_token: AccessToken,
    #[serde(deserialize_with = "oauth2::helpers::deserialize_untagged_enum_case_insensitive")]
    token_type: BasicTokenType,
    #[serde(default, deserialize_with = "expires_in")]
    expires_in: Option<Duration>,
    #[serde(default, deserialize_with = "refresh_token")]
    refresh_token: Option<RefreshToken>,
    #[serde(default, rename = "scope", deserialize_with = "scopes")]
    scopes: Option<Vec<Scope>>,
    /// `AccessToken` as a type, since its `Debug` shows no secret.
    id_token: Option<AccessToken>,
}

impl TokenAnswer {
    /// The ID token, which `OpenID` servers issue for a code.
    pub(super) fn id_token(&self) -> Option<&AccessToken> {
        self.id_token.as_ref()
    }
}

impl TokenResponse for TokenAnswer {
    type TokenType = BasicTokenType;

    fn access_token(&self) -> &AccessToken {
        &self.access_token
    }

    fn token_type(&self) -> &BasicTokenType {
        &self.token_type
    }

    fn expires_in(&self) -> Option<Duration> {
        self.expires_in
    }

    fn refresh_token(&self) -> Option<&RefreshToken> {
        self.refresh_token.as_ref()
    }

    fn scopes(&self) -> Option<&Vec<Scope>> {
        self.scopes.as_ref()
    }
}

/// A life in seconds: a number, or one as text. `None` for anything else, a negative number included.
fn life(value: &Value) -> Option<Duration> {
    let text = match value {
        Value::Number(number) => number.to_string(),
        Value::String(text) => text.trim().to_owned(),
        _ => return None,
    };
    match text.parse() {
        Ok(seconds) => Some(Duration::from_secs(seconds)),
        Err(_) => Duration::try_from_secs_f64(text.parse().ok()?).ok(),
    }
}

pub(super) fn access_token<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<AccessToken, D::Error> {
    let token = AccessToken::deserialize(deserializer)?;
    if token.secret().is_empty() {
        return Err(D::Error::custom("the access token is empty"));
    }
    Ok(token)
}

/// What is no time counts as unsaid, and so does zero: a token that ends at once would have its user asked again and again.
pub(super) fn expires_in<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Duration>, D::Error> {
    let value = Option::<Value>::deserialize(deserializer)?;
    Ok(value.as_ref().and_then(life).filter(|life| !life.is_zero()))
}

/// An empty token is none, and replaces none that is kept.
fn refresh_token<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<RefreshToken>, D::Error> {
    let token = Option::<RefreshToken>::deserialize(deserializer)?;
    Ok(token.filter(|token| !token.secret().is_empty()))
}

/// What is neither text nor a list of texts counts as unsaid, and so does an empty one: no list of scopes is empty, and none of
/// metadata. Spec: RFC 6749 §3.3; RFC 8414 §3.2
pub(super) fn words<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Vec<String>>, D::Error> {
    let value = Option::<Value>::deserialize(deserializer)?;
    let scopes = match &value {
        Some(Value::String(text)) => Some(vec![text.as_str()]),
        Some(Value::Array(list)) => list.iter().map(Value::as_str).collect(),
        _ => None,
    };
    let split = |scopes: Vec<&str>| -> Vec<String> {
        let words = scopes.iter().flat_map(|text| text.split_ascii_whitespace());
        words.map(str::to_owned).collect()
    };
    Ok(scopes.map(split).filter(|words| !words.is_empty()))
}

/// What is of another type counts as unsaid.
pub(crate) fn or_unsaid<'de, T: DeserializeOwned, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    let value = Value::deserialize(deserializer)?;
    Ok(serde_json::from_value(value).ok())
}

/// The granted scopes. GitHub and others separate them by commas alone, which RFC 6749 §3.3 allows within a scope.
pub(super) fn granted<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Vec<String>>, D::Error> {
    let mut words = words(deserializer)?;
    if let Some(words) = &mut words
        && let [one] = words.as_slice()
        && one.contains(',')
    {
        let parts = one.split(',').filter(|part| !part.is_empty());
        *words = parts.map(str::to_owned).collect();
    }
    Ok(words.filter(|words| !words.is_empty()))
}

fn scopes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<Scope>>, D::Error> {
    let words = granted(deserializer)?;
    Ok(words.map(|words| words.into_iter().map(Scope::new).collect()))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    /// An answer with these further members.
    fn answer(members: &Value) -> TokenAnswer {
        let mut body = json!({"access_token": "t", "token_type": "bearer"});
        for (name, value) in members.as_object().unwrap() {
            body[name] = value.clone();
        }
        serde_json::from_value(body).unwrap()
    }

    #[rstest]
    #[case::number(json!(3600), Some(3600))]
    #[case::text(json!("3600"), Some(3600))]
    #[case::fraction(json!(3600.0), Some(3600))]
    #[case::fraction_as_text(json!(" 3600.0 "), Some(3600))]
    #[case::zero(json!(0), None)]
    #[case::zero_as_text(json!("0"), None)]
    #[case::huge(json!(u64::MAX), Some(u64::MAX))]
    #[case::beyond_every_clock(json!(1e300), None)]
    #[case::negative(json!(-1), None)]
    #[case::negative_as_text(json!("-1"), None)]
    #[case::words(json!("an hour"), None)]
    #[case::no_number(json!("NaN"), None)]
    #[case::null(json!(null), None)]
    #[case::object(json!({"seconds": 1}), None)]
    fn life_that_cannot_be_read_loses_no_token(#[case] written: Value, #[case] secs: Option<u64>) {
        let answer = answer(&json!({"expires_in": written, "refresh_token": "next"}));
        assert_eq!(answer.expires_in().map(|life| life.as_secs()), secs);
        assert_eq!(answer.refresh_token().unwrap().secret(), "next");
    }

    #[rstest]
    #[case::text(json!("a  b "), Some(&["a", "b"][..]))]
    #[case::list(json!(["a", "b"]), Some(&["a", "b"][..]))]
    #[case::github(json!("a,b,"), Some(&["a", "b"][..]))]
    #[case::comma_within(json!("a,b c"), Some(&["a,b", "c"][..]))]
    #[case::empty(json!(""), None)]
    #[case::empty_list(json!([]), None)]
    #[case::comma_alone(json!(","), None)]
    #[case::null(json!(null), None)]
    #[case::other(json!(7), None)]
    fn scopes_are_words_without_an_empty_one(
        #[case] written: Value,
        #[case] expected: Option<&[&str]>,
    ) {
        let answer = answer(&json!({"scope": written}));
        let scopes = answer.scopes().map(|scopes| {
            let words = scopes.iter().map(|scope| scope.as_str());
            words.collect::<Vec<_>>()
        });
        assert_eq!(scopes.as_deref(), expected);
    }

    #[test]
    fn empty_refresh_token_is_none() {
        assert!(
            answer(&json!({"refresh_token": ""}))
                .refresh_token()
                .is_none()
        );
        assert!(answer(&json!({})).refresh_token().is_none());
    }

    #[rstest]
    #[case::empty(json!({"access_token": "", "token_type": "Bearer"}))]
    #[case::no_type(json!({"access_token": "t"}))]
    fn what_is_no_token_is_not_read(#[case] body: Value) {
        assert!(serde_json::from_value::<TokenAnswer>(body).is_err());
    }

    #[test]
    fn debug_output_hides_every_token() {
        let answer = answer(&json!({"refresh_token": "hunter2", "id_token": "hunter2"}));
        assert_eq!(answer.id_token().unwrap().secret(), "hunter2");
        assert!(!format!("{answer:?}").contains("hunter2"));
    }
}
