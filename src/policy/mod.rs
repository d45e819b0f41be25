//! Who may do what: the decision about one request on one upstream, as a value.
//!
//! Scopes that every request of an endpoint needs are `auth`'s; here are the tools an endpoint
//! shows, and the scopes that single tools need (SPEC A-11).

mod pattern;
pub mod rate;
mod spelling;

use crate::call::Principal;
use crate::config;
use crate::endpoint::Endpoint;

use self::spelling::folded;

/// The method that tools are called with.
const CALL: &str = "tools/call";

/// The rules of the configuration.
#[derive(Debug)]
pub struct ToolPolicy {
    rules: Vec<ScopeRule>,
}

/// One of `auth.tool_scopes`.
#[derive(Debug)]
struct ScopeRule {
    /// Its place in the configuration.
    name: String,
    of: config::ToolScope,
    /// Its tools as [`spelling::folded`] spells them.
    tools: Vec<String>,
}

/// Proof that a request was allowed. Only [`ToolPolicy::decide`] constructs a `Permit`, so that a step with a
/// `Permit` parameter cannot be reached without the decision.
#[derive(Debug)]
pub struct Permit(());

/// A request that is not allowed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Denial {
    /// The rule that decided, by its place in the configuration.
    pub rule: String,
    /// Scopes that together would have allowed the request; empty if no scope would.
    pub missing_scopes: Vec<String>,
    /// Whether the caller must not learn that the thing exists.
    pub hidden: bool,
}

impl Denial {
    /// What the caller is told: no more than it may know.
    #[must_use]
    pub fn public(&self) -> String {
        if self.hidden {
            "there is no such tool".to_owned()
        } else {
            format!(
                "this call needs the scope {}",
                self.missing_scopes.join(" ")
            )
        }
    }
}

impl ToolPolicy {
    /// Takes the rules of a checked configuration.
    #[must_use]
    pub fn new(config: &config::AuthConfig) -> Self {
        let rule = |(position, of): (usize, &config::ToolScope)| ScopeRule {
            name: format!("auth.tool_scopes[{position}]"),
            of: of.clone(),
            tools: of
                .tools
                .iter()
                .map(|one| folded(one).into_owned())
                .collect(),
        };
        Self {
            rules: config.tool_scopes.iter().enumerate().map(rule).collect(),
        }
    }

    /// Decides about one request; `name` is the tool as its upstream spells it.
    ///
    /// # Errors
    /// The request must not reach the upstream. Every missing scope of every rule is named.
    pub fn decide(
        &self,
        principal: &Principal,
        endpoint: &Endpoint,
        upstream: &str,
        method: &str,
        name: Option<&str>,
    ) -> Result<Permit, Denial> {
        if method != CALL || (self.rules.is_empty() && endpoint.tools.is_empty()) {
            return Ok(Permit(()));
        }
        let name = name.unwrap_or_default();
        if is_shown(endpoint, upstream, name) {
            self.check_scopes(principal, upstream, name)
        } else {
            Err(Denial {
                rule: format!("endpoints.{}.tools", endpoint.name),
                missing_scopes: Vec::new(),
                hidden: true,
            })
        }
    }

    fn check_scopes(
        &self,
        principal: &Principal,
        upstream: &str,
        tool: &str,
    ) -> Result<Permit, Denial> {
        let folded = folded(tool);
        let mut deciding: Option<&str> = None;
        let mut missing: Vec<String> = Vec::new();
        for rule in self
            .rules
            .iter()
            .filter(|rule| rule.concerns(upstream, &folded))
        {
            for scope in &rule.of.scopes {
                if !principal.scopes().contains(scope) && !missing.contains(scope) {
                    deciding.get_or_insert(&rule.name);
                    missing.push(scope.clone());
                }
            }
        }
        match deciding {
            None => Ok(Permit(())),
            Some(rule) => Err(Denial {
                rule: rule.to_owned(),
                missing_scopes: missing,
                hidden: false,
            }),
        }
    }

