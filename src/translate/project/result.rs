//! Results toward the client. Spec: BRIDGING §3.9; SPEC M-40, M-41, M-80, C-92.

use std::borrow::Cow;

use super::hints::CacheHints;
use super::object::{MemberFate, object};
use super::{RevisionProjection, schema};
use crate::protocol::json::{self, JsonError, ObjectWriter, member};
use crate::protocol::methods::{ListKind, lookup};
use crate::protocol::{Era, Message, content, icons, meta};

/// Members of `_meta` that only modern results have.
const RESERVED: [&str; 2] = [meta::SERVER_INFO, meta::SUBSCRIPTION_ID];
/// Bytes of an upstream's description of itself that are shown in every result.
const MAX_UPSTREAM: usize = 4096;
/// Methods besides lists whose results have cache hints (SPEC M-80).
const CACHEABLE: [&str; 4] = [
    "resources/read",
    "resources/directory/read",
    "skills/list",
    "skills/get",
];

/// Origin of a result, as shown to the client.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ResultOrigin<'a> {
    /// The method that was answered.
    pub(crate) method: &'a str,
    /// Configured name of the upstream, for the log; empty if the result is not a page of a list.
    pub(crate) name: &'a str,
    /// JSON text of the server's `Implementation`: ours on a merged endpoint.
    pub(crate) server: &'a str,
    /// Whether `server` replaces the upstream's own `serverInfo`.
    pub(crate) is_merged: bool,
    /// JSON text of the `serverInfo` in the upstream's declaration.
    pub(crate) upstream: Option<&'a str>,
    /// Cache hints for a result without hints of its own.
    pub(crate) hints: CacheHints,
    /// Whether the called tool's output schema is shown wrapped.
    pub(crate) wraps: bool,
    /// Whether both sides declare an extension that may define further kinds of results.
    pub(crate) extended: bool,
    /// JSON text of the object that names missing upstreams, where the result is about several.
    pub(crate) missing: Option<&'a str>,
}

/// Why a result cannot be shown.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum UnusableResult {
    /// An object that is rewritten repeats a member.
    #[error(transparent)]
    Json(#[from] JsonError),
    /// A `resultType` that neither side declared (SPEC M-40).
    #[error("unknown resultType {0}")]
    Kind(String),
}

/// Changes of members at the top of a result.
type ResultChanges<'a> = Vec<(&'static str, Option<Cow<'a, str>>)>;

impl RevisionProjection {
    /// The response of the upstream in the client's revision; the same bytes where nothing changes.
    ///
    /// # Errors
    /// See [`UnusableResult`].
    pub(crate) fn result(
        self,
        message: Message,
        origin: &ResultOrigin<'_>,
    ) -> Result<Message, UnusableResult> {
        let lists_tools = origin.method == "tools/list";
        let is_whole = || self.to.era() == Era::Legacy || is_dressed(&message, origin);
        if self.is_identity() && !lists_tools && is_whole() {
            return Ok(message);
        }
        let changes = self.changes(&message, origin)?;
        if changes.is_empty() {
            return Ok(message);
        }
        let mut edit = message.edit();
        for (name, value) in changes {
            edit = match value {
                Some(value) => edit.result_member(name, value),
                None => edit.remove_result_member(name),
            };
        }
        let bytes = edit.finish();
        // Exchanging members of a valid message keeps it valid.
        Ok(Message::parse(bytes, usize::MAX).unwrap_or(message))
    }

