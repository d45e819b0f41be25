#!/usr/bin/env python3
"""A server on the Python SDK, 1.x or 2.x, that demands tokens of an authorization server for itself alone, and says the
name of a token's user in all that it declares and lists.

Usage: personal.py ISSUER SEEN [SCOPE]. Prints its URL as the first line; each token that it is sent is appended to the file
SEEN. Tokens need SCOPE, by default `mcp:tools`.
"""

import json
import socket
import sys
import urllib.request
from importlib.metadata import version

import jwt
import uvicorn
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings

ISSUER, SEEN, SCOPE = [*sys.argv[1:], "mcp:tools"][:3]
listener = socket.socket()
listener.bind(("127.0.0.1", 0))
listener.listen()
URL = f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"

with urllib.request.urlopen(f"{ISSUER}/.well-known/oauth-authorization-server") as response:
    keys = jwt.PyJWKClient(json.load(response)["jwks_uri"])


def key_of(token):
    """The key that the token names. `oidc-provider` of the tests has one key, which its tokens do not name."""
    if "kid" in jwt.get_unverified_header(token):
        return keys.get_signing_key_from_jwt(token)
    [key] = keys.get_signing_keys()
    return key


def client_of(claims):
    """Keycloak calls the client `azp`."""
    return claims.get("client_id") or claims["azp"]


class Verifier:
    async def verify_token(self, token):
        with open(SEEN, "a") as seen:
            seen.write(f"{token}\n")
        try:
            claims = jwt.decode(token, key_of(token), ["ES256"], audience=URL, issuer=ISSUER, options={"require": ["exp", "sub"]})
        except jwt.PyJWTError:
            return None
        return AccessToken(
            token=token,
            client_id=client_of(claims),
            scopes=claims["scope"].split(),
            expires_at=claims["exp"],
            resource=URL,
            subject=claims["sub"],
            claims=claims,
        )


def hello():
    """For the user whose request opens a session."""
    token = get_access_token()
    return f"Hello {token.subject}" if token else None


def user_of(request):
    """The user of this very request, also in a session that another one has opened."""
    return request.user.access_token.subject


def said(request, name, arguments):
    claims = request.user.access_token.claims
    user = claims["sub"]
    if name != f"greet_{user}":
        raise ValueError(f"{user} has no {name}")
    return f"I am {user}, at {claims['aud']}, by {client_of(claims)}: {arguments['text']}"


SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}}
auth = AuthSettings(
    issuer_url=ISSUER, resource_server_url=URL, required_scopes=[SCOPE], validate_token_resource=True
)


def first():
    from mcp import types
    from mcp.server.fastmcp import FastMCP

    class Personal(FastMCP):
        def user(self):
            return user_of(self.get_context().request_context.request)

        async def list_tools(self):
            user = self.user()
            return [types.Tool(name=f"greet_{user}", description=f"Greets {user}", inputSchema=SCHEMA)]

        async def list_prompts(self):
            user = self.user()
            return [types.Prompt(name=f"letter_{user}", description=f"A letter of {user}")]

        async def list_resources(self):
            user = self.user()
            return [types.Resource(name=f"Notes of {user}", uri=f"note://{user}")]

        async def call_tool(self, name, arguments):
            request = self.get_context().request_context.request
            return [types.TextContent(type="text", text=said(request, name, arguments))]

    server = Personal("personal", auth=auth, token_verifier=Verifier(), log_level="WARNING")
    lowlevel = server._mcp_server
    plain = lowlevel.create_initialization_options

    def options(*args, **more):
        return plain(*args, **more).model_copy(update={"instructions": hello()})

    lowlevel.create_initialization_options = options
    return server.streamable_http_app()


def second():
    from mcp import types
    from mcp.server.lowlevel import Server

    class Personal(Server):
        @property
        def instructions(self):
            return hello()

        @instructions.setter
        def instructions(self, _):
            pass

    async def list_tools(ctx, _):
        user = user_of(ctx.request)
        tool = types.Tool(name=f"greet_{user}", description=f"Greets {user}", input_schema=SCHEMA)
        return types.ListToolsResult(tools=[tool])

    async def list_prompts(ctx, _):
        user = user_of(ctx.request)
        return types.ListPromptsResult(prompts=[types.Prompt(name=f"letter_{user}", description=f"A letter of {user}")])

    async def list_resources(ctx, _):
        user = user_of(ctx.request)
        return types.ListResourcesResult(resources=[types.Resource(name=f"Notes of {user}", uri=f"note://{user}")])

    async def call_tool(ctx, params):
        text = said(ctx.request, params.name, params.arguments)
        return types.CallToolResult(content=[types.TextContent(type="text", text=text)])

    server = Personal(
        "personal",
        on_list_tools=list_tools,
        on_list_prompts=list_prompts,
        on_list_resources=list_resources,
        on_call_tool=call_tool,
    )
    return server.streamable_http_app(auth=auth, token_verifier=Verifier())


app = first() if version("mcp").startswith("1.") else second()
print(URL, flush=True)
uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listener])
