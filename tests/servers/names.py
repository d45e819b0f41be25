#!/usr/bin/env python3
"""A stdio server whose names and URIs are hard to keep apart. Usage: names.py TAG

Every answer says which server it came from and what that server was asked for.
"""

import json
import sys

TAG = sys.argv[1]
LONG = "long_" + "x" * 150

TOOLS = [
    "plain",
    "with__double__underscore",
    "__leading",
    "a__plain",
    "b__plain",
    LONG + "_first",
    LONG + "_second",
    "exactly_" + "y" * 56,
    "has space",
    "dotted.name/with-slash",
    "naïve☀",
    "links",
    "seen",
]
URIS = [
    "file:///etc/hosts",
    "urn:isbn:0451450523",
    "mailto:somebody@example.com",
    "db://table/rows?limit=1#top",
    "a+db://table/rows",
    "b+db://table/rows",
    "x+y:z",
    "ui://widget/index.html",
    "skill://pdf/SKILL.md",
    "memo:///%C3%A9/%2Fencoded",
    f"https://{TAG}.example/page",
]
TEMPLATES = [
    "db://{table}/rows{?limit}",
    "file:///{+path}",
    "{scheme}://anything",
    "ui://widget/{name}",
    f"https://{TAG}.example/items/{{id}}",
]
read = []


def links():
    linked = [{"type": "resource_link", "uri": uri, "name": "link"} for uri in URIS]
    embedded = [{"type": "resource", "resource": {"uri": uri, "text": "embedded"}} for uri in URIS]
    return {"content": [{"type": "text", "text": "see file:///etc/hosts"}, *linked, *embedded]}


def call(params):
    name = params.get("name")
    if name not in TOOLS:
        return None
    if name == "links":
        return links()
    answer = {"server": TAG, "name": name, "read": read if name == "seen" else None}
    return {"content": [{"type": "text", "text": json.dumps(answer)}]}


def contents(params):
    uri = params.get("uri")
    read.append(uri)
    return {"contents": [{"uri": uri, "mimeType": "text/plain", "text": f"{TAG} has {uri}"}]}


def prompt(params):
    text = {"type": "text", "text": f"{TAG} has {params.get('name')}"}
    resource = {"type": "resource", "resource": {"uri": URIS[0], "text": "embedded"}}
    return {"messages": [{"role": "user", "content": part} for part in (text, resource)]}


def completion(params):
    reference = params["ref"]
    return {"completion": {"values": [TAG, reference.get("name") or reference.get("uri")]}}


def initialize(params):
    kinds = ("tools", "prompts", "resources", "completions")
    return {
        "protocolVersion": "2025-11-25",
        "capabilities": {kind: {} for kind in kinds},
        "serverInfo": {"name": TAG, "version": "1"},
        "instructions": f"Instructions of {TAG}.",
    }


SCHEMA = {"type": "object"}
METHODS = {
    "initialize": initialize,
    "ping": lambda params: {},
    "tools/list": lambda params: {"tools": [{"name": n, "inputSchema": SCHEMA} for n in TOOLS]},
    "tools/call": call,
    "resources/list": lambda params: {"resources": [{"uri": u, "name": u} for u in URIS]},
    "resources/templates/list": lambda params: {
        "resourceTemplates": [{"uriTemplate": t, "name": t} for t in TEMPLATES]
    },
    "resources/read": contents,
    "prompts/list": lambda params: {"prompts": [{"name": n} for n in TOOLS]},
    "prompts/get": prompt,
    "completion/complete": completion,
}

for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message or "method" not in message:
        continue
    handler = METHODS.get(message["method"])
    result = handler(message.get("params") or {}) if handler else None
    reply = {"jsonrpc": "2.0", "id": message["id"]}
    if result is None:
        reply["error"] = {"code": -32602 if handler else -32601, "message": "unknown"}
    else:
        reply["result"] = result
    print(json.dumps(reply), flush=True)
