//! `BegunLogin`: a login under way, stored in a sealed cookie that opens only with the login's own `state`.

use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use http::{HeaderMap, HeaderValue};
use serde::{Deserialize, Serialize};
use url::form_urlencoded;

use super::outcome::RefusedLogin;
use crate::call::OwnerKey;
use crate::clock::SharedClock;
use crate::connect::cookies;
use crate::grants::authorization::is_state;
use crate::seal::{SealPurpose, Sealer};

/// How long a started login stays valid.
pub(super) const LIFE: Duration = Duration::from_mins(10);
/// Prefix of the cookies' names. Each login has its own cookie, so that two pages can log in at the same time.
const PREFIX: &str = "__Host-drawbridge-login-";
/// Characters of the `state` in the cookie's name.
const NAMED: usize = 8;

/// A login under way. No `Debug`: it holds the verifier.
#[derive(Serialize, Deserialize)]
pub(super) struct BegunLogin {
    /// The issuer where the person logs in.
    pub(super) issuer: String,
    /// Binds the ID token to this login.
    pub(super) nonce: String,
    /// The PKCE verifier.
    pub(super) verifier: String,
    /// The resource of the access token, where one was requested.
    pub(super) resource: Option<String>,
    /// The page to return to.
    pub(super) next: NextPage,
    /// The principal whose login is kept, as [`owner_text`]; `None` for a login that only opens the pages.
    #[serde(default)]
    pub(super) keeps: Option<String>,
    /// When the login expires, seconds since the Unix epoch.
    pub(super) ends: u64,
}

/// The key of a principal in base64url.
pub(super) fn owner_text(owner: OwnerKey) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(owner.bytes())
}

impl BegunLogin {
    /// The principal whose login is kept.
    pub(super) fn keeper(&self) -> Option<OwnerKey> {
        let owner = BASE64_URL_SAFE_NO_PAD.decode(self.keeps.as_ref()?).ok()?;
        Some(OwnerKey::from_bytes(owner.try_into().ok()?))
    }

    /// The audit record for a login that was begun to be kept, if it is not kept.
    pub(super) fn refused(&self) -> Option<RefusedLogin> {
        Some(RefusedLogin {
            owner: self.keeper()?,
            issuer: self.issuer.clone(),
            upstream: self.next.upstream.clone().unwrap_or_default(),
        })
    }
}

/// The page where a login started. Holds names, not URLs, so that only pages of the gateway are possible.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NextPage {
    /// The upstream of the page; `None` for the list of accounts.
    pub(crate) upstream: Option<String>,
    /// The sealed query of the link, if the page was opened with one.
    pub(crate) link: Option<String>,
}

impl NextPage {
    /// Relative URL of the page, as seen from the callback of logins.
    pub(crate) fn url(&self) -> String {
        let Some(upstream) = &self.upstream else {
            return "../../connect".to_owned();
        };
        let mut url = format!("../../connect/{upstream}");
        if let Some(link) = &self.link {
            url.push_str("?for=");
            url.extend(form_urlencoded::byte_serialize(link.as_bytes()));
        }
        url
    }

    /// The same URL with a mark that the browser has just logged in, by which a lost cookie is noticed.
    pub(crate) fn url_after_login(&self) -> String {
        let url = self.url();
        let mark = if url.contains('?') { '&' } else { '?' };
        format!("{url}{mark}login=done")
    }
}

impl BegunLogin {
    /// The cookie of the login that sends `state`.
    pub(super) fn cookie(&self, sealer: &Sealer, state: &str) -> Option<HeaderValue> {
        let plain = serde_json::to_vec(self).ok()?;
        let value = sealer.seal(SealPurpose::ConnectLogin, state.as_bytes(), &plain);
        cookies::set(&cookie_name(state)?, &value, LIFE)
    }

    /// The login with this `state`, if this browser started it in the last ten minutes.
    pub(super) fn find(
        headers: &HeaderMap,
        (sealer, clock): (&Sealer, &SharedClock),
        state: &str,
    ) -> Option<Self> {
        let value = cookies::find(headers, &cookie_name(state)?)?;
        let plain = sealer.open(SealPurpose::ConnectLogin, state.as_bytes(), value)?;
        let login: Self = serde_json::from_slice(&plain).ok()?;
        (clock.now().as_secs() < login.ends).then_some(login)
    }
}

/// Removes the cookie of the login that sent `state`.
pub(super) fn removed(state: &str) -> Option<HeaderValue> {
    cookies::removed(&cookie_name(state)?)
}

/// The cookie's name; `None` where `state` does not have the gateway's form.
fn cookie_name(state: &str) -> Option<String> {
    let beginning = state.get(..NAMED).filter(|_| is_state(state))?;
    Some(format!("{PREFIX}{beginning}"))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use http::header::COOKIE;

    use super::*;
    use crate::clock::TestClock;

    fn state(first: char) -> String {
        format!("{first}{}", "s".repeat(42))
    }

    fn begun(clock: &TestClock) -> BegunLogin {
        use crate::clock::Clock as _;
        BegunLogin {
            issuer: "https://as.test".to_owned(),
            nonce: "n".to_owned(),
            verifier: "v".to_owned(),
            resource: None,
            next: NextPage::default(),
            keeps: None,
            ends: (clock.now() + LIFE).as_secs(),
        }
    }

    #[test]
    fn login_is_found_with_its_own_state_for_ten_minutes() {
        let clock = TestClock::at(1_800_000_000);
        let shared: SharedClock = Arc::<TestClock>::clone(&clock);
        let sealer = Sealer::new(&[]).unwrap();
        let cookie = begun(&clock).cookie(&sealer, &state('a')).unwrap();
        let pair = cookie
            .to_str()
            .unwrap()
            .split(';')
            .next()
            .unwrap()
            .to_owned();
        let brought = |pair: &str| HeaderMap::from_iter([(COOKIE, pair.parse().unwrap())]);
        let find = |headers: &HeaderMap, state: &str| {
            BegunLogin::find(headers, (&sealer, &shared), state).map(|login| login.issuer)
        };
        let own = brought(&pair);
        assert_eq!(find(&own, &state('a')).as_deref(), Some("https://as.test"));
        // Also under the name that belongs to another state.
        let moved = brought(&pair.replacen("login-a", "login-b", 1));
        assert_eq!(find(&moved, &state('b')), None);
        assert_eq!(find(&own, &state('b')), None);
        assert_eq!(find(&HeaderMap::new(), &state('a')), None);
        clock.advance(LIFE);
        assert_eq!(find(&own, &state('a')), None);
    }

    #[test]
    fn state_of_another_form_is_nobodys() {
        for text in [
            "",
            "short",
            &"é".repeat(22),
            &format!("{};", "s".repeat(42)),
        ] {
            assert_eq!(cookie_name(text), None, "{text}");
        }
    }

    #[test]
    fn next_page_is_one_of_ours() {
        let all = NextPage::default();
        assert_eq!(all.url(), "../../connect");
        assert_eq!(all.url_after_login(), "../../connect?login=done");
        let mut one = NextPage {
            upstream: Some("up".to_owned()),
            link: None,
        };
        assert_eq!(one.url(), "../../connect/up");
        one.link = Some("a&b".to_owned());
        assert_eq!(
            one.url_after_login(),
            "../../connect/up?for=a%26b&login=done"
        );
    }
}
