"""From 401 to a tool call, and through a scope step-up, without anybody at the keyboard.

Usage: python oauth.py '{"url": …, "plainTool": …, "scopedTool": …, "scope": …}'
"""

import html.parser
import json
import sys
import urllib.parse
import urllib.request
from http.cookiejar import CookieJar

import anyio
from mcp.client.auth import OAuthClientProvider, TokenStorage
from mcp.shared.auth import OAuthClientMetadata

from connect import SDK, connect
from report import tour

OPTIONS = json.loads(sys.argv[1])
REDIRECT = "http://127.0.0.1:9/callback"


class Forms(html.parser.HTMLParser):
    """The first form of a page: where it goes and what it holds."""

    def __init__(self, page):
        super().__init__()
        self.action, self.fields = None, {}
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if tag == "form" and self.action is None:
            self.action = attributes.get("action")
        elif tag == "input" and "name" in attributes:
            self.fields[attributes["name"]] = attributes.get("value") or "user"


class Back(urllib.request.HTTPRedirectHandler):
    """Follows redirects up to the client's own address."""

    def redirect_request(self, request, fp, code, msg, headers, newurl):
        if newurl.startswith(REDIRECT):
            raise Landed(newurl)
        return super().redirect_request(request, fp, 303, msg, headers, newurl)


class Landed(Exception):
    pass


def visit(url):
    """A user at a browser: follows redirects and presses every button."""
    opener = urllib.request.build_opener(
        urllib.request.HTTPCookieProcessor(CookieJar()), urllib.request.ProxyHandler({}), Back()
    )
    form = None
    try:
        for _ in range(10):
            with opener.open(url, data=form) as response:
                page, url = Forms(response.read().decode()), response.geturl()
            assert page.action, f"no form at {url}"
            url = urllib.parse.urljoin(url, page.action)
            form = urllib.parse.urlencode(page.fields).encode()
    except Landed as landed:
        return dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(str(landed)).query))
    raise AssertionError(f"still at {url}")


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
        self.landed = await anyio.to_thread.run_sync(visit, url)

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
            assert len(user.requested) == 2, user.requested
            assert OPTIONS["scope"] in user.requested[1].split(), user.requested

        async def still_the_same_user_afterwards():
            assert not (await peer.call(OPTIONS["plainTool"])).get("isError")

        return await tour(
            [from_401_to_a_tool_call, through_a_step_up, still_the_same_user_afterwards]
        )


if __name__ == "__main__":
    sys.exit(0 if anyio.run(main) else 1)
