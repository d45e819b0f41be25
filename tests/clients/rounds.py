"""A client of the older era in front of servers that only know 2026-07-28: what they ask in rounds
of `input_required` comes as requests on the call's own stream.

Usage: python rounds.py '{"url": …, "token": …, "tasks": …}'; `tasks` is the URL of a server whose
jobs need the extension for tasks.
"""

import json
import sys

import anyio

from connect import connect
from report import tour

OPTIONS = json.loads(sys.argv[1])
VALUES = {
    "name": "Ada",
    "ok": True,
    "color": "green",
    "context": "the sea",
    "confirm": True,
    "value": "one",
}


def text(result):
    return "\n".join(block.get("text", "") for block in result["content"])


class Rounds:
    """The steps; `asked` is what the servers asked since it was emptied."""

    def __init__(self):
        self.asked = []
        self.is_willing = True
        self.answer = {
            "elicitation": self.elicited,
            "sampling": self.sampled,
            "roots": self.rooted,
        }

    def elicited(self, params):
        self.asked.append("form")
        fields = params["requestedSchema"]["properties"]
        content = {field: VALUES[field] for field in fields}
        return {"action": "accept", "content": content} if self.is_willing else {"action": "decline"}

    def sampled(self, params):
        self.asked.append("sampling")
        content = {"type": "text", "text": "Paris"}
        return {"role": "assistant", "model": "tour-model", "content": content}

    def rooted(self):
        self.asked.append("roots")
        return {"roots": [{"uri": "file:///home/ada", "name": "home"}]}

    async def rounds(self, tool):
        self.asked = []
        result = await self.peer.call(f"test_input_required_result_{tool}")
        assert not result.get("isError"), result
        return text(result), sorted(self.asked)

    async def form(self):
        assert await self.rounds("elicitation") == ("Hello, Ada!", ["form"])

    async def sampling(self):
        assert await self.rounds("sampling") == ("Sampling response: Paris", ["sampling"])

    async def roots(self):
        assert await self.rounds("list_roots") == ("Roots: file:///home/ada", ["roots"])

    async def three_at_once(self):
        expected = ("Paris Ada, 1 root(s)", ["form", "roots", "sampling"])
        assert await self.rounds("multiple_inputs") == expected

    async def one_after_the_other(self):
        assert await self.rounds("multi_round") == ("Ada likes green", ["form", "form"])

    async def state(self):
        assert await self.rounds("request_state") == ("state-ok", ["form"])
        assert await self.rounds("tampered_state") == ("integrity-ok", ["form"])

    async def prompt(self):
        got = await self.peer.get("get_prompt", "test_input_required_result_prompt")
        assert "the sea" in got["messages"][0]["content"]["text"], got

    async def refusal(self):
        self.is_willing, self.asked = False, []
        # It asks until it is answered; the rounds have an end.
        result = await self.peer.call("test_input_required_result_elicitation")
        self.is_willing = True
        assert result.get("isError"), result
        assert 0 < len(self.asked) <= 20, self.asked

    async def plain_job(self):
        assert "Ada" in text(await self.other.call("greet", {"name": "Ada"}))

    async def job_that_needs_tasks(self):
        self.asked = []
        result = await self.other.call("confirm_delete", {"filename": "x"})
        assert "confirmed = true" in text(result), result
        assert self.asked == ["form"], self.asked

    async def job_that_asks_twice_at_once(self):
        self.asked = []
        result = await self.other.call("multi_input")
        assert 'a = "one", b = "one"' in text(result), result
        assert self.asked == ["form", "form"], self.asked

    async def job_that_asks_before_it_is_a_task(self):
        result = await self.other.call("test_tool_with_task")
        assert "Hello, Ada! (async)" in text(result), result

    async def job_that_fails(self):
        result = await self.other.call("failing_job")
        assert result.get("isError") and "as it should" in text(result), result


async def main():
    it = Rounds()
    steps = [
        it.form,
        it.sampling,
        it.roots,
        it.three_at_once,
        it.one_after_the_other,
        it.state,
        it.prompt,
        it.refusal,
        it.plain_job,
        it.job_that_needs_tasks,
        it.job_that_asks_twice_at_once,
        it.job_that_asks_before_it_is_a_task,
        it.job_that_fails,
    ]
    token = OPTIONS.get("token")
    async with connect(OPTIONS["url"], it.answer, token, era="legacy") as it.peer:
        async with connect(OPTIONS["tasks"], it.answer, token, era="legacy") as it.other:
            return await tour(steps)


if __name__ == "__main__":
    sys.exit(0 if anyio.run(main) else 1)
