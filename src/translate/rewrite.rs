//! Names and URIs inside messages, mapped where they occur. Spec: BRIDGING §4.2.
//!
//! Every function takes JSON text that was checked before, and the prefix of the upstream. It returns the
//! text with names and URIs replaced, and otherwise the same bytes. Texts, structured content, arguments
//! and schemas are never touched.

mod splice;
mod walk;

use std::borrow::Cow;

use crate::protocol::error_codes::INTERNAL_ERROR;
use crate::protocol::json::{self, JsonError, JsonScanner, MAX_DEPTH, WalkStop};
use crate::protocol::methods::{ListKind, lookup};
use crate::protocol::rpc;

use super::naming::{NamePrefix, clean};

pub(crate) use splice::SpliceSet;
pub(crate) use walk::RewriteWalk;

/// Characters of an upstream's title in a question: enough to recognise it.
const MAX_TITLE: usize = 80;

/// The result of a request of `method`, towards the client.
///
/// # Errors
/// When an object that we rewrite repeats a member, or the text is no JSON.
pub fn result<'t>(
    method: &str,
    result: &'t str,
    prefix: &'t NamePrefix,
) -> Result<Cow<'t, str>, JsonError> {
    let list = lookup(method).and_then(|known| known.list);
    rewrite(result, prefix, |walk, scanner| match (method, list) {
        ("tools/call" | "tasks/result", _) => walk.call_result(scanner),
        // A task that is done holds the result of its call.
        ("tasks/get", _) => walk.in_member(scanner, "result", RewriteWalk::call_result),
        ("prompts/get", _) => walk.in_member(scanner, "messages", RewriteWalk::messages),
        ("resources/read", _) => walk.in_member(scanner, "contents", RewriteWalk::contents),
        ("skills/get", _) => walk.in_member(scanner, "skill", |walk, s| {
            walk.item(s, ListKind::Skills).map(drop)
        }),
        ("resources/directory/read", _) => walk.in_member(scanner, "resources", |walk, s| {
            walk.items(s, ListKind::Resources)
        }),
        (_, Some(kind)) => walk.in_member(scanner, kind.member(), |walk, s| walk.items(s, kind)),
        _ => Ok(scanner.value().map(drop)?),
    })
}

/// The parameters of a question of an upstream to the client. `title` names the asking upstream. The client's
/// context is not passed to the upstream. Spec: BRIDGING §4.3, SPEC C-86.
///
/// # Errors
/// When an object that we rewrite repeats a member, or the text is no JSON.
pub fn question<'t>(
    method: &str,
    params: &'t str,
    prefix: &'t NamePrefix,
    title: &str,
) -> Result<Cow<'t, str>, JsonError> {
    rewrite(params, prefix, |walk, scanner| match method {
        "sampling/createMessage" => walk.sampling(scanner),
        "elicitation/create" => walk.elicitation(scanner, &asker(title)),
        _ => Ok(scanner.value().map(drop)?),
    })
}

/// The parameters of a notification, towards the client.
///
/// # Errors
/// When an object that we rewrite repeats a member, or the text is no JSON.
pub fn notice<'t>(
    method: &str,
    params: &'t str,
    prefix: &'t NamePrefix,
) -> Result<Cow<'t, str>, JsonError> {
    rewrite(params, prefix, |walk, scanner| match method {
        "notifications/resources/updated" => walk.in_string(scanner, "uri", RewriteWalk::uri),
        "notifications/message" => walk.in_string(scanner, "logger", RewriteWalk::logger),
        "notifications/elicitation/complete" => {
            walk.in_string(scanner, "elicitationId", RewriteWalk::elicitation_id)
        }
        _ => Ok(scanner.value().map(drop)?),
    })
}

