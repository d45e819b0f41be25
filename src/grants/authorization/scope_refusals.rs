//! `ScopeRefusals`: an authorization server may hold a client to the scopes that its registration names, and to default
//! scopes where it names none; Ory Hydra does. Where it refuses scopes (`invalid_scope`), the next registration names them.
//! Spec: RFC 7591 §2
//!
//! Not named from the start: a registration serves all upstreams of its issuer, so the scopes of one would narrow the
//! others, and servers may refuse a registration for the scopes that it names.

use std::time::Duration;

use moka::sync::Cache;

use super::super::server_metadata::ServerMetadata;
use super::scopes::{self, OFFLINE};
use crate::vault::RegistrationRecord;

/// Sets of scopes whose refusals are remembered.
const MAX_SETS: u64 = 1000;
/// For how long.
const REMEMBERED: Duration = Duration::from_hours(24);
/// Registrations of an issuer that name scopes; the vault keeps eight, so these displace none of those without.
const MAX_NAMING: usize = 6;

/// An issuer, and a sorted set of scopes without `offline_access`.
type RefusedSet = (String, Vec<String>);

/// The scopes that servers refused to registrations of the gateway.
#[derive(Debug)]
pub(super) struct ScopeRefusals {
    /// `false` where the server made no registration that names the scopes.
    refused: Cache<RefusedSet, bool>,
}

impl Default for ScopeRefusals {
    fn default() -> Self {
        let refused = Cache::builder().max_capacity(MAX_SETS);
        Self {
            refused: refused.time_to_live(REMEMBERED).build(),
        }
    }
}

impl ScopeRefusals {
    /// Remembers that `issuer` refused the `asked` scopes to a registration. Returns whether that is news.
    pub(super) fn note(&self, issuer: &str, asked: &[String]) -> bool {
        let is_news = self.is_news(issuer, asked);
        if is_news {
            self.refused.insert(set(issuer, asked), true);
        }
        is_news
    }

    /// Whether it is not known that `issuer` refuses the `asked` scopes to a registration.
    pub(super) fn is_news(&self, issuer: &str, asked: &[String]) -> bool {
        let set = set(issuer, asked);
        !set.1.is_empty() && !self.refused.contains_key(&set)
    }

    /// Remembers that `issuer` makes no registration that names the `asked` scopes.
    pub(super) fn give_up(&self, issuer: &str, asked: &[String]) {
        self.refused.insert(set(issuer, asked), false);
    }

    /// The scopes that the next registration at `server` names, those of the newest of the `known` ones included; `None` where
    /// it names none.
    pub(super) fn to_name(
        &self,
        server: &ServerMetadata,
        asked: &[String],
        known: &[RegistrationRecord],
    ) -> Option<Vec<String>> {
        if self.refused.get(&set(&server.issuer, asked)) != Some(true) {
            return None;
        }
        let naming: Vec<_> = known.iter().filter(|one| !one.scopes.is_empty()).collect();
        if naming.len() >= MAX_NAMING {
            return None;
        }
        let newest = naming.first();
        let before = newest.map_or(&[][..], |newest| newest.scopes.as_slice());
        let listed = &server.consent.scopes;
        Some(scopes::union(asked, (before, &[]), false, listed))
    }
}

/// Whether a registration names the `asked` scopes. `offline_access` does not count: a refusal of it has its own remedy.
pub(super) fn names_all(record: &RegistrationRecord, asked: &[String]) -> bool {
    let mut asked = asked.iter().filter(|one| *one != OFFLINE).peekable();
    asked.peek().is_some() && asked.all(|one| record.scopes.contains(one))
}

fn set(issuer: &str, asked: &[String]) -> RefusedSet {
    let asked = asked.iter().filter(|one| *one != OFFLINE);
    let mut asked: Vec<String> = asked.cloned().collect();
    asked.sort_unstable();
    (issuer.to_owned(), asked)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use url::Url;

    use super::*;

    const ISSUER: &str = "https://as.test";

    fn list(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    fn record(scopes: &str) -> RegistrationRecord {
        RegistrationRecord {
            issuer: ISSUER.to_owned(),
            client_id: "client".to_owned(),
            client_secret: None,
            auth_method: "none".to_owned(),
            redirect_uri: None,
            secret_ends: None,
            scopes: list(scopes),
        }
    }

    fn server() -> ServerMetadata {
        let endpoint = Url::parse("https://as.test/token").unwrap();
        let mut server = ServerMetadata::remembered(ISSUER, endpoint, None);
        server.consent.scopes = list("a offline_access");
        server
    }

    #[test]
    fn refused_scopes_are_named_with_those_before() {
        let (refusals, server) = (ScopeRefusals::default(), server());
        let named = |known: &[RegistrationRecord]| refusals.to_name(&server, &list("b a"), known);
        assert_eq!(named(&[]), None);
        assert!(refusals.note(ISSUER, &list("a b offline_access")));
        assert!(!refusals.note(ISSUER, &list("b a")));
        assert_eq!(named(&[record("")]), Some(list("b a offline_access")));
        let known = [record(""), record("c"), record("d")];
        assert_eq!(named(&known), Some(list("b a c offline_access")));
        // A hostile upstream can name scopes without end.
        let full = vec![record("c"); MAX_NAMING];
        assert_eq!(named(&full), None);
        refusals.give_up(ISSUER, &list("a b"));
        assert_eq!(named(&[]), None);
        assert!(!refusals.note(ISSUER, &list("a b")));
    }

    #[test]
    fn refusal_is_of_one_issuer_and_of_these_scopes() {
        let (refusals, server) = (ScopeRefusals::default(), server());
        assert!(refusals.note("https://other.test", &list("a")));
        assert!(refusals.note(ISSUER, &list("b")));
        assert_eq!(refusals.to_name(&server, &list("a"), &[]), None);
        assert!(!refusals.note(ISSUER, &list("offline_access")));
    }

    #[rstest]
    #[case::all("a b", "a b", true)]
    #[case::some("a b", "b", true)]
    #[case::one_more("a", "a b", false)]
    #[case::offline("a", "a offline_access", true)]
    #[case::none_named("", "a", false)]
    #[case::none_asked("a", "", false)]
    #[case::offline_alone("a offline_access", "offline_access", false)]
    fn registration_names_what_is_asked(
        #[case] named: &str,
        #[case] asked: &str,
        #[case] expected: bool,
    ) {
        assert_eq!(names_all(&record(named), &list(asked)), expected);
    }
}
