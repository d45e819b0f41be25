"""From 401 to a tool call, and through a scope step-up, without anybody at the keyboard.

Usage: python oauth.py '{"url": …, "plainTool": …, "scopedTool": …, "scope": …}'
"""

import json
import sys
import urllib.parse

import anyio
from mcp.client.auth import OAuthClientProvider, TokenStorage
from mcp.shared.auth import OAuthClientMetadata

from connect import SDK, connect
from report import tour
from visit import visit

OPTIONS = json.loads(sys.argv[1])
REDIRECT = "http://127.0.0.1:9/callback"


class Memory(TokenStorage):
    tokens = client = None

    async def get_tokens(self):
        return self.tokens

    async def set_tokens(self, tokens):
        self.tokens = tokens

    async def get_client_info(self):
        return self.client

    async def set_client_info(self, client_info):
        self.client = client_info


class User:
    def __init__(self):
        self.requested = []
        self.landed = None

    async def redirect(self, url):
        query = urllib.parse.parse_qs(urllib.parse.urlsplit(url).query)
        self.requested.append(query.get("scope", [""])[0])
        landed = await anyio.to_thread.run_sync(visit, url, REDIRECT)
        self.landed = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(landed).query))

    async def callback(self):
        if SDK == 1:
            return self.landed["code"], self.landed.get("state")
        from mcp.client.auth import AuthorizationCodeResult

        fields = {name: self.landed.get(name) for name in ("code", "state", "iss")}
        return AuthorizationCodeResult(**fields)


async def main():
    user = User()
    metadata = OAuthClientMetadata.model_validate(
        {
            "client_name": f"tour-python-{SDK}",
            "redirect_uris": [REDIRECT],
            "grant_types": ["authorization_code", "refresh_token"],
            "response_types": ["code"],
            "token_endpoint_auth_method": "none",
        }
    )
    auth = OAuthClientProvider(OPTIONS["url"], metadata, Memory(), user.redirect, user.callback)
    answer = {"roots": lambda: {"roots": []}, "sampling": None, "elicitation": None}
    async with connect(OPTIONS["url"], answer, auth=auth) as peer:

        async def from_401_to_a_tool_call():
            assert len(user.requested) == 1, user.requested
            assert (await peer.get("list_tools"))["tools"]
            assert not (await peer.call(OPTIONS["plainTool"])).get("isError")

        async def through_a_step_up():
            assert not (await peer.call(OPTIONS["scopedTool"])).get("isError")
            # With `auth.login_scopes` the first login brought the scope.
            assert len(user.requested) == (1 if OPTIONS.get("atLogin") else 2), user.requested
            assert OPTIONS["scope"] in user.requested[-1].split(), user.requested

        async def still_the_same_user_afterwards():
            assert not (await peer.call(OPTIONS["plainTool"])).get("isError")

        return await tour(
            [from_401_to_a_tool_call, through_a_step_up, still_the_same_user_afterwards]
        )


if __name__ == "__main__":
    sys.exit(0 if anyio.run(main) else 1)
