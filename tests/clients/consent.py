"""The first call of a user without an account: the program shows the link, the user agrees in a browser, and the call ends with
its result.

Usage: CHROMIUM=<program> python consent.py '{"url": …, "era": …, "node": …}'
"""

import json
import subprocess
import sys
from pathlib import Path

import anyio

from connect import connect
from report import tour

OPTIONS = json.loads(sys.argv[1])
AGREE = str(Path(__file__).with_name("agree.mjs"))
visits = []


def elicited(params):
    assert params["mode"] == "url", params
    # Steps are told on stdout.
    visits.append(subprocess.Popen([OPTIONS["node"], AGREE, params["url"]], stdout=sys.stderr))
    return {"action": "accept"}


async def main():
    async with connect(OPTIONS["url"], {"elicitation": elicited}, era=OPTIONS["era"]) as client:

        async def echo(text):
            result = await client.call("echo", {"text": text})
            return "\n".join(block["text"] for block in result["content"])

        async def the_first_call_leads_to_a_result():
            assert await echo("first") == "first"
            [visit] = visits
            assert await anyio.to_thread.run_sync(visit.wait) == 0

        async def the_next_call_asks_nobody():
            assert await echo("next") == "next"
            assert len(visits) == 1

        return await tour([the_first_call_leads_to_a_result, the_next_call_asks_nobody])


sys.exit(0 if anyio.run(main) else 1)
