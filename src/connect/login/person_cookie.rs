//! The cookie that identifies the person who logged in: sealed, for fifteen minutes and these pages.

use std::time::Duration;

use http::{HeaderMap, HeaderValue};
use serde::{Deserialize, Serialize};

use crate::auth::PersonLogin;
use crate::call::Principal;
use crate::clock::SharedClock;
use crate::connect::cookies;
use crate::connect::person::Person;
use crate::seal::{SealPurpose, Sealer};

const NAME: &str = "__Host-drawbridge-person";
/// How long a login lasts.
const LIFE: Duration = Duration::from_mins(15);
/// Characters of a name that the cookie keeps.
const MAX_NAME: usize = 80;

/// Contents of the cookie.
#[derive(Debug, Serialize, Deserialize)]
struct PersonRecord {
    issuer: String,
    subject: String,
    name: Option<String>,
    /// When the login expires, seconds since the Unix epoch.
    ends: u64,
}

/// The cookie of a successful login; `None` where the subject is too long for a cookie.
pub(super) fn make(
    login: &PersonLogin,
    (sealer, clock): (&Sealer, &SharedClock),
) -> Option<HeaderValue> {
    let name = login.name.as_deref();
    let record = PersonRecord {
        issuer: login.principal.issuer().to_owned(),
        subject: login.principal.subject().to_owned(),
        name: name.map(|name| name.chars().take(MAX_NAME).collect()),
        ends: (clock.now() + LIFE).as_secs(),
    };
    let plain = serde_json::to_vec(&record).ok()?;
    let value = sealer.seal(SealPurpose::ConnectPerson, b"", &plain);
    let fits = value.len() <= SealPurpose::ConnectPerson.max_len();
    cookies::set(NAME, &value, LIFE).filter(|_| fits)
}

/// The person who is logged in.
pub(super) fn find(
    headers: &HeaderMap,
    (sealer, clock): (&Sealer, &SharedClock),
) -> Option<Person> {
    let plain = sealer.open(
        SealPurpose::ConnectPerson,
        b"",
        cookies::find(headers, NAME)?,
    )?;
    let record: PersonRecord = serde_json::from_slice(&plain).ok()?;
    let principal = Principal::new(&record.issuer, &record.subject, "", Vec::new(), None);
    (clock.now().as_secs() < record.ends)
        .then(|| Person::logged_in(&principal, record.name.as_deref()))
}

/// The cookie that removes the login.
pub(crate) fn removed() -> Option<HeaderValue> {
    cookies::removed(NAME)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use http::header::COOKIE;

    use super::*;
    use crate::clock::TestClock;

    #[test]
    fn login_lasts_fifteen_minutes_and_owns_what_the_calls_own() {
        let clock = TestClock::at(1_800_000_000);
        let shared: SharedClock = Arc::<TestClock>::clone(&clock);
        let sealer = Sealer::new(&[]).unwrap();
        let principal = Principal::new("https://as.test", "1234", "editor", Vec::new(), None);
        let login = PersonLogin {
            principal: principal.clone(),
            name: Some("alice".to_owned()),
        };
        let cookie = make(&login, (&sealer, &shared)).unwrap();
        let text = cookie.to_str().unwrap();
        assert!(
            text.starts_with("__Host-") && text.contains("Max-Age=900"),
            "{text}"
        );
        let pair = text.split(';').next().unwrap().parse().unwrap();
        let headers = HeaderMap::from_iter([(COOKIE, pair)]);
        let person = find(&headers, (&sealer, &shared)).unwrap();
        assert_eq!(person.owner(), principal.owner());
        assert_eq!(person.name(), "alice (1234) of https://as.test");
        assert!(find(&headers, (&Sealer::new(&[]).unwrap(), &shared)).is_none());
        clock.advance(LIFE);
        assert!(find(&headers, (&sealer, &shared)).is_none());
    }
}
