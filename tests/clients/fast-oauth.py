"""FastMCP's own login: from 401 to a tool call with the scope of the first challenge.

Usage: python fast-oauth.py '{"url": …, "plainTool": …, "scopedTool": …}'
"""

import json
import sys
import urllib.request

import anyio
from fastmcp import Client
from fastmcp.client.auth import OAuth
from report import tour
from visit import visit

OPTIONS = json.loads(sys.argv[1])


class Login(OAuth):
    """The user at the browser, who ends at the callback that FastMCP listens on."""

    visits = 0

    async def redirect_handler(self, authorization_url):
        self.visits += 1
        landed = await anyio.to_thread.run_sync(visit, authorization_url, str(self.redirect_uri))
        async with anyio.create_task_group() as group:
            group.start_soon(anyio.to_thread.run_sync, open_later, landed)

    @property
    def redirect_uri(self):
        return self.context.client_metadata.redirect_uris[0]


def open_later(url):
    """Its callback is opened after the link was."""
    import threading
    import time

    def retry():
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        for _ in range(200):
            try:
                return direct.open(url, timeout=10).read()
            except urllib.error.HTTPError:
                return None
            except OSError:
                time.sleep(0.05)

    threading.Thread(target=retry, daemon=True).start()


async def main():
    login = Login(OPTIONS["url"])
    async with Client(OPTIONS["url"], auth=login) as client:

        async def from_401_to_a_tool_call():
            assert not (await client.call_tool(OPTIONS["plainTool"], {})).is_error
            assert login.visits == 1

        async def through_a_step_up():
            assert not (await client.call_tool(OPTIONS["scopedTool"], {})).is_error
            assert login.visits == 1

        return await tour([from_401_to_a_tool_call, through_a_step_up])


if __name__ == "__main__":
    sys.exit(0 if anyio.run(main) else 1)
