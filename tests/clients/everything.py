"""A tour of server-everything through an endpoint: every feature of one era, once.

Usage: python everything.py '{"url": …, "token": …, "upstream": …, "era": …}'
`upstream` is the name it has on a merged endpoint; absent on a pure one. `era` is legacy (the
default) or modern.
"""

import base64
import json
import re
import sys

import anyio
import mcp.types as types

from connect import connect
from report import eventually, tour

OPTIONS = json.loads(sys.argv[1])
UPSTREAM = OPTIONS.get("upstream")
ERA = OPTIONS.get("era", "legacy")


def name(bare):
    return f"{UPSTREAM}__{bare}" if UPSTREAM else bare


def uri(bare):
    return f"{UPSTREAM}+{bare}" if UPSTREAM else bare


DOCUMENT = uri("demo://resource/static/document/features.md")
TEMPLATE = uri("demo://resource/dynamic/text/{resourceId}")


def text(result):
    return "\n".join(block.get("text", "") for block in result["content"])


async def outcome(awaitable):
    """The result, or the error as the SDK raised it."""
    try:
        return await awaitable
    except Exception as error:
        return error


def code(error):
    assert isinstance(error, Exception), error
    return error.error.code


FORM = {"name": "Ada Lovelace", "check": True, "interpretation": "snake"}


