//! An endpoint: one URL path, its own OAuth resource, showing one or more upstreams.

use std::sync::Arc;

use url::Url;

use crate::config::{Config, PrefixRule};

/// Where the metadata of a protected resource stands. Spec: RFC 9728 §3.
pub const WELL_KNOWN: &str = "/.well-known/oauth-protected-resource";

/// An endpoint: the upstreams shown on a path, and the scopes required there. Built once from the configuration.
#[derive(Debug, Clone)]
pub struct Endpoint {
    /// `mcp` for the merged endpoint, else the last path segment.
    pub name: Arc<str>,
    /// The path below `public_url`: `/mcp` or `/mcp/<name>`.
    pub path: String,
    /// The resource identifier: `public_url` + path, without a trailing slash. Spec: RFC 9728 §1.2.
    pub resource: String,
    /// URL of this endpoint's metadata, path-aware. Spec: RFC 9728 §3.1.
    pub metadata_url: String,
    /// Upstreams shown, in configured order.
    pub upstreams: Vec<Arc<str>>,
    /// Whether names and URIs pass unchanged.
    pub pure: bool,
    /// Scopes that every request needs.
    pub required_scopes: Vec<String>,
    /// Further scopes that clients are told to ask for at login; none is needed.
    pub login_scopes: Vec<String>,
    /// Audiences accepted besides `resource`.
    pub audiences: Vec<String>,
    /// Issuers accepted; empty means all configured.
    pub issuers: Vec<String>,
    /// Tools shown, as (upstream, pattern); empty means all.
    pub tools: Vec<(String, String)>,
}

impl Endpoint {
    /// An internal endpoint for `upstream` without a URL.
    #[must_use]
    pub fn unreachable(upstream: &Arc<str>) -> Self {
        Self {
            name: "".into(),
            path: String::new(),
            resource: String::new(),
            metadata_url: String::new(),
            upstreams: vec![Arc::clone(upstream)],
            pure: true,
            required_scopes: Vec::new(),
            login_scopes: Vec::new(),
            audiences: Vec::new(),
            issuers: Vec::new(),
            tools: Vec::new(),
        }
    }

    /// What begins the seal context of everything that is sealed for clients of this endpoint.
    #[must_use]
    pub fn seal_context(&self) -> Vec<u8> {
        let mut context = self.name.as_bytes().to_vec();
        context.push(0);
        context
    }

    /// Where this endpoint stands below the path `base` of a further transport: `base` itself for
    /// the merged endpoint, else `base/<name>`.
    #[must_use]
    pub fn place(&self, base: &str) -> String {
        if &*self.name == "mcp" {
            base.to_owned()
        } else {
            format!("{base}/{}", self.name)
        }
    }

    /// Scopes that a client requests at login: `required_scopes`, then `login_scopes`, without duplicates.
    #[must_use]
    pub fn scopes_at_login(&self) -> Vec<String> {
        let mut all = self.required_scopes.clone();
        for scope in &self.login_scopes {
            if !all.contains(scope) {
                all.push(scope.clone());
            }
        }
        all
    }

    /// The same endpoint below the path `base` of a further transport: a resource of its own, as
    /// clients compare the identifier with the URL they use. Tokens for the endpoint are taken
    /// there too.
    #[must_use]
    pub fn below(&self, base: &str, public_url: &Url) -> Self {
        let path = self.place(base);
        let mut audiences = self.audiences.clone();
        audiences.push(self.resource.clone());
        Self {
            resource: format!("{}{path}", public_url.as_str().trim_end_matches('/')),
            metadata_url: metadata_url(public_url, &path),
            path,
            audiences,
            ..self.clone()
        }
    }
}

/// Every endpoint of a checked configuration: `/mcp`, then the direct ones in the order of
/// their upstreams, then the named ones by name.
#[must_use]
pub fn endpoints(config: &Config) -> Vec<Endpoint> {
    let mut out = Vec::new();
    let merged = &config.mcp;
    if merged.enabled && !merged.upstreams.is_empty() {
        let mut endpoint = bare(config, None, &merged.upstreams);
        endpoint.pure &= merged.prefix != PrefixRule::Always;
        endpoint.audiences.clone_from(&merged.audiences);
        endpoint.required_scopes = or_else(&merged.required_scopes, &config.auth.required_scopes);
        endpoint.login_scopes = or_else(&merged.login_scopes, &config.auth.login_scopes);
        out.push(endpoint);
    }
    for upstream in config.upstreams.iter().filter(|upstream| upstream.direct) {
        let name = &upstream.name;
        let mut endpoint = bare(config, Some(name), std::slice::from_ref(name));
        endpoint.audiences.clone_from(&upstream.audiences);
        endpoint.required_scopes = or_else(&upstream.required_scopes, &config.auth.required_scopes);
        endpoint.login_scopes = or_else(&upstream.login_scopes, &config.auth.login_scopes);
        out.push(endpoint);
    }
    for (name, named) in &config.endpoints {
        let mut endpoint = bare(config, Some(name), &named.upstreams);
        endpoint.audiences.clone_from(&named.audiences);
        endpoint.required_scopes = or_else(&named.required_scopes, &config.auth.required_scopes);
        endpoint.login_scopes = or_else(&named.login_scopes, &config.auth.login_scopes);
        endpoint.issuers.clone_from(&named.issuers);
        let pair = |tool: &String| {
            tool.split_once(':')
                .map(|(upstream, pattern)| (upstream.to_owned(), pattern.to_owned()))
        };
        endpoint.tools = named.tools.iter().filter_map(pair).collect();
        out.push(endpoint);
    }
    out
}

