//! Where a token or key goes: `header` and `prefix` of `[upstreams.<name>.auth]`, and `env` for a child.

use http::{HeaderName, HeaderValue};

use super::account_types::TokenPlace;
use super::carriers;
use super::reader::{ConfigSection, read_keys};
use super::report::join;

/// Reads `header` and `prefix`, of a child `env`; `None` where they cannot be used.
pub(super) fn read(s: &mut ConfigSection<'_>, is_child: bool) -> Option<TokenPlace> {
    let name = header(s);
    read_keys!(s => let {
        /// What stands before the token or key.
        prefix: text("Bearer "),
        /// Instead, and required, with `command`: the variable of the child's environment that holds the token or key.
        env: optional("TRACKER_TOKEN"),
    });
    if HeaderValue::try_from(prefix.as_str()).is_err() {
        s.error("prefix", "holds characters that no header can carry", None);
    }
    if !is_child {
        if env.is_some() && !s.is_recording() {
            let hint = Some("`header` says where the token goes");
            let what = "is for upstreams that are started by `command`";
            s.error("env", what, hint);
        }
        let name = name?;
        return Some(TokenPlace::Header { name, prefix });
    }
    for key in ["header", "prefix"] {
        if s.has(key) {
            let hint = Some("`env` names the variable that holds the token");
            s.error(key, "is for upstreams that are reached by `url`", hint);
        }
    }
    match env {
        Some(variable) if carriers::is_variable(&variable) => Some(TokenPlace::Variable(variable)),
        Some(_) => {
            s.error("env", carriers::NO_VARIABLE, None);
            None
        }
        None => {
            if !s.report.is_wrong(&join(&s.path, "env")) {
                let hint = "the variable that the program reads, as in env = \"TRACKER_TOKEN\"";
                s.error("", "needs `env`", Some(hint));
            }
            None
        }
    }
}

fn header(s: &mut ConfigSection<'_>) -> Option<HeaderName> {
    let name = s
        .key("header", "The header that carries the token or key.")
        .text("Authorization");
    match HeaderName::try_from(name.as_str()) {
        Ok(name) if carriers::is_own(name.as_str()) => {
            s.error("header", "is set by the gateway itself", None);
            None
        }
        Ok(name) => Some(name),
        Err(_) => {
            let hint = "letters, digits and hyphens, as in Authorization";
            s.error("header", "not a header name", Some(hint));
            None
        }
    }
}
