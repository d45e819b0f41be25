//! The features tried in every cell, and their outcomes.

mod basics;
mod endings;
mod handles;
mod notices;
mod questions;
mod tasks;

use std::sync::Arc;

use super::cells::Cell;
use super::client::Client;
use super::world::World;

/// Outcome of a feature.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Outcome {
    /// As if both sides spoke the same revision.
    Works,
    /// A tool result that says `isError`.
    ToolError,
    /// A JSON-RPC error with this code.
    Error(i64),
    /// An HTTP refusal.
    Status(u16),
    /// The upstream's question is answered with -32601, and the call goes on.
    Refused,
    /// The upstream's question is answered with `cancel`, and the call goes on.
    Cancel,
    /// The upstream hears of the cancellation.
    Cancelled,
    /// The call goes on.
    RunsOn,
    /// Nothing comes.
    Dropped,
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Works => "works",
            Self::ToolError => "`isError`",
            Self::Error(code) => return write!(f, "`{code}`"),
            Self::Status(status) => return write!(f, "HTTP {status}"),
            Self::Refused => "refused",
            Self::Cancel => "`cancel`",
            Self::Cancelled => "cancelled",
            Self::RunsOn => "runs on",
            Self::Dropped => "dropped",
        })
    }
}

/// Makes the list of features: its name in the code and in words.
macro_rules! features {
    ($($feature:ident $words:literal,)*) => {
        /// A feature of the protocol, exercised by client and server together.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub(super) enum Feature { $($feature,)* }

        impl Feature {
            pub(super) const ALL: &[Self] = &[$(Self::$feature,)*];

            pub(super) fn words(self) -> &'static str {
                match self { $(Self::$feature => $words,)* }
            }
        }
    };
}

features! {
    Lists "list tools, prompts, resources and templates",
    Pages "list over several pages, one cursor being `\"\"`",
    Call "call a tool",
    Read "read a resource",
    Prompt "get a prompt",
    Complete "complete an argument",
    Progress "progress of a call",
    Logs "log messages of a call, after asking for them",
    ListChanged "notice of a changed list",
    ResourceUpdated "notice of an updated resource",
    Form "elicitation by form",
    Url "elicitation by URL",
    Declined "elicitation that the user declines",
    Two "two elicitations at once",
    Sampling "sampling",
    SamplingRefused "sampling that the user refuses",
    Roots "roots",
    Task "call a tool as a task and fetch its result",
    CancelNotice "cancel with `notifications/cancelled`",
    CancelClose "close the connection of a call",
    CancelEnd "end the session during a call",
    NoResource "read a resource that does not exist",
    NoTool "call a tool that does not exist",
    NoMethod "a method that does not exist",
    Crash "the upstream dies during a call",
    Unauthorized "the upstream answers 401",
    Forgotten "the upstream loses its session or connection, next call",
    Slow "the upstream is silent longer than `idle_timeout`",
    StolenSession "another user sends the session id",
    StolenEvent "another user sends an event id",
    StolenUrl "another user posts to the message URL",
    StolenCursor "another user sends a cursor",
    StolenState "another user sends a request state",
    StolenTask "another user sends a task id",
}

/// World, cell and client where a feature is tried.
#[derive(Clone)]
pub(super) struct Place {
    pub(super) world: Arc<World>,
    pub(super) cell: Cell,
    /// The cell's own client.
    pub(super) client: Arc<Client>,
}

impl Place {
    /// Opens the cell for its own user.
    pub(super) async fn open(world: &Arc<World>, cell: Cell) -> Self {
        let client = connect(world, cell, "user").await;
        Self {
            world: Arc::clone(world),
            cell,
            client: Arc::new(client),
        }
    }

    /// Another client of the same kind, of this user.
    async fn other(&self, who: &str) -> Client {
        connect(&self.world, self.cell, who).await
    }

    /// A key of the ledger, unique to this cell.
    fn key(&self, what: &str) -> String {
        self.cell.somebody(what)
    }
}

async fn connect(world: &World, cell: Cell, who: &str) -> Client {
    let actor = world.gw.principal(&cell.somebody(who));
    Client::open(actor, &world.gw.url, cell).await
}

/// Tries a feature.
pub(super) async fn observe(feature: Feature, place: Place) -> Outcome {
    match feature {
        Feature::Lists => basics::lists(&place).await,
        Feature::Pages => basics::pages(&place).await,
        Feature::Call => basics::call(&place).await,
        Feature::Read => basics::read(&place).await,
        Feature::Prompt => basics::prompt(&place).await,
        Feature::Complete => basics::complete(&place).await,
        Feature::NoResource => basics::no_resource(&place).await,
        Feature::NoTool => basics::no_tool(&place).await,
        Feature::NoMethod => basics::no_method(&place).await,
        Feature::Progress => notices::progress(&place).await,
        Feature::Logs => notices::logs(&place).await,
        Feature::ListChanged => notices::list_changed(&place).await,
        Feature::ResourceUpdated => notices::resource_updated(&place).await,
        Feature::Form => questions::form(&place).await,
        Feature::Url => questions::url(&place).await,
        Feature::Declined => questions::declined(&place).await,
        Feature::Two => questions::two(&place).await,
        Feature::Sampling => questions::sampling(&place).await,
        Feature::SamplingRefused => questions::sampling_refused(&place).await,
        Feature::Roots => questions::roots(&place).await,
        Feature::Task => tasks::run(&place).await,
        Feature::CancelNotice => endings::cancel_notice(&place).await,
        Feature::CancelClose => endings::cancel_close(&place).await,
        Feature::CancelEnd => endings::cancel_end(&place).await,
        Feature::Crash => endings::crash(&place).await,
        Feature::Unauthorized => endings::unauthorized(&place).await,
        Feature::Forgotten => endings::forgotten(&place).await,
        Feature::Slow => endings::slow(&place).await,
        Feature::StolenSession => handles::session(&place).await,
        Feature::StolenEvent => handles::event(&place).await,
        Feature::StolenUrl => handles::url(&place).await,
        Feature::StolenCursor => handles::cursor(&place).await,
        Feature::StolenState => handles::state(&place).await,
        Feature::StolenTask => tasks::stolen(&place).await,
    }
}
