"""A tour of server-everything by the client of FastMCP 2.x, which stands on the Python SDK.

Usage: python fast.py <JSON: { url, token? }>.
"""

import json
import sys

import anyio
from fastmcp import Client
from fastmcp.client.transports import StreamableHttpTransport
from report import eventually, tour

OPTIONS = json.loads(sys.argv[1])
LONG = "trigger-long-running-operation"


def text(result):
    return "\n".join(getattr(block, "text", "") for block in result.content)


class Tour:
    def __init__(self):
        self.client = None
        self.logged = []

    async def log(self, message):
        self.logged.append(message)

    async def sample(self, messages, params, context):
        return "sampled answer"

    async def elicit(self, message, response_type, params, context):
        return {"name": "Ada Lovelace", "check": True}

    async def tools(self):
        names = [tool.name for tool in await self.client.list_tools()]
        assert "echo" in names and "trigger-sampling-request" in names, names

    async def slow_call(self):
        steps = []

        async def progress(progress, total, message):
            steps.append((progress, total))

        result = await self.client.call_tool(LONG, {"duration": 1.2, "steps": 2}, progress_handler=progress)
        assert "completed" in text(result), result
        assert (1, 2) in steps, steps

    async def logging(self):
        await self.client.set_logging_level("debug")
        await self.client.call_tool("toggle-simulated-logging", {})

        async def arrived():
            return bool(self.logged)

        await eventually("a log message", arrived)
        await self.client.call_tool("toggle-simulated-logging", {})

    async def sampling(self):
        result = await self.client.call_tool("trigger-sampling-request", {"prompt": "Say something"})
        assert "sampled answer" in text(result), result

    async def elicitation(self):
        result = await self.client.call_tool("trigger-elicitation-request", {})
        assert "Ada Lovelace" in text(result), result

    async def hundred_parallel_calls(self):
        done = []

        async def call():
            done.append(text(await self.client.call_tool(LONG, {"duration": 1, "steps": 1})))

        async with anyio.create_task_group() as group:
            for _ in range(100):
                group.start_soon(call)
        assert len(done) == 100 and all("completed" in one for one in done), done

    async def session_is_still_good(self):
        await self.client.ping()


async def main():
    it = Tour()
    headers = {"Authorization": f"Bearer {OPTIONS['token']}"} if OPTIONS.get("token") else {}
    transport = StreamableHttpTransport(OPTIONS["url"], headers=headers)
    roots = ["file:///first"]
    handlers = {"log_handler": it.log, "sampling_handler": it.sample, "elicitation_handler": it.elicit}
    async with Client(transport, roots=roots, timeout=60, **handlers) as it.client:
        steps = [it.tools, it.slow_call, it.logging, it.sampling, it.elicitation]
        return await tour([*steps, it.hundred_parallel_calls, it.session_is_still_good])


if __name__ == "__main__":
    sys.exit(0 if anyio.run(main) else 1)
