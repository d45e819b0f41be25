//! The scopes that a person is asked for, and what goes with them. Spec: SPEC B-11

use super::super::server_metadata::ServerMetadata;
pub(super) use crate::grants::login::OFFLINE;

/// Google's issuer identifier.
const GOOGLE: &str = "https://accounts.google.com";

/// The scopes of an authorization: `found`, those requested for the present grant (`had`) and those a call was refused for
/// (`wider`), and `offline_access` where the server `supports` it. `is_fixed`: `found` is configured, and the
/// upstream adds none.
pub(super) fn union(
    found: &[String],
    (had, wider): (&[String], &[String]),
    is_fixed: bool,
    supports: &[String],
) -> Vec<String> {
    let mut scopes: Vec<String> = Vec::new();
    let offline = supports.iter().filter(|scope| *scope == OFFLINE);
    let further = had.iter().chain(wider).filter(|_| !is_fixed);
    for scope in found.iter().chain(further).chain(offline) {
        if !scopes.contains(scope) {
            scopes.push(scope.clone());
        }
    }
    scopes
}

/// Further parameters with which `server` gives a refresh token for `scopes`.
pub(super) fn for_refresh_token(
    server: &ServerMetadata,
    scopes: &[String],
) -> &'static [(&'static str, &'static str)] {
    if server.issuer == GOOGLE {
        // Google has no scope for refresh tokens, and gives none to a person who has agreed before.
        return &[("access_type", "offline"), ("prompt", "consent")];
    }
    // Spec: OpenID Connect Core 1.0 §11
    if server.consent.is_openid && scopes.iter().any(|one| one == OFFLINE) {
        return &[("prompt", "consent")];
    }
    &[]
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use url::Url;

    use super::*;

    #[rstest]
    #[case::google(GOOGLE, true, "a", &[("access_type", "offline"), ("prompt", "consent")])]
    #[case::openid("https://as.test", true, "a offline_access", &[("prompt", "consent")])]
    #[case::openid_without_it("https://as.test", true, "a", &[])]
    #[case::oauth_alone("https://as.test", false, "a offline_access", &[])]
    fn server_is_asked_for_a_refresh_token(
        #[case] issuer: &str,
        #[case] is_openid: bool,
        #[case] scopes: &str,
        #[case] expected: &[(&str, &str)],
    ) {
        let endpoint = Url::parse("https://as.test/token").unwrap();
        let mut server = ServerMetadata::remembered(issuer, endpoint, None);
        server.consent.is_openid = is_openid;
        assert_eq!(for_refresh_token(&server, &list(scopes)), expected);
    }

    fn list(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[rstest]
    #[case::found("a b", "", "", false, "", "a b")]
    #[case::none("", "", "", false, "", "")]
    #[case::with_those_that_it_has("a", "a c", "", false, "", "a c")]
    #[case::wider("a", "a", "d", false, "", "a d")]
    #[case::offline("a", "", "", false, "a b offline_access", "a offline_access")]
    #[case::offline_once(
        "a offline_access",
        "offline_access",
        "",
        false,
        "offline_access",
        "a offline_access"
    )]
    #[case::fixed("a", "b", "c", true, "offline_access", "a offline_access")]
    fn scopes_are_the_union_of_old_and_wanted_ones(
        #[case] found: &str,
        #[case] had: &str,
        #[case] wider: &str,
        #[case] is_fixed: bool,
        #[case] supports: &str,
        #[case] expected: &str,
    ) {
        let (had, wider) = (list(had), list(wider));
        let asked = union(&list(found), (&had, &wider), is_fixed, &list(supports));
        assert_eq!(asked, list(expected));
    }
}
