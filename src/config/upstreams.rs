//! `[upstreams.<name>]`.

use std::time::Duration;

use super::account_types::UpstreamAuth;
use super::accounts;
use super::carriers;
use super::endpoints;
use super::reader::{ConfigSection, read_keys};
use super::report::join;
use super::upstream_types::{CarrierConfig, EraPin, Isolation, UpstreamConfig};

/// Name of the sample of a stdio child in the reference.
pub(super) const STDIO_SAMPLE: &str = "files";
/// Name of the sample of an HTTP service in the reference.
pub(super) const HTTP_SAMPLE: &str = "tracker";

/// Reads one `[upstreams.<name>]`; `None` unless exactly one of `command` and `url` is given.
pub(super) fn read(name: &str, s: &mut ConfigSection<'_>) -> Option<UpstreamConfig> {
    let only = |sample| !s.is_recording() || name == sample;
    let (with_stdio, with_http) = (only(STDIO_SAMPLE), only(HTTP_SAMPLE));
    let stdio = if with_stdio { carriers::stdio(s) } else { None };
    let stdio_keys = s.take_group();
    let http = if with_http { carriers::http(s) } else { None };
    let http_keys = s.take_group();
    let auth = if with_http {
        let is_child = s.has("command") && !s.has("url");
        let read = |s: &mut ConfigSection<'_>| accounts::read(s, is_child);
        s.optional_table("auth", accounts::ABOUT, read).flatten()
    } else {
        None
    };
    let carrier = match (stdio, http) {
        (Some(stdio), None) => {
            misplaced(s, &http_keys, "is for upstreams that are reached by `url`");
            Some(CarrierConfig::Stdio(stdio))
        }
        (None, Some(http)) => {
            misplaced(
                s,
                &stdio_keys,
                "is for upstreams that are started by `command`",
            );
            Some(CarrierConfig::Http(http))
        }
        (Some(_), Some(_)) => {
            let hint = Some("an upstream has one of them");
            s.error("url", "stands beside `command`", hint);
            None
        }
        (None, None) => {
            let is_wrong = |name| s.report.is_wrong(&join(&s.path, name));
            if !is_wrong("url") && !is_wrong("command") {
                let hint =
                    "command = \"…\" starts a stdio server, url = \"…\" reaches one over HTTP";
                s.error("", "needs `command` or `url`", Some(hint));
            }
            None
        }
    };
    if !with_stdio {
        return None;
    }
    common(name, s, (carrier, auth))
}

fn common(
    name: &str,
    s: &mut ConfigSection<'_>,
    (carrier, auth): (Option<CarrierConfig>, Option<UpstreamAuth>),
) -> Option<UpstreamConfig> {
    Some(read_keys!(s => UpstreamConfig {
        /// Whose traffic may share one upstream session or child: that of one session, of one principal, or of all
        /// callers.
        isolation: choice(Isolation::Session),
        /// Which protocol to speak to it: what it speaks, and each client's own era where it speaks both; or one era
        /// for all clients, or exactly this revision.
        era: choice(EraPin::Auto),
        /// With era = "auto": how long to believe that it speaks a legacy revision, or no other than a modern one,
        /// before asking again.
        era_recheck: duration("1h"),
        /// Whether it is shown on /mcp.
        merged: flag(true),
        /// Whether /mcp/<name> is served.
        direct: flag(true),
        required_scopes: endpoints::scopes(s),
        login_scopes: endpoints::login_scopes(s),
        audiences: endpoints::audiences(s),
        connect_timeout: connect_timeout(s, carrier.as_ref()),
        /// Without any sign of life of a call; stands still while it asks.
        idle_timeout: duration("60s"),
        /// For a whole call.
        total_timeout: duration("30m"),
        /// For one question to the client.
        ask_timeout: duration("10m"),
        /// How long a call whose client can be asked waits behind another such call, where questions do not say whose
        /// they are and the caps allow no further child; then it fails as busy. Also how long a question to a modern
        /// client waits while `limits.parked_per_principal` or another cap on parked calls is reached; then the client
        /// is not asked. Both within `total_timeout` of the call. The default is that of `ask_timeout`: by then the
        /// questions before have their answers, also where people give them.
        ask_wait: duration_or_zero("10m"),
        /// Questions that one of its sessions may have open, of any revision before 2026-07-28; further ones are
        /// refused.
        open_questions: count(64),
        /// Whether sessions go on that had a child, an HTTP+SSE stream or a socket at it when their replica was lost:
        /// with a new one, which knows nothing of before. Without, they end.
        restartable: flag(false),
        /// Tools, as the upstream spells them, that are called again, once, when their reply was lost: calling them
        /// twice must be as good as once. With [cluster] also where the replica that ran the call is lost, if another
        /// one had passed it on or its event stream had begun.
        retry_safe: texts(),
        /// Whether a tool that it runs only as a task is run for clients that know no tasks: the call waits for the end
        /// of the task, within total_timeout. And whether clients of 2025-11-25 may call its tools as tasks, where it
        /// has those of the extension.
        run_tasks: flag(true),
        /// Whether clients are told that its lists of tools, prompts and resources may change, and when they do. false:
        /// for clients that fail at `list_changed`.
        list_changed: flag(true),
        ; name: name.to_owned(), carrier: carrier?, auth
    }))
}

fn connect_timeout(s: &mut ConfigSection<'_>, carrier: Option<&CarrierConfig>) -> Duration {
    let default = match carrier {
        Some(CarrierConfig::Http(_)) => "10s",
        Some(CarrierConfig::Stdio(_)) | None => "30s",
    };
    read_keys!(s =>
        /// For opening a session with it, handshake included. A child's counts from its start; its wait for a place is
        /// bounded by stdio.spawn_wait. Default with url: 10s.
        connect_timeout: duration(default))
}

fn misplaced(s: &ConfigSection<'_>, keys: &[&'static str], what: &str) {
    for key in keys {
        if s.has(key) {
            let hint = Some("leave it out, or reach the upstream in that way");
            s.error(key, what, hint);
        }
    }
}
