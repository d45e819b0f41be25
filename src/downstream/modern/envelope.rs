//! Metadata of a modern request: headers and `params._meta`, and the check that both agree. Checked in the order of
//! SPEC §2a; the first failure is the answer.

use std::borrow::Cow;

use http::{HeaderMap, HeaderName, HeaderValue};

use super::refusal::RequestRefusal;
use crate::call::{LogLevel, MAX_DECLARED};
use crate::protocol::headers::{
    self, HeaderError, MCP_METHOD, MCP_NAME, MCP_PARAM_PREFIX, MCP_PROTOCOL_VERSION,
};
use crate::protocol::methods::{self, MethodRow, UpstreamParam};
use crate::protocol::{Era, Message, MessageKind, Revision, extensions, header_value, json, meta};

/// The envelope of a request that passed every check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RequestEnvelope {
    /// JSON text of the client's capabilities.
    pub(super) capabilities: String,
    /// The least severe log messages wanted; none when absent (SPEC C-21).
    pub(super) level: Option<LogLevel>,
    /// JSON text of the progress token.
    pub(super) progress: Option<String>,
    /// Headers that carry single arguments, unchanged; `None` for carriers without headers.
    pub(super) param_headers: Option<Vec<(HeaderName, HeaderValue)>>,
}

impl RequestEnvelope {
    /// Refuses a request that did not declare the tasks extension. Spec: SPEC K-12, M-76.
    pub(super) fn needs_tasks(&self, message: &'static str) -> Result<(), RequestRefusal> {
        if extensions::declares(&self.capabilities, extensions::TASKS) {
            return Ok(());
        }
        let tasks = json::object([(extensions::TASKS, "{}")]);
        let needed = json::object([("extensions", tasks)]);
        Err(RequestRefusal::capability(message, &needed))
    }
}

/// Whether a message is for the modern service: its `_meta` says so, or its header names a modern revision and the body
/// has no mark of the legacy era. Spec: SPEC M-19, M-03, M-22.
pub(in crate::downstream) fn is_modern(headers: &HeaderMap, message: &Message) -> bool {
    if meta::is_modern(message) {
        return true;
    }
    let handshake =
        message.kind() == MessageKind::Request && message.method() == Some("initialize");
    !handshake && names_modern(headers)
}

/// Whether the version header names a modern revision.
pub(in crate::downstream) fn names_modern(headers: &HeaderMap) -> bool {
    headers::protocol_version(headers)
        .is_ok_and(|named| named.is_some_and(|revision| revision.era() == Era::Modern))
}

/// Reads the envelope of a request.
///
/// # Errors
/// The [`RequestRefusal`] that is its answer.
pub(super) fn read(
    headers: &HeaderMap,
    message: &Message,
) -> Result<RequestEnvelope, RequestRefusal> {
    // Spec: SPEC M-04.
    let said = DescriptiveHeaders::read(headers)?;
    let method = message.method().unwrap_or_default();
    let (version, mut envelope) = metadata(message)?;
    // Spec: SPEC M-07 to M-12.
    said.version.agrees(&version)?;
    said.method.agrees(method)?;
    if let Some(param) = methods::name_param(method) {
        match message.param_str(param) {
            Some(value) => said.name.agrees(&value)?,
            // The method itself refuses a missing parameter.
            None => drop(said.name.text()?),
        }
    }
    served(&version, method, &envelope)?;
    envelope.param_headers = Some(said.params);
    Ok(envelope)
}

/// The same for a request that came without headers of its own.
///
/// # Errors
/// The [`RequestRefusal`] that is its answer.
pub(super) fn read_body(message: &Message) -> Result<RequestEnvelope, RequestRefusal> {
    let (version, envelope) = metadata(message)?;
    served(&version, message.method().unwrap_or_default(), &envelope)?;
    Ok(envelope)
}

fn served(version: &str, method: &str, envelope: &RequestEnvelope) -> Result<(), RequestRefusal> {
    // Spec: SPEC M-13.
    if Revision::parse(version).is_none_or(|revision| revision.era() != Era::Modern) {
        return Err(RequestRefusal::version(version));
    }
    let known = methods::lookup(method);
    // Spec: SPEC M-14.
    if !known.is_none_or(is_served) {
        return Err(RequestRefusal::method(method, version));
    }
    // Spec: SPEC K-12.
    if known.is_some_and(concerns_task) {
        envelope.needs_tasks("methods of tasks need the tasks extension")?;
    }
    Ok(())
}

