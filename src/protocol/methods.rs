//! Table of methods: direction, routing parameter, list, required capability and revisions.

use super::names::is_same;
use super::revision::Revision;

/// Direction of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the server.
    ToServer,
    /// From the server to the client.
    ToClient,
    /// Either way.
    Both,
}

/// The parameter that determines the upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UpstreamParam {
    /// `params.name`, a tool.
    Tool,
    /// `params.name`, a prompt.
    Prompt,
    /// `params.uri`, a resource.
    Resource,
    /// `params.uri`, a skill.
    Skill,
    /// `params.ref`, a prompt, a resource or a template.
    Reference,
    /// `params.taskId`, a task.
    Task,
}

impl UpstreamParam {
    /// Name of this parameter in `params`.
    #[must_use]
    pub fn param(self) -> &'static str {
        match self {
            Self::Tool | Self::Prompt => "name",
            Self::Resource | Self::Skill => "uri",
            Self::Reference => "ref",
            Self::Task => "taskId",
        }
    }

    /// The list that this parameter names an item of; `None` for a reference, which has several kinds, and for a task.
    #[must_use]
    pub fn list(self) -> Option<ListKind> {
        match self {
            Self::Tool => Some(ListKind::Tools),
            Self::Prompt => Some(ListKind::Prompts),
            Self::Resource => Some(ListKind::Resources),
            Self::Skill => Some(ListKind::Skills),
            Self::Reference | Self::Task => None,
        }
    }
}

/// A list that servers page out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ListKind {
    /// `tools/list`
    Tools,
    /// `prompts/list`
    Prompts,
    /// `resources/list`
    Resources,
    /// `resources/templates/list`
    Templates,
    /// `skills/list`, of the skills extension (SPEC N-04).
    Skills,
}

impl ListKind {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Tools,
        Self::Prompts,
        Self::Resources,
        Self::Templates,
        Self::Skills,
    ];

    /// The `…/list` method.
    #[must_use]
    pub fn method(self) -> &'static str {
        match self {
            Self::Tools => "tools/list",
            Self::Prompts => "prompts/list",
            Self::Resources => "resources/list",
            Self::Templates => "resources/templates/list",
            Self::Skills => "skills/list",
        }
    }

    /// The member of the result that holds the items.
    #[must_use]
    pub fn member(self) -> &'static str {
        match self {
            Self::Tools => "tools",
            Self::Prompts => "prompts",
            Self::Resources => "resources",
            Self::Templates => "resourceTemplates",
            Self::Skills => "skills",
        }
    }

    /// Member of an item that holds the item's name.
    #[must_use]
    pub fn item_key(self) -> &'static str {
        match self {
            Self::Tools | Self::Prompts => "name",
            Self::Resources | Self::Skills => "uri",
            Self::Templates => "uriTemplate",
        }
    }

    /// The server capability for this list; also the middle of its change notice. Skills are declared as an
    /// extension, and have no change notice.
    #[must_use]
    pub fn capability(self) -> &'static str {
        match self {
            Self::Tools => "tools",
            Self::Prompts => "prompts",
            Self::Resources | Self::Templates => "resources",
            Self::Skills => "skills",
        }
    }
}

/// A server capability that a method needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NeededCapability {
    /// None.
    Nothing,
    /// `tools`
    Tools,
    /// `prompts`
    Prompts,
    /// `resources`
    Resources,
    /// `resources.subscribe`
    Subscribe,
    /// `completions`; undeclared before 2025-03-26 (SPEC C-30).
    Completions,
    /// `logging`
    Logging,
    /// `tasks`
    Tasks,
    /// The extension `io.modelcontextprotocol/skills`.
    Skills,
    /// The same, with its setting `directoryRead`.
    DirectoryRead,
}

/// One row of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MethodRow {
    /// The method's name on the wire.
    pub name: &'static str,
    /// The direction.
    pub direction: Direction,
    /// The parameter that names what the request is about, and with it the upstream on a merged endpoint.
    pub target: Option<UpstreamParam>,
    /// The list requested by the method.
    pub list: Option<ListKind>,
    /// The capability that the server must have declared.
    pub needs: NeededCapability,
    /// The first revision with the method.
    pub since: Revision,
    /// The last revision with the method.
    pub until: Revision,
}

impl MethodRow {
    /// Whether `revision` has the method.
    #[must_use]
    pub fn is_in(&self, revision: Revision) -> bool {
        self.since <= revision && revision <= self.until
    }

