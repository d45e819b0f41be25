//! The command line.

use clap::{Parser, Subcommand, ValueEnum};
use serde_json::{Value, json};

/// A scriptable MCP server.
#[derive(Debug, Clone, Parser)]
#[command(name = "stub-upstream")]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent command line switches"
)]
pub(crate) struct Options {
    /// How to be reached.
    #[command(subcommand)]
    pub(crate) mode: Mode,
    /// The newest revision spoken.
    #[arg(long, global = true, default_value = "2025-11-25")]
    pub(crate) revision: String,
    /// The eras spoken; the newest legacy revision is `--revision`.
    #[arg(long, global = true, value_enum, default_value = "legacy")]
    pub(crate) era: Era,
    /// How `server/discover` is answered: `silent`, `exit`, or an HTTP status and, after a space, a
    /// body; an object gets the id of the request.
    #[arg(long, global = true, value_name = "SCRIPT")]
    pub(crate) probe: Option<String>,
    /// How often.
    #[arg(long, global = true, value_name = "N", default_value_t = u64::MAX)]
    pub(crate) probe_times: u64,
    /// How `initialize` is answered, in the same way, or `cut`: the connection breaks.
    #[arg(long, global = true, value_name = "SCRIPT")]
    pub(crate) handshake: Option<String>,
    /// How often.
    #[arg(long, global = true, value_name = "N", default_value_t = u64::MAX)]
    pub(crate) handshake_times: u64,
    /// How a request of an unknown session is answered, in the same way.
    #[arg(long, global = true, value_name = "SCRIPT")]
    pub(crate) unknown_session: Option<String>,
    /// HTTP: never answer posts of this method.
    #[arg(long, global = true, value_name = "METHOD")]
    pub(crate) deaf_to: Option<String>,
    /// stdio: the first request decides which of both eras the process speaks.
    #[arg(long, global = true)]
    pub(crate) first_decides: bool,
    /// Take calls as tasks of 2025-11-25, and list tools that need or may be one.
    #[arg(long, global = true)]
    pub(crate) tasks: bool,
    /// Speak only the configured revision, whatever the client offers.
    #[arg(long, global = true)]
    pub(crate) only: bool,
    /// Directory where `linger` records the states of its calls.
    #[arg(long, global = true, value_name = "DIR")]
    pub(crate) ledger: Option<std::path::PathBuf>,
    /// When a POST is answered by an event stream.
    #[arg(long, global = true, value_enum, default_value = "auto")]
    pub(crate) sse: Sse,
    /// Event streams carry ids and can be resumed with `Last-Event-ID`.
    #[arg(long, global = true)]
    pub(crate) resumable: bool,
    /// On 2025-11-25 sessions, close each POST stream after its priming event, asking to come back
    /// after so many milliseconds; implies `--resumable`.
    #[arg(long, global = true, value_name = "MS")]
    pub(crate) poll: Option<u64>,
    /// How long the modern lists may be kept.
    #[arg(long, global = true, value_name = "MS", default_value_t = 1000)]
    pub(crate) ttl: u64,
    /// Cache scope of the modern lists.
    #[arg(long, global = true, value_name = "SCOPE", default_value = "private")]
    pub(crate) scope: String,
    /// Issue no session ids.
    #[arg(long, global = true)]
    pub(crate) stateless: bool,
    /// Answer GET with 405.
    #[arg(long, global = true)]
    pub(crate) no_get: bool,
    /// List exactly this many tools: `echo` and fillers, instead of the special ones.
    #[arg(long, global = true, value_name = "N")]
    pub(crate) tools: Option<usize>,
    /// Entries per list page.
    #[arg(long, global = true, value_name = "N")]
    pub(crate) list_page_size: Option<usize>,
    /// The second page's cursor is the empty string.
    #[arg(long, global = true)]
    pub(crate) empty_cursor: bool,
    /// Number of cursors to refuse before the first is accepted.
    #[arg(long, global = true, value_name = "N", default_value_t = 0)]
    pub(crate) stale_cursors: u64,
    /// Milliseconds before any list is answered.
    #[arg(long, global = true, value_name = "MS", default_value_t = 0)]
    pub(crate) list_delay: u64,
    /// Declare no `listChanged`.
    #[arg(long, global = true)]
    pub(crate) no_listchanged: bool,
    /// List a template of `https:` URLs too, which can be read anyway.
    #[arg(long, global = true)]
    pub(crate) web_items: bool,
    /// Show an icon from here on each entry of each list and on the server itself; may stand there often.
    #[arg(long = "icon", global = true, value_name = "SRC")]
    pub(crate) icons: Vec<String>,
    /// Declare no prompts.
    #[arg(long, global = true)]
    pub(crate) no_prompts: bool,
    /// Leave this capability undeclared, but serve its methods: `logging` or `resources.subscribe`, say; may be
    /// repeated.
    #[arg(long, global = true, value_name = "CAPABILITY")]
    pub(crate) undeclared: Vec<String>,
    /// Hold `subscriptions/listen`, `resources/subscribe` and GET streams, neither acknowledged nor refused, until
    /// `admit_listens` is called; notices sent before are lost.
    #[arg(long, global = true)]
    pub(crate) hold_listens: bool,
    /// Refuse every log level.
    #[arg(long, global = true)]
    pub(crate) refuse_levels: bool,
    /// Declare these extensions, and show them.
    #[arg(long, global = true, value_name = "JSON")]
    pub(crate) extensions: Option<String>,
    /// Go on after SIGTERM.
    #[arg(long, global = true)]
    pub(crate) ignore_sigterm: bool,
    /// Go on after end of input.
    #[arg(long, global = true)]
    pub(crate) ignore_eof: bool,
    /// Exit with code 3 at once, after a line on stderr.
    #[arg(long, global = true)]
    pub(crate) crash_on_start: bool,
    /// Exit with code 4 at the first unknown method (as some servers do on a probe).
    #[arg(long, global = true)]
    pub(crate) exit_on_unknown: bool,
    /// Milliseconds before reading or listening.
    #[arg(long, global = true, value_name = "MS", default_value_t = 0)]
    pub(crate) slow_start: u64,
    /// HTTP+SSE: announce this URL for posts.
    #[arg(long, global = true, value_name = "URL")]
    pub(crate) announce: Option<String>,
    /// HTTP+SSE: open the event stream in answer to a POST too.
    #[arg(long, global = true)]
    pub(crate) streams_to_posts: bool,
    /// WebSocket: send messages in binary frames.
    #[arg(long, global = true)]
    pub(crate) binary_frames: bool,
    /// HTTP: end when stdin ends.
    #[arg(long, global = true)]
    pub(crate) until_eof: bool,
    /// Worker threads.
    #[arg(long, global = true, default_value_t = 1)]
    pub(crate) threads: usize,
    /// `serverInfo.name`.
    #[arg(long, global = true, default_value = "stub-upstream")]
    pub(crate) name: String,
}