fn bare(config: &Config, name: Option<&str>, upstreams: &[String]) -> Endpoint {
    let path = name.map_or_else(|| "/mcp".to_owned(), |name| format!("/mcp/{name}"));
    let public_url = &config.server.public_url;
    Endpoint {
        name: name.unwrap_or("mcp").into(),
        resource: format!("{}{path}", public_url.as_str().trim_end_matches('/')),
        metadata_url: metadata_url(public_url, &path),
        path,
        upstreams: upstreams
            .iter()
            .map(|upstream| upstream.as_str().into())
            .collect(),
        pure: upstreams.len() == 1,
        required_scopes: Vec::new(),
        login_scopes: Vec::new(),
        audiences: Vec::new(),
        issuers: Vec::new(),
        tools: Vec::new(),
    }
}

/// The well-known path goes between the host and the path of the resource identifier, which
/// includes the path of `public_url`. Spec: RFC 9728 §3.1.
fn metadata_url(public_url: &Url, path: &str) -> String {
    let origin = public_url.origin().ascii_serialization();
    let base = public_url.path().trim_end_matches('/');
    format!("{origin}{WELL_KNOWN}{base}{path}")
}

/// The scopes of an endpoint, or where it names none those of `[auth]`.
fn or_else(own: &[String], auth: &[String]) -> Vec<String> {
    if own.is_empty() { auth } else { own }.to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Vec<Endpoint> {
        let head = "[auth]\nmode = \"oauth\"\nrequired_scopes = [\"mcp:tools\"]\n\
            [[auth.issuers]]\nissuer = \"https://auth.example.com\"\n";
        let config = crate::config::parse(&format!("{head}{text}"), "g.toml", &|_| None);
        endpoints(&config.expect("a valid configuration"))
    }

    const TWO: &str = "[upstreams.files]\ncommand = \"x\"\n\
        [upstreams.git]\ncommand = \"y\"\nrequired_scopes = [\"git\"]\naudiences = [\"old\"]\n";

    #[test]
    fn each_upstream_has_a_pure_endpoint_beside_the_merged_one() {
        let all = of(TWO);
        let seen: Vec<_> = all
            .iter()
            .map(|e| (&*e.path, e.upstreams.len(), e.pure))
            .collect();
        assert_eq!(
            seen,
            [
                ("/mcp", 2, false),
                ("/mcp/files", 1, true),
                ("/mcp/git", 1, true)
            ]
        );
    }

    #[test]
    fn own_scopes_replace_the_common_ones() {
        let all = of(TWO);
        assert_eq!(all[1].required_scopes, ["mcp:tools"]);
        assert_eq!(all[2].required_scopes, ["git"]);
        assert_eq!(all[2].audiences, ["old"]);
    }

    #[test]
    fn the_merged_endpoint_of_one_upstream_is_pure_unless_prefixes_are_wanted() {
        let one = "[upstreams.files]\ncommand = \"x\"\n";
        assert!(of(one)[0].pure);
        assert!(!of(&format!("{one}[mcp]\nprefix = \"always\"\n"))[0].pure);
    }

    #[test]
    fn what_is_switched_off_is_not_there() {
        let all = of(
            "[mcp]\nenabled = false\n[upstreams.files]\ncommand = \"x\"\ndirect = false\n\
             [upstreams.git]\ncommand = \"x\"\n",
        );
        let names: Vec<_> = all.iter().map(|endpoint| &*endpoint.name).collect();
        assert_eq!(names, ["git"]);
    }

    #[test]
    fn a_named_endpoint_selects_upstreams_tools_and_issuers() {
        let all = of(&format!(
            "{TWO}[endpoints.dev]\nupstreams = [\"git\"]\ntools = [\"git:log_*\"]\n\
             issuers = [\"https://auth.example.com\"]\n"
        ));
        let dev = &all[3];
        assert_eq!(
            (&*dev.name, &*dev.path, dev.pure),
            ("dev", "/mcp/dev", true)
        );
        assert_eq!(dev.tools, [("git".to_owned(), "log_*".to_owned())]);
        assert_eq!(dev.issuers, ["https://auth.example.com"]);
    }

    #[test]
    fn below_another_path_an_endpoint_is_a_resource_of_its_own() {
        let url = Url::parse("https://mcp.example.com/tools").unwrap();
        let all = of(TWO);
        let (mcp, files) = (all[0].below("/sse", &url), all[1].below("/sse", &url));
        assert_eq!(mcp.path, "/sse");
        assert_eq!(mcp.resource, "https://mcp.example.com/tools/sse");
        assert_eq!(files.path, "/sse/files");
        assert_eq!(files.name, all[1].name);
        assert_eq!(files.audiences, [all[1].resource.clone()]);
        assert_eq!(
            files.metadata_url,
            "https://mcp.example.com/.well-known/oauth-protected-resource/tools/sse/files"
        );
    }

    // Spec: RFC 9728 §3.1
    #[test]
    fn metadata_stands_between_host_and_path() {
        let files = &of(&format!(
            "[server]\npublic_url = \"https://mcp.example.com\"\n{TWO}"
        ))[1];
        assert_eq!(files.resource, "https://mcp.example.com/mcp/files");
        assert_eq!(
            files.metadata_url,
            "https://mcp.example.com/.well-known/oauth-protected-resource/mcp/files"
        );
    }

    // Spec: RFC 9728 §3.1
    #[test]
    fn a_path_of_the_public_url_is_part_of_both() {
        let server = "[server]\npublic_url = \"https://example.com:8443/tools/\"\n";
        let mcp = &of(&format!("{server}{TWO}"))[0];
        assert_eq!(mcp.resource, "https://example.com:8443/tools/mcp");
        assert_eq!(
            mcp.metadata_url,
            "https://example.com:8443/.well-known/oauth-protected-resource/tools/mcp"
        );
    }
}
