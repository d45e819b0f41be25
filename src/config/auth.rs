//! `[auth]`.

use std::time::Duration;

use super::auth_types::{
    AuthConfig, AuthMode, IntrospectedTokens, IntrospectionAuth, IntrospectionConfig, IssuerConfig,
    ScopeImplies, ToolScope,
};
use super::declarations::ShownKey;
use super::entry::BESIDE;
use super::files;
use super::reader::{ConfigSection, read_keys};
use super::units;
use crate::secret::Secret;

/// Shown when `auth.mode` is missing.
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
pub(super) fn read(s: &mut ConfigSection<'_>) -> AuthConfig {
    read_keys!(s => let {
        /// "oauth": every request carries a bearer token of an issuer below. "none": everybody is the one principal
        /// `anonymous`; only with loopback addresses.
        mode: required_choice(AuthMode::OAuth),
    });
    if !s.has("mode") {
        let what = "who may call is not said: `mode` is required";
        s.error("", what, Some(SNIPPETS));
    }
    read_keys!(s => AuthConfig {
        /// Scopes that a token needs on every endpoint that names none of its own; published in the metadata. For
        /// example ["mcp:tools"].
        required_scopes: list(units::scope),
        /// Scopes that the 401 challenge and the metadata tell clients to ask for at login, besides required ones:
        /// those of tool_scopes too, where the authorization server holds a client to the scopes it registered with
        /// (Keycloak), or for clients that cannot step up. A token still needs only the required ones.
        login_scopes: list(units::scope),
        ;
        keeps_tokens: false,
        // The substitute for a wrong mode is never used: a file with errors is refused.
        mode: mode.unwrap_or(AuthMode::OAuth),
        issuers: s.tables(
            "issuers",
            "An authorization server whose tokens are accepted.",
            issuer,
        ),
        tool_scopes: s.tables(
            "tool_scopes",
            "Scopes that single tools need: a call without them gets 403 insufficient_scope. The \
             tool stays listed. Names are compared without regard to case and to blanks around them, \
             since an upstream may do so; tools that no list shows stay callable.",
            tool_scope,
        ),
        scope_implies: s.tables(
            "scope_implies",
            "A scope that stands for others as well, for authorization servers that grant only \
             the broader one.",
            scope_implies,
        ),
    })
}

fn scope_implies(s: &mut ConfigSection<'_>) -> ScopeImplies {
    read_keys!(s => let {
        /// Whoever has this scope has those below too.
        scope: required("mcp:admin"),
        /// The scopes that come with it, and what they imply.
        implies: required_list("mcp:tools", units::scope),
    });
    if !scope.is_empty()
        && let Err(what) = units::scope(&scope)
    {
        s.error("scope", what, None);
    }
    ScopeImplies { scope, implies }
}

fn issuer(s: &mut ConfigSection<'_>) -> IssuerConfig {
    read_keys!(s => let {
        /// The issuer identifier, byte for byte as in its tokens; keys are found by RFC 8414, then OpenID discovery.
        /// Plain http for loopback hosts only.
        issuer: required("https://auth.example.com"),
        /// A JWK set to use instead of discovery.
        jwks_file: path("keys.json"),
    });
    if let Some(Err(what)) = jwks_file.as_deref().map(files::key_set) {
        s.error("jwks_file", what, Some(BESIDE));
    }
    read_keys!(s => IssuerConfig {
        /// Audiences accepted on every endpoint besides its resource identifier. Gives up the separation of endpoints:
        /// a token for one is then good for all.
        audiences: texts(),
        /// The claim that identifies the caller, when it is not `sub`.
        subject_claim: optional("sub"),
        introspection: introspection(s),
        ; issuer, jwks_file
    })
}

/// An introspection answer is valid no longer than a verified token.
const MAX_INTROSPECTION_AGE: Duration = Duration::from_mins(5);

fn introspection(s: &mut ConfigSection<'_>) -> Option<IntrospectionConfig> {
    let shown = ShownKey::Unset(
        "{ client_id = \"gateway\", client_secret = { file = \"secret\" }, tokens = \"opaque\", \
         max_age = \"30s\" }"
            .to_owned(),
    );
    read_keys!(s =>
        /// Ask this issuer about tokens (RFC 7662): `tokens` = "opaque" asks about those that are no JWTs, "all" about
        /// good JWTs too, so that a revoked one ends. An answer counts for `max_age`, 5m at most, a refusal for 10s at
        /// most. `endpoint` is found by discovery when it is not there. `auth_method` says how the credentials are
        /// sent: "client_secret_basic" or "client_secret_post"; by default what the metadata offers, and HTTP Basic to
        /// an `endpoint` that is set here. Only one issuer may have this: an opaque token does not say whose it is.
        introspection: inline(shown, introspection_keys))
}

fn introspection_keys(t: &mut ConfigSection<'_>) -> IntrospectionConfig {
    read_keys!(t => let {
        /// Where to ask.
        endpoint: url(""),
        /// The gateway's secret there.
        client_secret: secret(),
        /// How long an answer counts.
        max_age: duration("30s"),
    });
    if let Some(url) = &endpoint
        && url.scheme() != "https"
        && !units::is_loopback(url)
    {
        let what = "must be https; plain http is for loopback hosts only";
        t.error("endpoint", what, None);
    }
    let hint = Some("client_secret = \"${SECRET}\" or { file = \"…\" }");
    match &client_secret {
        Some(secret) if secret.expose().is_empty() => t.error("client_secret", "is empty", hint),
        None if !t.has("client_secret") => t.error("client_secret", "is required", hint),
        _ => {}
    }
    if max_age > MAX_INTROSPECTION_AGE {
        t.error("max_age", "may be 5m at most", None);
    }
    read_keys!(t => IntrospectionConfig {
        /// The gateway there.
        client_id: required("gateway"),
        /// How the credentials are sent.
        auth_method: choice(IntrospectionAuth::Auto),
        /// Which tokens are asked about.
        tokens: choice(IntrospectedTokens::Opaque),
        ; endpoint, client_secret: client_secret.unwrap_or_else(|| Secret::new("")), max_age
    })
}

fn tool_scope(s: &mut ConfigSection<'_>) -> ToolScope {
    read_keys!(s => ToolScope {
        /// Tool names as the upstream spells them; * matches any run.
        tools: required_list("admin_*", |text| Ok(text.to_owned())),
        /// Only on these upstreams; empty means on all.
        upstreams: texts(),
        /// All of these are needed.
        scopes: required_list("mcp:admin", units::scope),
    })
}
