//! The modern echo without a document model, for benchmarks: only for a fully valid request. Other requests take the
//! strict path.

use std::borrow::Cow;

use hyper::HeaderMap;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::{REVISION, SERVER_INFO};
use crate::methods::only_text;
use crate::options::Sse;
use crate::rpc::result_reply;
use crate::world::World;

#[derive(Deserialize)]
struct Request<'a> {
    #[serde(borrow)]
    id: &'a RawValue,
    method: &'a str,
    #[serde(borrow)]
    params: Params<'a>,
}

#[derive(Deserialize)]
struct Params<'a> {
    name: &'a str,
    #[serde(borrow)]
    arguments: &'a RawValue,
    #[serde(borrow, rename = "_meta")]
    meta: Meta<'a>,
}

#[derive(Deserialize)]
struct Meta<'a> {
    #[serde(rename = "io.modelcontextprotocol/protocolVersion")]
    version: &'a str,
    #[serde(borrow, rename = "io.modelcontextprotocol/clientCapabilities")]
    capabilities: &'a RawValue,
}

/// The reply to a valid `echo`; `None` for any other request.
pub(crate) fn echo(world: &World, headers: &HeaderMap, body: &[u8]) -> Option<String> {
    let request: Request<'_> = serde_json::from_slice(body).ok()?;
    let (params, meta) = (&request.params, &request.params.meta);
    let says = |name: &str, value: &str| {
        let mut given = headers.get_all(name).iter();
        given.next().is_some_and(|given| given == value) && given.next().is_none()
    };
    let is_in_order = request.method == "tools/call"
        && params.name == "echo"
        && meta.version == REVISION
        && meta.capabilities.get().starts_with('{')
        && says("mcp-protocol-version", REVISION)
        && says("mcp-method", request.method)
        && says("mcp-name", params.name)
        && world.options.sse == Sse::Auto;
    if !is_in_order {
        return None;
    }
    world.count(request.method);
    world.count("tool echo");
    let arguments = params.arguments.get();
    let text = only_text(arguments).map_or_else(
        || Cow::Owned(Value::from(arguments).to_string()),
        Cow::Borrowed,
    );
    let name = Value::from(world.options.name.as_str());
    let result = format!(
        r#"{{"resultType":"complete","content":[{{"type":"text","text":{text}}}],"_meta":{{"{SERVER_INFO}":{{"name":{name},"version":"1.0.0"}}}}}}"#
    );
    Some(result_reply(request.id.get(), &result))
}
