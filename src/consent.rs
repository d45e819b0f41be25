//! Links to the connect pages. A link names its principal; the page refuses the links of another principal.

use std::time::Duration;

use url::Url;

use crate::call::OwnerKey;
use crate::clock::SharedClock;
use crate::seal::{SealPurpose, Sealer};

/// How long a link is valid.
const LIFE: Duration = Duration::from_hours(1);
/// Characters of a program's name that a page shows.
const MAX_PROGRAM: usize = 80;
/// Bytes of the owner in a link.
const OWNER_LEN: usize = 32;
/// Longest list of scopes in a link, in bytes: the link is part of a URL, and of the cookie of a login that leads to it.
const MAX_SCOPES: usize = 512;

/// Contents of a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConsentLink {
    /// The principal whose call asked.
    pub owner: OwnerKey,
    /// The calling program, by the name that it gives itself.
    pub program: String,
    /// What the account lacks for the call. The page may be opened at another replica, to which the upstream has not said
    /// it.
    pub lacking: Option<LackingScopes>,
}

/// Scopes that an upstream demands of an account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LackingScopes {
    /// The connection that lacks these scopes, by its number: a later connection may have them.
    pub connection: i64,
    /// The scopes, each without white space. Empty in a link if they have more than 512 bytes together.
    pub scopes: Vec<String>,
}

/// The URL of the page of `upstream` for a call of `link.owner`. Its query is sealed.
#[must_use]
pub fn consent_url(
    (sealer, clock): (&Sealer, &SharedClock),
    public_url: &Url,
    upstream: &str,
    link: &ConsentLink,
) -> String {
    let mut plain = link.owner.bytes().to_vec();
    plain.extend_from_slice(&(clock.now() + LIFE).as_secs().to_be_bytes());
    let lacking = link.lacking.as_ref();
    let connection = lacking.map_or(0, |lacking| lacking.connection);
    let scopes = lacking.map(|lacking| lacking.scopes.join(" "));
    let scopes = scopes.filter(|scopes| scopes.len() <= MAX_SCOPES);
    let scopes = scopes.unwrap_or_default();
    plain.extend_from_slice(&connection.to_be_bytes());
    let length = u16::try_from(scopes.len()).unwrap_or_default();
    plain.extend_from_slice(&length.to_be_bytes());
    plain.extend_from_slice(scopes.as_bytes());
    let program: String = link.program.chars().take(MAX_PROGRAM).collect();
    plain.extend_from_slice(program.as_bytes());
    let handle = sealer.seal(SealPurpose::ConnectLink, upstream.as_bytes(), &plain);
    let base = public_url.as_str().trim_end_matches('/');
    format!("{base}/connect/{upstream}?for={handle}")
}

/// Reads the query of a link to the page of `upstream`; `None` where it is older than an hour, sealed by another process,
/// or forged.
#[must_use]
pub fn open_link(
    (sealer, clock): (&Sealer, &SharedClock),
    upstream: &str,
    handle: &str,
) -> Option<ConsentLink> {
    let plain = sealer.open(SealPurpose::ConnectLink, upstream.as_bytes(), handle)?;
    let (owner, rest) = plain.split_first_chunk::<OWNER_LEN>()?;
    let (ends, rest) = rest.split_first_chunk()?;
    let (connection, rest) = rest.split_first_chunk()?;
    let (length, rest) = rest.split_first_chunk()?;
    let (scopes, program) = rest.split_at_checked(u16::from_be_bytes(*length).into())?;
    let scopes = std::str::from_utf8(scopes).ok()?.split_ascii_whitespace();
    let scopes: Vec<_> = scopes.map(str::to_owned).collect();
    let program = std::str::from_utf8(program).ok()?.to_owned();
    let is_over = clock.now().as_secs() >= u64::from_be_bytes(*ends);
    (!is_over).then_some(ConsentLink {
        owner: OwnerKey::from_bytes(*owner),
        program,
        lacking: (!scopes.is_empty()).then(|| LackingScopes {
            connection: i64::from_be_bytes(*connection),
            scopes,
        }),
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::call::Principal;
    use crate::clock::TestClock;

    fn sealed(url: &str) -> &str {
        url.split_once("?for=").unwrap().1
    }

    #[test]
    fn link_says_for_whom_it_was_made_for_an_hour_and_for_one_upstream() {
        let clock = TestClock::at(1_800_000_000);
        let shared: SharedClock = Arc::<TestClock>::clone(&clock);
        let sealer = Sealer::new(&[]).unwrap();
        let link = ConsentLink {
            owner: Principal::anonymous().owner(),
            program: "editor".to_owned(),
            lacking: None,
        };
        let public = Url::parse("https://mcp.example.com/tools/").unwrap();
        let url = consent_url((&sealer, &shared), &public, "up", &link);
        assert!(url.starts_with("https://mcp.example.com/tools/connect/up?for="));
        let open = |upstream| open_link((&sealer, &shared), upstream, sealed(&url));
        assert_eq!(open("up"), Some(link));
        assert_eq!(open("other"), None);
        clock.advance(LIFE);
        assert_eq!(open("up"), None);
    }

    #[test]
    fn link_brings_the_scopes_that_the_account_lacks_up_to_a_bound() {
        let shared: SharedClock = TestClock::at(1_800_000_000);
        let sealer = Sealer::new(&[]).unwrap();
        let public = Url::parse("https://mcp.example.com").unwrap();
        let opened = |scopes: &[String]| {
            let link = ConsentLink {
                owner: Principal::anonymous().owner(),
                program: "é".repeat(100),
                lacking: Some(LackingScopes {
                    connection: -7,
                    scopes: scopes.to_vec(),
                }),
            };
            let url = consent_url((&sealer, &shared), &public, "up", &link);
            let opened = open_link((&sealer, &shared), "up", sealed(&url)).unwrap();
            assert_eq!(opened.program, "é".repeat(MAX_PROGRAM));
            opened.lacking
        };
        for scopes in [
            vec!["notes:write".to_owned(), "x".to_owned()],
            vec!["x".repeat(MAX_SCOPES)],
        ] {
            let connection = -7;
            let lacking = Some(LackingScopes { connection, scopes });
            assert_eq!(opened(&lacking.as_ref().unwrap().scopes), lacking);
        }
        assert_eq!(opened(&["x".repeat(MAX_SCOPES + 1)]), None);
        assert_eq!(opened(&[]), None);
    }
}
