"""A tour of server-everything by an older release of the Python SDK, as programs that were deployed with it have it.

Usage: python old.py <JSON: { url, token? }>. This SDK ends a session with all its calls on any status of 400 or more.
"""

import json
import sys
from datetime import timedelta

import anyio
import mcp.types as types
from mcp import ClientSession
from mcp.client.streamable_http import streamablehttp_client
from report import eventually, tour

OPTIONS = json.loads(sys.argv[1])
DOCUMENT = "demo://resource/static/document/features.md"
LONG = "trigger-long-running-operation"


def text(result):
    return "\n".join(getattr(block, "text", "") for block in result.content)


class Old:
    def __init__(self):
        self.session = None
        self.seen = []

    async def keep(self, message):
        notice = getattr(message, "root", message)
        if hasattr(notice, "method") and not hasattr(notice, "id"):
            self.seen.append(notice.method)

    async def sampling_answer(self, context, params):
        content = types.TextContent(type="text", text="sampled answer")
        return types.CreateMessageResult(role="assistant", model="tour-model", content=content)

    async def roots_answer(self, context):
        root = types.Root.model_validate({"uri": "file:///first", "name": "first"})
        return types.ListRootsResult(roots=[root])

    async def tools(self):
        names = [tool.name for tool in (await self.session.list_tools()).tools]
        assert "echo" in names and "trigger-sampling-request" in names, names
        assert "καλημέρα ☀" in text(await self.session.call_tool("echo", {"message": "καλημέρα ☀"}))

    async def slow_call(self):
        result = await self.session.call_tool(LONG, {"duration": 1.2, "steps": 1})
        assert "completed" in text(result), result

    async def logging(self):
        await self.session.set_logging_level("debug")
        await self.session.call_tool("toggle-simulated-logging", {})

        async def arrived():
            return "notifications/message" in self.seen

        await eventually("a log message", arrived)
        await self.session.call_tool("toggle-simulated-logging", {})

    async def sampling(self):
        result = await self.session.call_tool("trigger-sampling-request", {"prompt": "Say something"})
        assert "sampled answer" in text(result), result

    async def roots(self):
        assert "file:///first" in text(await self.session.call_tool("get-roots-list", {}))

    async def hundred_parallel_calls(self):
        done = []

        async def call(name, arguments, expected):
            result = await self.session.call_tool(name, arguments)
            assert expected in text(result), result
            done.append(name)

        async with anyio.create_task_group() as group:
            for _ in range(100):
                group.start_soon(call, LONG, {"duration": 1, "steps": 1}, "completed")
        async with anyio.create_task_group() as group:
            for at in range(256):
                group.start_soon(call, "echo", {"message": f"call {at}"}, f"call {at}")
        assert len(done) == 356, len(done)

    async def session_is_still_good(self):
        assert "after" in text(await self.session.call_tool("echo", {"message": "after"}))


async def main():
    it = Old()
    token = OPTIONS.get("token")
    headers = {"Authorization": f"Bearer {token}"} if token else None
    waits = timedelta(seconds=60)
    async with streamablehttp_client(OPTIONS["url"], headers=headers) as (reader, writer, _):
        async with ClientSession(
            reader,
            writer,
            read_timeout_seconds=waits,
            sampling_callback=it.sampling_answer,
            list_roots_callback=it.roots_answer,
            message_handler=it.keep,
        ) as it.session:
            await it.session.initialize()
            steps = [it.tools, it.slow_call, it.logging, it.sampling, it.roots, it.hundred_parallel_calls]
            return await tour([*steps, it.session_is_still_good])


if __name__ == "__main__":
    sys.exit(0 if anyio.run(main) else 1)