    fn changes<'m>(
        self,
        message: &'m Message,
        origin: &ResultOrigin<'m>,
    ) -> Result<ResultChanges<'m>, UnusableResult> {
        let mut changes = ResultChanges::new();
        let kind = message.result_member("resultType");
        // Some serialisers write null for what is absent.
        let kind = kind.filter(|kind| *kind != "null");
        if self.from.era() == Era::Modern
            && let Some(kind) = kind
            && !KINDS.contains(&kind)
            && !(origin.extended && self.to.era() == Era::Modern)
        {
            return Err(UnusableResult::Kind(kind.chars().take(40).collect()));
        }
        if self.to.era() == Era::Modern {
            self.dress(message, kind, origin, &mut changes)?;
        } else if self.is_down() {
            undress(message, &mut changes)?;
        }
        if !self.is_identity() || origin.method == "tools/list" {
            self.body(message, origin, &mut changes)?;
        }
        Ok(changes)
    }

    /// Adds the members that every modern result has; `kind` is its `resultType`.
    fn dress<'m>(
        self,
        message: &'m Message,
        kind: Option<&str>,
        origin: &ResultOrigin<'m>,
        changes: &mut ResultChanges<'m>,
    ) -> Result<(), UnusableResult> {
        if kind.is_none() || self.is_up() && kind != Some(COMPLETE) {
            changes.push(("resultType", Some(COMPLETE.into())));
        }
        if is_cacheable(origin.method) {
            let hints = if self.is_up() {
                origin.hints
            } else {
                CacheHints::said(message, origin.hints)
            };
            let ttl = hints.ttl_ms.to_string();
            if message.result_member("ttlMs") != Some(ttl.as_str()) {
                changes.push(("ttlMs", Some(ttl.into())));
            }
            let scope = hints.scope.as_json();
            if message.result_member("cacheScope") != Some(scope) {
                changes.push(("cacheScope", Some(scope.into())));
            }
        }
        if let Some(meta) = self.named(message, origin)? {
            changes.push(("_meta", Some(meta.into())));
        }
        Ok(())
    }

    /// `_meta` of a modern result; `None` if it does not change. A merged endpoint names itself, and the upstream
    /// under a key of the gateway (BRIDGING §3.9).
    fn named(
        self,
        message: &Message,
        origin: &ResultOrigin<'_>,
    ) -> Result<Option<String>, JsonError> {
        let meta = message.result_member("_meta");
        let own = || {
            let read = message.result_meta(meta::SERVER_INFO);
            read.or_else(|| member(meta?, meta::SERVER_INFO))
        };
        // A `serverInfo` with unsafe icons is replaced by the sanitised declaration. Mostly it equals the
        // declaration byte by byte, which needs no scan.
        let is_fit = |own: &str| {
            let is_known = origin.upstream == Some(own);
            own.starts_with('{') && (is_known || icons::purged(own).is_none())
        };
        if !(origin.is_merged || self.is_up()) && own().is_some_and(is_fit) {
            return Ok(None);
        }
        let members = match meta.filter(|meta| meta.starts_with('{')) {
            Some(meta) => json::members(meta)?,
            None => Vec::new(),
        };
        let own = members
            .iter()
            .find(|(name, info)| name == meta::SERVER_INFO && is_fit(info) && !self.is_up())
            .map(|(_, info)| *info);
        let mut out = ObjectWriter::default();
        for (name, value) in &members {
            // A task of 2025-11-25 means nothing here (SPEC K-15).
            let ours = name == meta::SERVER_INFO || origin.is_merged && name == meta::UPSTREAM;
            if !(ours || self.is_up() && name == meta::RELATED_TASK) {
                out.member(name, value);
            }
        }
        out.member(meta::SERVER_INFO, origin.server);
        let upstream = own.or(origin.upstream).filter(|_| origin.is_merged);
        if let Some(upstream) = upstream.filter(|info| is_told(info)) {
            out.member(meta::UPSTREAM, upstream);
        }
        Ok(Some(out.finish()))
    }

    /// Translates the part of the result that depends on its method.
    fn body<'m>(
        self,
        message: &'m Message,
        origin: &ResultOrigin<'m>,
        changes: &mut ResultChanges<'m>,
    ) -> Result<(), UnusableResult> {
        // Legacy revisions have objects there: null stands for none.
        let structured = message.result_member("structuredContent");
        let has_none = structured == Some("null") && self.from.era() == Era::Legacy;
        if has_none && origin.method == "tools/call" {
            changes.push(("structuredContent", None));
        }
        let mut put = |name, text: Cow<'m, str>| {
            if let Cow::Owned(_) = text {
                changes.push((name, Some(text)));
            }
        };
        match origin.method {
            "tools/call" => {
                let content = message.result_member("content");
                if let Some(content) = content.filter(|_| self.narrows_content()) {
                    put("content", self.blocks().content(content)?);
                }
                let Some(value) = structured.filter(|_| !has_none) else {
                    return Ok(());
                };
                if self.to.era() == Era::Legacy && is_empty(content) {
                    let text = content::text_block(value);
                    put("content", format!("[{text}]").into());
                }
                if self.is_down()
                    && self.to.has_structured_content()
                    && (origin.wraps || !value.starts_with('{'))
                {
                    let wrapped = schema::wrapped_value(value);
                    put("structuredContent", wrapped.into());
                }
            }
            "prompts/get" if self.narrows_content() => {
                if let Some(messages) = message.result_member("messages") {
                    put("messages", self.blocks().messages(messages)?);
                }
            }
            "tools/list" => {
                if let Some(tools) = message.result_member("tools") {
                    put("tools", self.items(ListKind::Tools, tools, origin.name)?);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// The answer that begins a task, for a modern client. `task` is the JSON text of an object with the task's members.
    pub(crate) fn begun(task: String, origin: &ResultOrigin<'_>) -> String {
        let mut out = ObjectWriter::reopen(task);
        out.member("resultType", TASK);
        let meta = json::object([(meta::SERVER_INFO, origin.server)]);
        out.member("_meta", &meta);
        out.finish()
    }

    /// A result that the gateway wrote itself (JSON text of an object), in the client's revision.
    pub(crate) fn authored(self, result: String, origin: &ResultOrigin<'_>) -> String {
        let (mut out, is_open) = self.authored_open(result, origin);
        if is_open {
            out.push_str(&origin.hints.ttl_ms.to_string());
            out.push('}');
        }
        out
    }

    /// As [`authored`](Self::authored). A result that clients may cache ends before the value of `ttlMs`, so that a kept
    /// text can be sent with the lifetime that is left; returns whether it does.
    pub(crate) fn authored_open(self, result: String, origin: &ResultOrigin<'_>) -> (String, bool) {
        let is_legacy = self.to.era() == Era::Legacy;
        if is_legacy && origin.missing.is_none() {
            return (result, false);
        }
        let mut about = ObjectWriter::default();
        if !is_legacy {
            about.member(meta::SERVER_INFO, origin.server);
        }
        if let Some(missing) = origin.missing {
            about.member(meta::MISSING, missing);
        }
        let mut out = ObjectWriter::reopen(result);
        if !is_legacy {
            out.member("resultType", COMPLETE);
        }
        out.member("_meta", &about.finish());
        if is_legacy || !is_cacheable(origin.method) {
            return (out.finish(), false);
        }
        out.member("cacheScope", origin.hints.scope.as_json());
        (out.finish_before("ttlMs"), true)
    }
}

/// Whether a result is of a kind that neither the core nor an extension known to the gateway defines.
pub(crate) fn is_of_unknown_kind(message: &Message) -> bool {
    let kind = message.result_member("resultType");
    kind.is_some_and(|kind| !KINDS.contains(&kind))
}

const COMPLETE: &str = "\"complete\"";
const TASK: &str = "\"task\"";
/// Kinds of results that may pass. The relay lets a task pass only if it was asked for.
const KINDS: [&str; 2] = [COMPLETE, TASK];

/// Removes the members that only a modern result has.
fn undress<'m>(message: &'m Message, changes: &mut ResultChanges<'m>) -> Result<(), JsonError> {
    for name in ["resultType", "ttlMs", "cacheScope"] {
        if message.result_member(name).is_some() {
            changes.push((name, None));
        }
    }
    let Some(meta) = message.result_member("_meta") else {
        return Ok(());
    };
    let kept = object(meta, |name, _| {
        let reserved = RESERVED.contains(&name);
        Ok(if reserved {
            MemberFate::Drop
        } else {
            MemberFate::Keep
        })
    })?;
    match kept {
        Cow::Borrowed(_) => {}
        Cow::Owned(kept) if kept == "{}" => changes.push(("_meta", None)),
        kept @ Cow::Owned(_) => changes.push(("_meta", Some(kept))),
    }
    Ok(())
}

/// Whether a modern upstream's result has all members that a modern client expects: most do.
fn is_dressed(message: &Message, origin: &ResultOrigin<'_>) -> bool {
    let named = || message.result_meta(meta::SERVER_INFO);
    !origin.is_merged
        && message.result_member("resultType") == Some(COMPLETE)
        && named().is_some_and(|info| info.starts_with('{'))
        && !is_cacheable(origin.method)
}

/// Whether an upstream's description of itself is shown: it is not empty, and not too long.
fn is_told(info: &str) -> bool {
    info != "{}" && info.len() <= MAX_UPSTREAM
}

fn is_cacheable(method: &str) -> bool {
    lookup(method).is_some_and(|known| known.list.is_some()) || CACHEABLE.contains(&method)
}

fn is_empty(content: Option<&str>) -> bool {
    content.is_none_or(|content| {
        json::elements(content).is_ok_and(|blocks| blocks.is_empty()) || !content.starts_with('[')
    })
}

/// Whether the output schema of a tool, the JSON text of an item, is shown wrapped.
pub(crate) fn wraps(tool: &str) -> bool {
    member(tool, "outputSchema").is_some_and(schema::needs_wrapping)
}