    /// Whether a client of `revision` may request the method from a server. Spec: SPEC L-04, M-14.
    #[must_use]
    pub fn is_for_servers(&self, revision: Revision) -> bool {
        self.is_in(revision) && self.direction != ToClient && !self.is_notification()
    }

    /// Whether the method is paged: `nextCursor` in the result, `cursor` in `params`.
    #[must_use]
    pub fn is_paged(&self) -> bool {
        self.list.is_some() || matches!(self.name, "resources/directory/read" | "tasks/list")
    }

    /// Whether the method is a notification.
    #[must_use]
    pub fn is_notification(&self) -> bool {
        self.name.starts_with("notifications/")
    }

    const fn new(name: &'static str, direction: Direction) -> Self {
        let (since, until) = (V2024_11_05, V2026_07_28);
        Self {
            name,
            direction,
            target: None,
            list: None,
            needs: NeededCapability::Nothing,
            since,
            until,
        }
    }

    const fn target(mut self, target: UpstreamParam) -> Self {
        self.target = Some(target);
        self
    }

    const fn list(mut self, list: ListKind) -> Self {
        self.list = Some(list);
        self
    }

    const fn needs(mut self, needs: NeededCapability) -> Self {
        self.needs = needs;
        self
    }

    const fn since(mut self, since: Revision) -> Self {
        self.since = since;
        self
    }

    const fn until(mut self, until: Revision) -> Self {
        self.until = until;
        self
    }

    const fn legacy(self) -> Self {
        self.until(Revision::LATEST_LEGACY)
    }
}

/// The member of `params` that `Mcp-Name` repeats. Spec: SPEC M-09, M-10.
#[must_use]
pub fn name_param(method: &str) -> Option<&'static str> {
    match method {
        "tools/call" | "prompts/get" => Some("name"),
        "resources/read" => Some("uri"),
        "tasks/get" | "tasks/update" | "tasks/cancel" => Some("taskId"),
        _ => None,
    }
}

/// Whether a request of `method` is idempotent: it reads, or sets a state. Not so `tools/call`. Spec:
/// SPEC M-44.
#[must_use]
pub fn is_repeatable(method: &str) -> bool {
    matches!(
        method,
        "completion/complete"
            | "initialize"
            | "logging/setLevel"
            | "ping"
            | "prompts/get"
            | "resources/directory/read"
            | "resources/read"
            | "resources/subscribe"
            | "resources/unsubscribe"
            | "server/discover"
            | "skills/get"
            | "tasks/get"
            | "tasks/result"
    ) || method.ends_with("/list")
}

/// The row of the method `name`; `None` for extensions and unknown methods.
#[must_use]
pub fn lookup(name: &str) -> Option<&'static MethodRow> {
    let name = name.as_bytes();
    TABLE
        .iter()
        .find(|method| is_same(method.name.as_bytes(), name))
}

use Direction::{Both, ToClient, ToServer};
use Revision::{V2024_11_05, V2025_06_18, V2025_11_25, V2026_07_28};

