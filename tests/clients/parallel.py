"""Thirty calls at once, in each of which the server asks: every question is answered.

Usage: python parallel.py '{"url": …, "token": …, "era": …}'
"""

import json
import sys

import anyio

from connect import connect
from report import tour

OPTIONS = json.loads(sys.argv[1])
COUNT = 30


class Parallel:
    """The step, and how many questions were asked."""

    def __init__(self):
        self.asked = 0

    def elicit(self, params):
        self.asked += 1
        return {"action": "accept", "content": {"name": f"guest {self.asked}"}}

    async def every_question_is_answered(self):
        said = []

        async def call():
            said.append((await self.peer.call("confirm"))["content"][0]["text"])

        async with anyio.create_task_group() as calls:
            for _ in range(COUNT):
                calls.start_soon(call)
        assert all(text.startswith("accept guest ") for text in said), said
        assert len(set(said)) == COUNT, said


async def main():
    it = Parallel()
    async with connect(OPTIONS["url"], {"elicitation": it.elicit}, OPTIONS.get("token"), era=OPTIONS["era"]) as it.peer:
        return await tour([it.every_question_is_answered])


if __name__ == "__main__":
    sys.exit(0 if anyio.run(main) else 1)