    /// Whether a list on `endpoint` may show `tool`, as its upstream spells it. The same for every
    /// principal: lists that were made once are kept and shown to others.
    ///
    /// What the endpoint does not select is hidden, by the rule that refuses the call. A tool that
    /// only wants more scopes *is* shown: a client learns of the scopes by calling it, and a tool
    /// that it cannot see it can never step up for.
    #[must_use]
    pub fn shows_tool(&self, endpoint: &Endpoint, upstream: &str, tool: &str) -> bool {
        is_shown(endpoint, upstream, tool)
    }
}

impl ScopeRule {
    /// Whether it is about a tool, spelled as [`spelling::folded`] spells it: an upstream that ignores
    /// case or trims what it is sent runs the same tool under other spellings.
    fn concerns(&self, upstream: &str, folded: &str) -> bool {
        let all = self.of.upstreams.is_empty();
        (all || self.of.upstreams.iter().any(|name| name == upstream))
            && self.tools.iter().any(|one| pattern::matches(one, folded))
    }
}

fn is_shown(endpoint: &Endpoint, upstream: &str, tool: &str) -> bool {
    endpoint.tools.is_empty()
        || endpoint
            .tools
            .iter()
            .any(|(of, pattern)| of == upstream && pattern::matches(pattern, tool))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn policy(rules: &[(&[&str], &[&str], &[&str])]) -> ToolPolicy {
        let owned = |all: &[&str]| all.iter().map(|one| (*one).to_owned()).collect::<Vec<_>>();
        let rule = |(tools, upstreams, scopes): &(&[&str], &[&str], &[&str])| config::ToolScope {
            tools: owned(tools),
            upstreams: owned(upstreams),
            scopes: owned(scopes),
        };
        ToolPolicy::new(&config::AuthConfig {
            keeps_tokens: false,
            mode: config::AuthMode::OAuth,
            required_scopes: Vec::new(),
            login_scopes: Vec::new(),
            issuers: Vec::new(),
            tool_scopes: rules.iter().map(rule).collect(),
            scope_implies: Vec::new(),
        })
    }

    fn principal(scopes: &[&str]) -> Principal {
        let scopes = scopes.iter().map(|scope| (*scope).to_owned()).collect();
        Principal::new("i", "s", "c", scopes, None)
    }

    fn endpoint(tools: &[(&str, &str)]) -> Endpoint {
        let owned = |(upstream, tool): &(&str, &str)| ((*upstream).to_owned(), (*tool).to_owned());
        Endpoint {
            name: "dev".into(),
            path: "/mcp/dev".to_owned(),
            resource: "https://gw.test/mcp/dev".to_owned(),
            metadata_url: String::new(),
            upstreams: vec!["files".into(), "git".into()],
            pure: false,
            required_scopes: Vec::new(),
            login_scopes: Vec::new(),
            audiences: Vec::new(),
            issuers: Vec::new(),
            tools: tools.iter().map(owned).collect(),
        }
    }

    const ADMIN: (&[&str], &[&str], &[&str]) = (&["admin_*"], &[], &["mcp:admin"]);

    #[rstest]
    #[case::no_rule_concerns_it("tools/call", "read", &[], true)]
    #[case::scope_missing("tools/call", "admin_reset", &["mcp:tools"], false)]
    #[case::scope_there("tools/call", "admin_reset", &["mcp:admin"], true)]
    #[case::longer_scope("tools/call", "admin_reset", &["mcp:administrator"], false)]
    #[case::not_a_tool("prompts/get", "admin_reset", &[], true)]
    fn a_tool_needs_the_scopes_of_its_rule(
        #[case] method: &str,
        #[case] name: &str,
        #[case] scopes: &[&str],
        #[case] allowed: bool,
    ) {
        let decision = policy(&[ADMIN]).decide(
            &principal(scopes),
            &endpoint(&[]),
            "files",
            method,
            Some(name),
        );
        assert_eq!(decision.is_ok(), allowed);
    }

    // SPEC A-11
    #[rstest]
    #[case("ADMIN_wipe")]
    #[case(" admin_wipe")]
    #[case("admin_wipe\n")]
    #[case("\u{feff}Admin_Wipe\u{a0}")]
    fn scope_is_needed_however_the_name_is_spelled(#[case] name: &str) {
        let policy = policy(&[ADMIN]);
        let decide = |scopes: &[&str]| {
            let caller = principal(scopes);
            policy.decide(&caller, &endpoint(&[]), "files", CALL, Some(name))
        };
        assert!(decide(&["mcp:tools"]).is_err());
        assert!(decide(&["mcp:admin"]).is_ok());
    }

    #[test]
    fn rule_holds_however_the_operator_spells_it() {
        let policy = policy(&[(&["Admin_*"], &[], &["mcp:admin"])]);
        let caller = principal(&[]);
        let decide = |name| policy.decide(&caller, &endpoint(&[]), "files", CALL, Some(name));
        assert!(decide("Admin_wipe").is_err() && decide("admin_wipe").is_err());
        // In no list and under no rule: Apps call such tools.
        assert!(decide("unlisted").is_ok());
    }

    // SPEC A-11
    #[test]
    fn all_missing_scopes_of_all_rules_are_named_at_once() {
        let policy = policy(&[
            (&["read"], &[], &["x"]),
            ADMIN,
            (&["*_reset"], &["files"], &["danger", "mcp:admin"]),
        ]);
        let denial = policy
            .decide(
                &principal(&["x"]),
                &endpoint(&[]),
                "files",
                CALL,
                Some("admin_reset"),
            )
            .expect_err("two scopes are missing");
        assert_eq!(
            denial,
            Denial {
                rule: "auth.tool_scopes[1]".to_owned(),
                missing_scopes: vec!["mcp:admin".to_owned(), "danger".to_owned()],
                hidden: false,
            }
        );
        assert_eq!(
            denial.public(),
            "this call needs the scope mcp:admin danger"
        );
    }

    #[test]
    fn a_rule_for_one_upstream_leaves_others_alone() {
        let policy = policy(&[(&["*"], &["files"], &["mcp:files"])]);
        let ask = |upstream| {
            policy.decide(
                &principal(&[]),
                &endpoint(&[]),
                upstream,
                CALL,
                Some("read"),
            )
        };
        assert!(ask("files").is_err());
        assert!(ask("git").is_ok());
    }

    #[test]
    fn a_call_without_a_name_is_decided_as_the_empty_name() {
        let policy = policy(&[(&["*"], &[], &["mcp:all"])]);
        let decision = policy.decide(&principal(&[]), &endpoint(&[]), "files", CALL, None);
        assert!(decision.is_err());
    }

    #[rstest]
    #[case::selected("files", "read_file", true)]
    #[case::not_selected("files", "write_file", false)]
    #[case::selected_elsewhere("git", "read_file", false)]
    fn what_the_endpoint_does_not_select_is_neither_shown_nor_callable(
        #[case] upstream: &str,
        #[case] tool: &str,
        #[case] shown: bool,
    ) {
        let (policy, endpoint) = (policy(&[]), endpoint(&[("files", "read_*")]));
        let caller = principal(&[]);
        assert_eq!(policy.shows_tool(&endpoint, upstream, tool), shown);
        match policy.decide(&caller, &endpoint, upstream, CALL, Some(tool)) {
            Ok(_) => assert!(shown),
            Err(denial) => {
                assert!(!shown && denial.hidden && denial.missing_scopes.is_empty());
                assert_eq!(denial.rule, "endpoints.dev.tools");
                assert_eq!(denial.public(), "there is no such tool");
            }
        }
    }

    #[test]
    fn a_tool_that_needs_more_scopes_is_still_shown() {
        assert!(policy(&[ADMIN]).shows_tool(&endpoint(&[]), "files", "admin_reset"));
    }
}