/// Every method of the five revisions, and of the extensions that we understand.
pub const TABLE: &[MethodRow] = &[
    MethodRow::new("tools/call", ToServer)
        .target(UpstreamParam::Tool)
        .needs(NeededCapability::Tools),
    MethodRow::new("tools/list", ToServer)
        .list(ListKind::Tools)
        .needs(NeededCapability::Tools),
    MethodRow::new("prompts/get", ToServer)
        .target(UpstreamParam::Prompt)
        .needs(NeededCapability::Prompts),
    MethodRow::new("prompts/list", ToServer)
        .list(ListKind::Prompts)
        .needs(NeededCapability::Prompts),
    MethodRow::new("resources/read", ToServer)
        .target(UpstreamParam::Resource)
        .needs(NeededCapability::Resources),
    MethodRow::new("resources/list", ToServer)
        .list(ListKind::Resources)
        .needs(NeededCapability::Resources),
    MethodRow::new("resources/templates/list", ToServer)
        .list(ListKind::Templates)
        .needs(NeededCapability::Resources),
    MethodRow::new("resources/subscribe", ToServer)
        .target(UpstreamParam::Resource)
        .needs(NeededCapability::Subscribe)
        .legacy(),
    MethodRow::new("resources/unsubscribe", ToServer)
        .target(UpstreamParam::Resource)
        .needs(NeededCapability::Subscribe)
        .legacy(),
    MethodRow::new("completion/complete", ToServer)
        .target(UpstreamParam::Reference)
        .needs(NeededCapability::Completions),
    MethodRow::new("logging/setLevel", ToServer)
        .needs(NeededCapability::Logging)
        .legacy(),
    MethodRow::new("initialize", ToServer).legacy(),
    MethodRow::new("server/discover", ToServer).since(V2026_07_28),
    MethodRow::new("subscriptions/listen", ToServer).since(V2026_07_28),
    MethodRow::new("ping", Both).legacy(),
    MethodRow::new("tasks/get", Both)
        .target(UpstreamParam::Task)
        .needs(NeededCapability::Tasks)
        .since(V2025_11_25),
    MethodRow::new("tasks/cancel", Both)
        .target(UpstreamParam::Task)
        .needs(NeededCapability::Tasks)
        .since(V2025_11_25),
    MethodRow::new("tasks/result", Both)
        .target(UpstreamParam::Task)
        .needs(NeededCapability::Tasks)
        .since(V2025_11_25)
        .legacy(),
    MethodRow::new("tasks/list", Both)
        .needs(NeededCapability::Tasks)
        .since(V2025_11_25)
        .legacy(),
    MethodRow::new("tasks/update", ToServer)
        .target(UpstreamParam::Task)
        .needs(NeededCapability::Tasks)
        .since(V2026_07_28),
    MethodRow::new("skills/list", ToServer)
        .list(ListKind::Skills)
        .needs(NeededCapability::Skills),
    MethodRow::new("skills/get", ToServer)
        .target(UpstreamParam::Skill)
        .needs(NeededCapability::Skills),
    MethodRow::new("resources/directory/read", ToServer)
        .target(UpstreamParam::Resource)
        .needs(NeededCapability::DirectoryRead),
    MethodRow::new("sampling/createMessage", ToClient).legacy(),
    MethodRow::new("elicitation/create", ToClient)
        .since(V2025_06_18)
        .legacy(),
    MethodRow::new("roots/list", ToClient).legacy(),
    MethodRow::new("notifications/initialized", ToServer).legacy(),
    MethodRow::new("notifications/cancelled", Both),
    MethodRow::new("notifications/progress", Both),
    MethodRow::new("notifications/message", ToClient),
    MethodRow::new("notifications/tools/list_changed", ToClient),
    MethodRow::new("notifications/prompts/list_changed", ToClient),
    MethodRow::new("notifications/resources/list_changed", ToClient),
    MethodRow::new("notifications/resources/updated", ToClient),
    MethodRow::new("notifications/roots/list_changed", ToServer).legacy(),
    MethodRow::new("notifications/elicitation/complete", ToClient)
        .since(V2025_11_25)
        .legacy(),
    MethodRow::new("notifications/tasks/status", Both)
        .since(V2025_11_25)
        .legacy(),
    MethodRow::new("notifications/tasks", ToClient).since(V2026_07_28),
    MethodRow::new("notifications/subscriptions/acknowledged", ToClient).since(V2026_07_28),
];

/// Whether a method asks for a list, `tasks/list` too: such a request changes nothing, and callers may share its reply.
#[must_use]
pub fn is_list(name: &str) -> bool {
    name.ends_with("/list")
}

/// Whether the answer to a request of this method may need answers of the client first.
/// Spec: SPEC M-60; BRIDGING §1.2, §2.2.
#[must_use]
pub fn may_ask(name: &str) -> bool {
    matches!(name, "tools/call" | "prompts/get" | "resources/read")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_method_stands_once_and_lists_agree_with_their_kind() {
        let names: HashSet<_> = TABLE.iter().map(|method| method.name).collect();
        assert_eq!(names.len(), TABLE.len());
        for kind in ListKind::ALL {
            assert_eq!(lookup(kind.method()).unwrap().list, Some(kind));
        }
        assert!(TABLE.iter().all(|method| method.since <= method.until));
    }

    #[test]
    fn revisions_bound_methods() {
        let has = |name, revision| lookup(name).unwrap().is_in(revision);
        assert!(!has("elicitation/create", Revision::V2025_03_26));
        assert!(has("elicitation/create", V2025_06_18));
        assert!(!has("ping", V2026_07_28));
        assert!(!has("server/discover", V2025_11_25));
        assert_eq!(lookup("tools/invent"), None);
    }
}