class Everything:
    def __init__(self):
        self.asked = []
        self.shared = [{"uri": "file:///first", "name": "first"}]
        self.answer = {
            "sampling": self.sample,
            "elicitation": self.elicit,
            "roots": lambda: {"roots": self.shared},
        }
        self.peer = None

    def sample(self, params):
        self.asked.append(params)
        content = {"type": "text", "text": "sampled answer"}
        return {"role": "assistant", "model": "tour-model", "content": content}

    def elicit(self, params):
        self.asked.append(params)
        if params.get("mode") == "url":
            return {"action": "accept"}
        return {"action": "accept", "content": dict(FORM)}

    async def listed(self):
        # On a merged endpoint a slow starter is announced and shows up in a later list.
        async def shown():
            tools = (await self.peer.get("list_tools"))["tools"]
            return any(tool["name"] == name("echo") for tool in tools)

        await eventually("the server in the list", shown, 45)

    async def tools(self):
        names = [tool["name"] for tool in (await self.peer.get("list_tools"))["tools"]]
        for bare in ("echo", "get-sum", "trigger-sampling-request", "trigger-url-elicitation"):
            assert name(bare) in names, names
        assert re.search(r"\b5\b", text(await self.peer.call(name("get-sum"), {"a": 2, "b": 3})))
        echoed = await self.peer.call(name("echo"), {"message": "καλημέρα ☀"})
        assert "καλημέρα ☀" in text(echoed)
        structured = await self.peer.call(name("get-structured-content"), {"location": "Chicago"})
        assert isinstance(structured["structuredContent"]["temperature"], (int, float))

    async def tool_errors(self):
        for bare, arguments in (("get-sum", {"a": "x"}), ("no-such-tool", {})):
            result = await outcome(self.peer.call(name(bare), arguments))
            assert code(result) == -32602 if isinstance(result, Exception) else result["isError"]

    async def resources(self):
        listed = [r["uri"] for r in (await self.peer.get("list_resources"))["resources"]]
        assert DOCUMENT in listed, listed
        contents = (await self.peer.get("read_resource", self.peer.uri(DOCUMENT)))["contents"]
        assert contents[0]["uri"] == DOCUMENT and "Everything Server" in contents[0]["text"]
        missing = await outcome(self.peer.get("read_resource", self.peer.uri(uri("demo://nowhere"))))
        assert code(missing) < 0

    async def templates(self):
        listed = (await self.peer.get("list_resource_templates"))["resourceTemplates"]
        assert TEMPLATE in [template["uriTemplate"] for template in listed]
        wanted = TEMPLATE.replace("{resourceId}", "7")
        contents = (await self.peer.get("read_resource", self.peer.uri(wanted)))["contents"]
        assert contents[0]["uri"] == wanted and "Resource 7" in contents[0]["text"]

    async def prompts(self):
        names = [prompt["name"] for prompt in (await self.peer.get("list_prompts"))["prompts"]]
        assert name("args-prompt") in names, names
        prompt = await self.peer.get("get_prompt", name("args-prompt"), {"city": "Oslo"})
        assert "Oslo" in prompt["messages"][0]["content"]["text"]

    async def completion(self):
        ref = types.PromptReference(type="ref/prompt", name=name("completable-prompt"))
        first = await self.peer.get("complete", ref, {"name": "department", "value": "Eng"})
        assert first["completion"]["values"] == ["Engineering"]
        ref = types.ResourceTemplateReference(type="ref/resource", uri=TEMPLATE)
        second = await self.peer.get("complete", ref, {"name": "resourceId", "value": "4"})
        assert second["completion"]["values"] == ["4"]

    async def logging(self):
        await self.peer.get("set_logging_level", "debug")
        await self.peer.call(name("toggle-simulated-logging"))

        async def arrived():
            return self.peer.saw("notifications/message", lambda p: "essage" in str(p.get("data")))

        await eventually("a log message", arrived)
        await self.peer.call(name("toggle-simulated-logging"))

    async def progress(self):
        steps = []

        async def keep(progress, total, message):
            steps.append((progress, total))

        long = {"duration": 0.6, "steps": 3}
        await self.peer.call(name("trigger-long-running-operation"), long, progress=keep)
        assert steps == [(1, 3), (2, 3), (3, 3)], steps

    async def cancellation(self):
        with anyio.move_on_after(0.5) as scope:
            await self.peer.call(name("trigger-long-running-operation"), {"duration": 30, "steps": 150})
        assert scope.cancelled_caught
        assert "after" in text(await self.peer.call(name("echo"), {"message": "after"}))

    async def sampling(self):
        result = await self.peer.call(name("trigger-sampling-request"), {"prompt": "Say something"})
        assert "sampled answer" in text(result)
        assert "Say something" in json.dumps(self.asked[-1])

    async def elicitation_form(self):
        assert "Ada Lovelace" in text(await self.peer.call(name("trigger-elicitation-request")))
        assert self.asked[-1]["requestedSchema"]["properties"]["integer"]["maximum"] == 100

    async def task(self):
        """A tool that its server runs only as a task, for a client that asks for none."""
        query = {"topic": "python", "ambiguous": True}
        result = await self.peer.call(name("simulate-research-query"), query)
        assert "Research Report: python (snake)" in text(result), result
        assert "multiple interpretations" in self.asked[-1]["message"]

    async def elicitation_url(self):
        wanted = "https://example.com/consent"
        await self.peer.call(name("trigger-url-elicitation"), {"url": wanted})
        assert self.asked[-1]["mode"] == "url" and self.asked[-1]["url"] == wanted
        if ERA == "modern":
            return
        arguments = {"url": wanted, "errorPath": True}
        refused = await outcome(self.peer.call(name("trigger-url-elicitation"), arguments))
        assert code(refused) == -32042, refused

    async def roots(self):
        assert "file:///first" in text(await self.peer.call(name("get-roots-list")))
        if ERA == "modern":
            return
        self.shared = [{"uri": "file:///second", "name": "second"}]
        await self.peer.session.send_roots_list_changed()

        async def renewed():
            return "file:///second" in text(await self.peer.call(name("get-roots-list")))

        await eventually("the new roots", renewed)

    async def subscriptions(self):
        await self.peer.get("subscribe_resource", self.peer.uri(DOCUMENT))
        await self.peer.call(name("toggle-subscriber-updates"))

        async def arrived():
            return self.peer.saw("notifications/resources/updated", lambda p: p["uri"] == DOCUMENT)

        await eventually("an update", arrived)
        await self.peer.call(name("toggle-subscriber-updates"))
        await self.peer.get("unsubscribe_resource", self.peer.uri(DOCUMENT))

    async def listening(self):
        kinds = {"resources_list_changed": True, "resource_subscriptions": [DOCUMENT]}
        wanted = {"ResourceUpdated", "ResourcesListChanged"}
        seen = set()
        async with self.peer.session.listen(**kinds) as changes:
            await self.peer.call(name("toggle-subscriber-updates"))
            await self.make_resource()
            with anyio.fail_after(30):
                async for change in changes:
                    seen.add(type(change).__name__)
                    if wanted <= seen:
                        break
        await self.peer.call(name("toggle-subscriber-updates"))

    async def make_resource(self):
        data = base64.b64encode(b"hello " * 50).decode()
        arguments = {"name": "tour.gz", "data": f"data:text/plain;base64,{data}"}
        made = await self.peer.call(name("gzip-file-as-resource"), arguments)
        return next(b["uri"] for b in made["content"] if b["type"] == "resource_link")

    async def list_changed(self):
        self.peer.seen.clear()
        link = await self.make_resource()

        async def arrived():
            return self.peer.saw("notifications/resources/list_changed")

        await eventually("a change notice", arrived)
        listed = [r["uri"] for r in (await self.peer.get("list_resources"))["resources"]]
        assert link in listed, listed


async def main():
    it = Everything()
    common = [
        it.listed,
        it.tools,
        it.tool_errors,
        it.resources,
        it.templates,
        it.prompts,
        it.completion,
        it.progress,
        it.cancellation,
        it.sampling,
        it.elicitation_form,
        it.elicitation_url,
        it.task,
        it.roots,
    ]
    own = [it.listening] if ERA == "modern" else [it.logging, it.subscriptions, it.list_changed]
    async with connect(OPTIONS["url"], it.answer, OPTIONS.get("token"), era=ERA) as it.peer:
        return await tour(common + own)


if __name__ == "__main__":
    sys.exit(0 if anyio.run(main) else 1)
