//! Permissions: the decision about one request on one upstream, as a value.
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
    /// The text for the caller, which tells no more than the caller may know.
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
mod tests;