/// How to be reached.
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum Mode {
    /// One JSON-RPC message per line on stdin and stdout.
    Stdio,
    /// Streamable HTTP on loopback at `/mcp`; the URL is printed as one JSON line when ready.
    Http {
        /// 0 picks a free port.
        #[arg(long, default_value_t = 0)]
        port: u16,
    },
    /// HTTP+SSE of 2024-11-05 on loopback: `/sse` and `/messages`.
    Sse {
        /// 0 picks a free port.
        #[arg(long, default_value_t = 0)]
        port: u16,
    },
    /// WebSocket on loopback at `/ws`.
    Ws {
        /// 0 picks a free port.
        #[arg(long, default_value_t = 0)]
        port: u16,
    },
}

/// The eras spoken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Era {
    /// Up to 2025-11-25.
    Legacy,
    /// 2026-07-28.
    Modern,
    /// Both, told apart by the body.
    Dual,
}

/// When a POST is answered by an event stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Sse {
    /// For every request.
    Always,
    /// If messages precede the reply.
    Auto,
    /// Never: messages before the reply are sent on the GET stream.
    Never,
}

impl Options {
    /// The `serverInfo`.
    pub(crate) fn server_info(&self) -> Value {
        self.with_icons(json!({"name": self.name, "version": "1.0.0"}))
    }

    /// An object with the icons that are to be shown, if there are any.
    pub(crate) fn with_icons(&self, mut object: Value) -> Value {
        let icons: Vec<_> = self.icons.iter().map(|src| json!({"src": src})).collect();
        if let Some(members) = object.as_object_mut().filter(|_| !icons.is_empty()) {
            members.insert("icons".to_owned(), icons.into());
        }
        object
    }

    /// Whether event streams carry ids and are kept.
    pub(crate) fn keeps_streams(&self) -> bool {
        self.resumable || self.poll.is_some()
    }
}