/// Whether this method of the revision concerns one task.
pub(super) fn is_task(method: &str) -> bool {
    methods::lookup(method).is_some_and(concerns_task)
}

fn concerns_task(known: &MethodRow) -> bool {
    known.target == Some(UpstreamParam::Task) && known.is_in(Revision::V2026_07_28)
}

/// Version and envelope in `params._meta`. Spec: SPEC M-05, M-06.
fn metadata(message: &Message) -> Result<(Cow<'_, str>, RequestEnvelope), RequestRefusal> {
    let version = message
        .meta(meta::PROTOCOL_VERSION)
        .and_then(json::string)
        .ok_or_else(|| RequestRefusal::key(meta::PROTOCOL_VERSION, "a string"))?;
    let capabilities = message
        .meta(meta::CLIENT_CAPABILITIES)
        .filter(|text| text.len() <= MAX_DECLARED && json::is_object(text))
        .ok_or_else(|| {
            RequestRefusal::key(meta::CLIENT_CAPABILITIES, "an object of 64 KiB at most")
        })?;
    let level = match message.meta(meta::LOG_LEVEL) {
        // Written by clients that have none.
        None | Some("null") => None,
        Some(text) => Some(
            json::string(text)
                .and_then(|word| LogLevel::parse(&word))
                .ok_or_else(|| RequestRefusal::key(meta::LOG_LEVEL, "one of debug … emergency"))?,
        ),
    };
    let envelope = RequestEnvelope {
        capabilities: capabilities.to_owned(),
        level,
        progress: meta::progress_token(message).map(str::to_owned),
        param_headers: None,
    };
    Ok((version, envelope))
}

/// Headers that describe the request, collected in one walk over all headers.
struct DescriptiveHeaders<'a> {
    version: RepeatedHeader<'a>,
    method: RepeatedHeader<'a>,
    name: RepeatedHeader<'a>,
    /// Headers that carry single arguments.
    params: Vec<(HeaderName, HeaderValue)>,
}

impl<'a> DescriptiveHeaders<'a> {
    /// Collects the headers; a duplicate is refused.
    fn read(headers: &'a HeaderMap) -> Result<Self, RequestRefusal> {
        let line = |name| RepeatedHeader { name, value: None };
        let mut said = Self {
            version: line(MCP_PROTOCOL_VERSION),
            method: line(MCP_METHOD),
            name: line(MCP_NAME),
            params: Vec::new(),
        };
        for (name, value) in headers {
            // Matched by text, where the length alone decides most cases: faster than comparing `HeaderName`s.
            let line = match name.as_str() {
                "mcp-protocol-version" => &mut said.version,
                "mcp-method" => &mut said.method,
                "mcp-name" => &mut said.name,
                text => {
                    if text.starts_with(MCP_PARAM_PREFIX) {
                        said.params.push((name.clone(), value.clone()));
                    }
                    continue;
                }
            };
            if line.value.replace(value).is_some() {
                return Err(mismatch(&HeaderError::Repeated(name.clone())));
            }
        }
        Ok(said)
    }
}

/// A header that repeats a member of the body; `value` is `None` if absent.
struct RepeatedHeader<'a> {
    name: HeaderName,
    value: Option<&'a HeaderValue>,
}

impl<'a> RepeatedHeader<'a> {
    fn text(&self) -> Result<Option<Cow<'a, str>>, RequestRefusal> {
        let Some(value) = self.value else {
            return Ok(None);
        };
        let malformed = || mismatch(&HeaderError::Malformed(self.name.clone()));
        header_value::decode(value).map(Some).ok_or_else(malformed)
    }

    fn agrees(&self, body: &str) -> Result<(), RequestRefusal> {
        let name = &self.name;
        if self
            .value
            .is_some_and(|value| header_value::is(value, body))
        {
            return Ok(());
        }
        match self.text()? {
            None => Err(RequestRefusal::mismatch(format!(
                "header {name} is missing"
            ))),
            Some(value) if *value == *body => Ok(()),
            Some(_) => Err(RequestRefusal::mismatch(format!(
                "header {name} and the body disagree"
            ))),
        }
    }
}

fn mismatch(error: &HeaderError) -> RequestRefusal {
    RequestRefusal::mismatch(error.to_string())
}

/// Whether the method is served here. Unknown methods are served too: an upstream's extension may define them.
fn is_served(known: &MethodRow) -> bool {
    known.is_for_servers(Revision::V2026_07_28)
}

#[cfg(test)]
mod tests;
