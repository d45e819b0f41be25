"""The Python SDK, 1.x and 2.x, behind one small surface: what the tours need and no more.

Results are plain dictionaries with the names of the wire.
"""

import importlib.metadata
from contextlib import AsyncExitStack, asynccontextmanager

import mcp.types as types
from mcp import ClientSession

SDK = int(importlib.metadata.version("mcp").split(".")[0])


def wire(model):
    return model.model_dump(by_alias=True, mode="json", exclude_none=True)


class Connection:
    """One connected client: `session` is the SDK's own, `seen` the notifications it received."""

    def __init__(self, session, seen):
        self.session = session
        self.seen = seen

    async def call(self, name, arguments=None, progress=None):
        return wire(await self.session.call_tool(name, arguments or {}, progress_callback=progress))

    async def get(self, verb, *args, **named):
        return wire(await getattr(self.session, verb)(*args, **named))

    def uri(self, text):
        if SDK == 1:
            from pydantic import AnyUrl

            return AnyUrl(text)
        return text

    def saw(self, method, matches=lambda params: True):
        return any(n["method"] == method and matches(n.get("params") or {}) for n in self.seen)


@asynccontextmanager
async def connect(url, answer, token=None, auth=None, era="auto"):
    """A connected client whose questions go to `answer` (sampling, elicitation, roots).

    `era` is auto, legacy or modern; SDK 1.x knows only the older one. A URL with `/sse` means HTTP+SSE, of SDK
    1.x.
    """
    seen = []

    async def keep(message):
        notice = getattr(message, "root", message)
        if hasattr(notice, "method") and not hasattr(notice, "id"):
            seen.append(wire(notice))

    async def sampling(context, params):
        return types.CreateMessageResult.model_validate(answer["sampling"](wire(params)))

    async def elicitation(context, params):
        return types.ElicitResult.model_validate(answer["elicitation"](wire(params)))

    async def roots(context):
        return types.ListRootsResult.model_validate(answer["roots"]())

    callbacks = {
        "sampling_callback": sampling,
        "elicitation_callback": elicitation,
        "list_roots_callback": roots,
        "message_handler": keep,
    }
    headers = {"Authorization": f"Bearer {token}"} if token else None
    if SDK == 1:
        import httpx
        from mcp.client.sse import sse_client
        from mcp.client.streamable_http import streamable_http_client

        async with AsyncExitStack() as stack:
            if "/sse" in url:
                reader, writer = await stack.enter_async_context(sse_client(url, headers=headers, auth=auth))
            else:
                http = httpx.AsyncClient(headers=headers, auth=auth, timeout=60)
                http = await stack.enter_async_context(http)
                streams = streamable_http_client(url, http_client=http)
                reader, writer, _ = await stack.enter_async_context(streams)
            session = await stack.enter_async_context(ClientSession(reader, writer, **callbacks))
            await session.initialize()
            yield Connection(session, seen)
    else:
        import httpx2
        from mcp.client.client import Client
        from mcp.client.streamable_http import streamable_http_client

        async with httpx2.AsyncClient(headers=headers, auth=auth, timeout=60) as http:
            transport = streamable_http_client(url, http_client=http)
            async with Client(transport, mode={"modern": "2026-07-28"}.get(era, era), **callbacks) as client:
                yield Connection(client, seen)
