//! `[auth]`.

use super::reader::Section;
use super::types::{Auth, AuthMode, Issuer, ScopeImplies, ToolScope};
use super::units;

/// Shown when nobody said who may call.
const SNIPPETS: &str = "\
either ask every caller for a token:
    [auth]
    mode = \"oauth\"
    [[auth.issuers]]
    issuer = \"https://auth.example.com\"
or, on a loopback address only, let everybody in:
    [auth]
    mode = \"none\"";

/// Reads `[auth]`.
pub(super) fn read(s: &mut Section<'_>) -> Auth {
    let mode = s
        .key(
            "mode",
            "\"oauth\": every request carries a bearer token of an issuer below. \"none\": \
             everybody is the one principal `anonymous`; only with loopback addresses.",
        )
        .required_choice(
            "oauth",
            &[("oauth", AuthMode::OAuth), ("none", AuthMode::None)],
        );
    if !s.has("mode") {
        s.error(
            "",
            "who may call is not said: `mode` is required",
            Some(SNIPPETS),
        );
    }
    Auth {
        // Whatever stands in for a wrong mode is never used: the file is refused.
        mode: mode.unwrap_or(AuthMode::OAuth),
        required_scopes: s
            .key(
                "required_scopes",
                "Scopes that a token needs on every endpoint that names none of its own; \
                 published in the metadata. For example [\"mcp:tools\"].",
            )
            .list(&[], units::scope),
        issuers: s.tables(
            "issuers",
            "An authorization server whose tokens are accepted.",
            issuer,
        ),
        tool_scopes: s.tables(
            "tool_scopes",
            "Scopes that single tools need: a call without them gets 403 insufficient_scope. The \
             tool stays listed.",
            tool_scope,
        ),
        scope_implies: s.tables(
            "scope_implies",
            "A scope that stands for others as well, for authorization servers that grant only \
             the broader one.",
            scope_implies,
        ),
    }
}

fn scope_implies(s: &mut Section<'_>) -> ScopeImplies {
    let scope = s
        .key("scope", "Whoever has this scope has those below too.")
        .required("mcp:admin");
    if let Err(what) = units::scope(&scope) {
        s.error("scope", what, None);
    }
    ScopeImplies {
        scope,
        implies: s
            .key(
                "implies",
                "The scopes that come with it, and what they imply.",
            )
            .required_list("mcp:tools", units::scope),
    }
}

fn issuer(s: &mut Section<'_>) -> Issuer {
    let issuer = s
        .key(
            "issuer",
            "The issuer identifier, byte for byte as in its tokens; keys are found by RFC 8414, \
             then OpenID discovery. Plain http for loopback hosts only.",
        )
        .required("https://auth.example.com");
    let jwks_file = s
        .key("jwks_file", "A JWK set to use instead of discovery.")
        .path("keys.json");
    if let Some(Err(error)) = jwks_file.as_ref().map(std::fs::File::open) {
        s.error("jwks_file", format!("cannot be read: {error}"), None);
    }
    Issuer {
        issuer,
        jwks_file,
        audiences: s
            .key(
                "audiences",
                "Audiences accepted on every endpoint besides its resource identifier. Gives up \
                 the separation of endpoints: a token for one is then good for all.",
            )
            .list(&[], |text| Ok(text.to_owned())),
        subject_claim: s
            .key(
                "subject_claim",
                "The claim that identifies the caller, when it is not `sub`.",
            )
            .optional("sub"),
    }
}

fn tool_scope(s: &mut Section<'_>) -> ToolScope {
    ToolScope {
        tools: s
            .key(
                "tools",
                "Tool names as the upstream spells them; * matches any run.",
            )
            .required_list("admin_*", |text| Ok(text.to_owned())),
        upstreams: s
            .key("upstreams", "Only on these upstreams; empty means on all.")
            .list(&[], |text| Ok(text.to_owned())),
        scopes: s
            .key("scopes", "All of these are needed.")
            .required_list("mcp:admin", units::scope),
    }
}