/// Rewrites an error object for the client. `asked` is the requested URI in the upstream's and in the client's
/// spelling: a `data.uri` equal to the first becomes the second. Required elicitations (-32042) get mapped ids
/// and name the asking upstream, as questions do.
///
/// # Errors
/// When an object that we rewrite repeats a member, or the text is no JSON.
pub fn error<'t>(
    error: &'t str,
    prefix: &'t NamePrefix,
    asked: Option<(&str, &str)>,
) -> Result<Cow<'t, str>, JsonError> {
    rewrite(error, prefix, |walk, scanner| {
        walk.in_member(scanner, "data", |walk, scanner| {
            walk.error_data(scanner, asked, &asker(prefix.upstream()))
        })
    })
}

/// Fallback for an error that cannot be rewritten: its code, and its message prefixed with the upstream.
#[must_use]
pub fn bare_error(error: &str, prefix: &NamePrefix) -> String {
    let code = json::member(error, "code").and_then(json::integer);
    let code = code.unwrap_or(INTERNAL_ERROR);
    let message = json::member(error, "message").and_then(json::string);
    let message = message.unwrap_or(Cow::Borrowed("its error cannot be shown"));
    let label = clean(prefix.upstream(), MAX_TITLE);
    rpc::error(code, &format!("[{label}] {message}"), None)
}

/// The `[title] ` prefix that names the asking upstream, as the inside of a JSON string.
fn asker(title: &str) -> String {
    json_inner(&format!("[{}] ", clean(title, MAX_TITLE)))
}

/// The subject of a completion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CompletionRef<'t> {
    /// A prompt, by name.
    Prompt(Cow<'t, str>),
    /// A resource or a template, by URI.
    Resource(Cow<'t, str>),
}

impl<'t> CompletionRef<'t> {
    /// Reads the JSON text of `params.ref`; `None` for an unknown kind of reference.
    #[must_use]
    pub fn read(text: &'t str) -> Option<Self> {
        let members = json::members(text).ok()?;
        let member = |key| {
            let found = members.iter().find(|(name, _)| name == key)?;
            json::string(found.1)
        };
        match &*member("type")? {
            "ref/prompt" => member("name").map(Self::Prompt),
            "ref/resource" => member("uri").map(Self::Resource),
            _ => None,
        }
    }

    /// The reference in the upstream's spelling; `text` is the JSON text that was [read](Self::read).
    ///
    /// # Errors
    /// When `text` repeats a member, or is no JSON.
    pub fn renamed(&self, text: &str, original: &str) -> Result<String, JsonError> {
        let key = match self {
            Self::Prompt(_) => "name",
            Self::Resource(_) => "uri",
        };
        let mut splices = SpliceSet::default();
        over(text, |scanner| {
            walk::object(scanner, |scanner, name| {
                if name != key {
                    return Ok(false);
                }
                splices.replace(scanner.value()?, json::quote(original).into());
                Ok(true)
            })
        })?;
        Ok(splices.apply(text).into_owned())
    }
}

fn rewrite<'t>(
    text: &'t str,
    prefix: &'t NamePrefix,
    walk: impl FnOnce(&mut RewriteWalk<'t>, &mut JsonScanner<'t>) -> Result<(), WalkStop>,
) -> Result<Cow<'t, str>, JsonError> {
    let mut walker = RewriteWalk::new(prefix);
    over(text, |scanner| walk(&mut walker, scanner))?;
    Ok(walker.splices.apply(text))
}

/// Walks over the single JSON value in `text`.
fn over<'t>(
    text: &'t str,
    walk: impl FnOnce(&mut JsonScanner<'t>) -> Result<(), WalkStop>,
) -> Result<(), JsonError> {
    let mut scanner = JsonScanner::new(text, MAX_DEPTH);
    let walked = walk(&mut scanner).and_then(|()| Ok(scanner.finish()?));
    walked.map_err(|stop| stop.at(scanner.offset()))
}

/// The JSON text of a string without its quotes.
fn json_inner(text: &str) -> String {
    let mut quoted = json::quote(text);
    quoted.pop();
    quoted.remove(0);
    quoted
}

#[cfg(test)]
mod tests;
