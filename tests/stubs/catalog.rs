//! The lists: tools, prompts, resources, templates; rendered once, paged on request.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use crate::errands;
use crate::extension;
use crate::options::Options;
use crate::tools;

/// Static resources listed.
const RESOURCES: usize = 5;

/// Prefix of the template of `--web-items`.
const WEB_ITEMS: &str = "https://items.example/i/";

/// One list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum List {
    Tools,
    Prompts,
    Resources,
    Templates,
}

impl List {
    /// The list that `method` asks for.
    pub(crate) fn of(method: &str) -> Option<Self> {
        match method {
            "tools/list" => Some(Self::Tools),
            "prompts/list" => Some(Self::Prompts),
            "resources/list" => Some(Self::Resources),
            "resources/templates/list" => Some(Self::Templates),
            _ => None,
        }
    }

    /// The result member that holds the entries.
    pub(crate) fn member(self) -> &'static str {
        match self {
            Self::Tools => "tools",
            Self::Prompts => "prompts",
            Self::Resources => "resources",
            Self::Templates => "resourceTemplates",
        }
    }

    /// The entry shown while the list is changed.
    fn extra(self) -> Option<Value> {
        match self {
            Self::Tools => Some(tools::entry("extra", "Shown while tools are changed", &[])),
            Self::Prompts => Some(json!({"name": "extra", "description": "An extra prompt"})),
            Self::Resources => Some(json!({"uri": "stub://extra", "name": "extra"})),
            Self::Templates => None,
        }
    }
}

/// All lists.
#[derive(Debug)]
pub(crate) struct Catalog {
    entries: [Vec<String>; 4],
    whole: [String; 4],
    page_size: Option<usize>,
    empty_cursor: bool,
    /// Cursors still to be refused.
    stale: AtomicU64,
    pub(crate) delay: Duration,
}

impl Catalog {
    pub(crate) fn new(options: &Options) -> Self {
        let mut tools = tools::entries(options.tools);
        if options.tasks {
            tools.extend(errands::legacy_tools());
        }
        tools.extend(extension::tools(options));
        let entries = [tools, prompts(), resources(), templates(options)]
            .map(|entries| entries.into_iter().map(|entry| options.with_icons(entry)))
            .map(|entries| entries.map(|entry| entry.to_string()).collect::<Vec<_>>());
        let lists = [List::Tools, List::Prompts, List::Resources, List::Templates];
        let whole = lists.map(|list| {
            let entries = entries.get(list as usize).map_or(&[][..], Vec::as_slice);
            render(list, entries, None)
        });
        Self {
            entries,
            whole,
            page_size: options.list_page_size,
            empty_cursor: options.empty_cursor,
            stale: AtomicU64::new(options.stale_cursors),
            delay: Duration::from_millis(options.list_delay),
        }
    }

    /// The result of one list request, or `None` for an unknown cursor.
    pub(crate) fn page(&self, list: List, cursor: Option<&str>, changed: bool) -> Option<String> {
        if !changed && cursor.is_none() && self.page_size.is_none() {
            return self.whole.get(list as usize).cloned();
        }
        let left = |stale: u64| stale.checked_sub(1);
        let ordering = Ordering::Relaxed;
        if cursor.is_some() && self.stale.fetch_update(ordering, ordering, left).is_ok() {
            return None;
        }
        let mut entries = self.entries.get(list as usize)?.clone();
        entries.extend(
            list.extra()
                .filter(|_| changed)
                .map(|extra| extra.to_string()),
        );
        let size = self.page_size.unwrap_or(usize::MAX).max(1);
        let page: usize = match cursor {
            None => 0,
            Some("") if self.empty_cursor => 1,
            Some(cursor) => cursor.strip_prefix("page-")?.parse().ok()?,
        };
        let start = page.checked_mul(size)?;
        let end = start.saturating_add(size).min(entries.len());
        let shown = entries.get(start..end)?;
        let next = (end < entries.len()).then(|| match page {
            0 if self.empty_cursor => String::new(),
            _ => format!("page-{}", page + 1),
        });
        Some(render(list, shown, next.as_deref()))
    }
}

fn render(list: List, entries: &[String], next: Option<&str>) -> String {
    let next = next.map_or_else(String::new, |next| {
        format!(r#","nextCursor":{}"#, Value::from(next))
    });
    format!(r#"{{"{}":[{}]{next}}}"#, list.member(), entries.join(","))
}

fn prompts() -> Vec<Value> {
    vec![
        json!({"name": "greet", "description": "Greets somebody",
               "arguments": [{"name": "name", "description": "Whom", "required": true}]}),
        json!({"name": "plain", "description": "Takes nothing"}),
    ]
}

fn resources() -> Vec<Value> {
    let entry = |n| {
        json!({"uri": format!("stub://static/{n}"), "name": format!("static-{n}"),
               "description": "A text that never changes", "mimeType": "text/plain"})
    };
    (1..=RESOURCES).map(entry).collect()
}

fn templates(options: &Options) -> Vec<Value> {
    let mut all = vec![json!({"uriTemplate": "stub://item/{id}", "name": "item",
                "description": "An item by its id", "mimeType": "text/plain"})];
    if options.web_items {
        all.push(json!({"uriTemplate": format!("{WEB_ITEMS}{{id}}"), "name": "web-item"}));
    }
    all
}

/// The text of a resource, if it exists.
pub(crate) fn resource_text(uri: &str) -> Option<String> {
    if let Some(id) = uri.strip_prefix(WEB_ITEMS) {
        return Some(format!("web item {id}"));
    }
    let path = uri.strip_prefix("stub://")?;
    match path.split_once('/') {
        Some(("static", number)) => {
            let number: usize = number.parse().ok()?;
            (1..=RESOURCES)
                .contains(&number)
                .then(|| format!("static text {number}"))
        }
        Some(("item", id)) => Some(format!("item {id}")),
        _ => (path == "extra").then(|| "extra text".to_owned()),
    }
}
