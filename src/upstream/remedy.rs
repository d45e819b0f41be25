//! Remedies of the operator for a [`LinkError`]: for the log and `/status`, never for callers.

use std::borrow::Cow;

use super::carrier::http::login::UpstreamLogin;
use super::error::LinkError;
use super::link::legacy::handshake;

/// The remedy for a path without an MCP endpoint.
const CORRECT_PATH: &str = "correct the path of `url`: it has to be that of the MCP endpoint";

/// The remedy for a 401.
fn token_wanted(login: Option<&UpstreamLogin>) -> String {
    if login.is_some_and(|login| login.has_account) {
        return "look what the upstream wants a token for: `resource` and `issuer` of \
            [upstreams.<name>.auth] say what it is given"
            .to_owned();
    }
    let verb = if login.is_some_and(|login| login.sends_token) {
        "renew the token in"
    } else {
        "set"
    };
    let issuer = login.and_then(UpstreamLogin::issuer);
    let issuer = issuer.map_or_else(String::new, |issuer| {
        format!("; the upstream names {issuer} as its issuer")
    });
    format!("{verb} `headers.Authorization` of the upstream{issuer}")
}

impl LinkError {
    /// The remedy for the operator. `login` is that of the upstream, over HTTP.
    pub(super) fn remedy(&self, login: Option<&UpstreamLogin>) -> Option<Cow<'static, str>> {
        let text = match self {
            Self::Status(401) => return Some(Cow::Owned(token_wanted(login))),
            Self::Account(failure) => return Some(Cow::Owned(failure.remedy().to_owned())),
            Self::Status(403) if login.is_some_and(|login| login.has_account) => {
                "let the upstream allow this to its account, or write the scopes that it wants into `scopes` of \
                 [upstreams.<name>.auth]"
            }
            Self::Status(403) => {
                "let the upstream allow this: it refuses the token of `headers.Authorization`, or the address"
            }
            Self::Unreachable(reached) => reached.remedy?,
            Self::Status(300..=399) => "write the address that it leads to into `url`",
            Self::Status(404 | 405) => CORRECT_PATH,
            Self::Handshake(why) if handshake::is_missing_path(why) => CORRECT_PATH,
            Self::Status(500..) => "look into the upstream's own log",
            // Without a login the upstream is a child, which has no `url`.
            Self::Handshake(_) | Self::Invalid(_) if login.is_none() => {
                "look into what the program wrote, and whether `command` and `args` start an MCP server; `era` \
                 can say which revision it speaks"
            }
            Self::Handshake(_) => {
                "look into the upstream's own log; `era` can say which revision it speaks"
            }
            Self::Status(_) | Self::Invalid(_) => {
                "look whether `url` is that of an MCP endpoint; `era` and `transport` can say what it speaks"
            }
            Self::Busy { .. } => {
                "raise the upstream's own limit of requests; callers are told when to come back"
            }
            Self::TooLarge { .. } => {
                "let the upstream send less at once, or raise `limits.upstream_message`"
            }
            Self::SessionGone => {
                "let the upstream keep its sessions; several replicas need requests of a session sent to the same one"
            }
            Self::Garbled { .. } => {
                "let the program write its banner to standard error: standard output is for messages alone"
            }
            Self::Timeout => {
                "look whether the upstream does anything; `connect_timeout` says how long it may take to open"
            }
            Self::Unopened { .. } | Self::Lost { .. } => {
                "look into what the upstream wrote at its end"
            }
            _ => return None,
        };
        Some(Cow::Borrowed(text))
    }

    /// The remedy for the failure of a call that had reached the upstream.
    pub(super) fn remedy_of_call(
        &self,
        login: Option<&UpstreamLogin>,
    ) -> Option<Cow<'static, str>> {
        match self {
            Self::Timeout => Some(Cow::Borrowed(
                "look what the call waits for; `idle_timeout` says how long the upstream may be silent, \
                 `total_timeout` how long a call may take",
            )),
            other => other.remedy(login),
        }
    }
}
