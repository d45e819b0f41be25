"""Token exchange with Keycloak: an upstream that demands its own tokens, and callers who are seen there as themselves."""

import base64
import json
import threading
import urllib.error
import urllib.parse
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PORT = 8082
URL = f"http://localhost:{PORT}/mcp"
MCP = "http://localhost:8080/mcp"
SECRET = "drawbridge-gateway-secret"
direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def claims(token):
    payload = token.split(".")[1]
    return json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))


class Upstream:
    """An MCP server of 2025-11-25 that demands tokens of `issuer`, and tells each caller who it is."""

    def __init__(self, issuer, audience):
        self.seen = []
        upstream = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

            def answer(self, status, body=None, **headers):
                text = b"" if body is None else json.dumps(body).encode()
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name.replace("_", "-"), value)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def user(self):
                header = self.headers.get("authorization", "")
                if not header.startswith("Bearer "):
                    return None
                token = header.removeprefix("Bearer ")
                upstream.seen.append(token)
                said = claims(token)
                audiences = said.get("aud", [])
                audiences = [audiences] if isinstance(audiences, str) else audiences
                is_good = said["iss"] == issuer and (audience is None or audience in audiences)
                return said["sub"] if is_good else None

            def refuse(self):
                place = f"http://localhost:{PORT}/.well-known/oauth-protected-resource/mcp"
                self.answer(401, {}, www_authenticate=f'Bearer resource_metadata="{place}"')

            def do_GET(self):
                if self.path.startswith("/.well-known/"):
                    return self.answer(200, {"resource": URL, "authorization_servers": [issuer]})
                return self.answer(405) if self.user() else self.refuse()

            def do_POST(self):
                message = json.loads(self.rfile.read(int(self.headers["content-length"])))
                user = self.user()
                if not user:
                    return self.refuse()
                if "id" not in message:
                    return self.answer(202)
                result = upstream.result(message["method"], user)
                reply = {"jsonrpc": "2.0", "id": message["id"]}
                if result is None:
                    reply["error"] = {"code": -32601, "message": "Method not found"}
                else:
                    reply["result"] = result
                return self.answer(200, reply)

        self.server = ThreadingHTTPServer(("127.0.0.1", PORT), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def result(self, method, user):
        if method == "initialize":
            info = {"name": "payroll", "version": "1"}
            return {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info}
        if method == "tools/list":
            return {"tools": [{"name": "whoami", "inputSchema": {"type": "object"}}]}
        if method == "tools/call":
            return {"content": [{"type": "text", "text": user}]}
        return None

    def stop(self):
        self.server.shutdown()
        self.server.server_close()


def prepare(admin):
    """Lets the gateway's client exchange tokens for the client `payroll`, and users have tokens without a browser."""
    [gateway] = admin("GET", "/clients?clientId=drawbridge-gateway")
    gateway["attributes"]["standard.token.exchange.enabled"] = "true"
    admin("PUT", f"/clients/{gateway['id']}", gateway)
    admin("POST", "/clients", {"clientId": "payroll", "publicClient": True, "standardFlowEnabled": False})
    mapper = {
        "name": "audience of payroll",
        "protocol": "openid-connect",
        "protocolMapper": "oidc-audience-mapper",
        "config": {"included.client.audience": "payroll", "access.token.claim": "true"},
    }
    scope = {"name": "payroll", "protocol": "openid-connect", "protocolMappers": [mapper]}
    admin("POST", "/client-scopes", scope)
    [scope] = [one for one in admin("GET", "/client-scopes") if one["name"] == "payroll"]
    admin("PUT", f"/clients/{gateway['id']}/optional-client-scopes/{scope['id']}")
    tester = {
        "clientId": "tester",
        "publicClient": True,
        "standardFlowEnabled": False,
        "directAccessGrantsEnabled": True,
        "attributes": {"access.token.header.type.rfc9068": "true"},
        "defaultClientScopes": ["basic", "mcp:tools"],
    }
    admin("POST", "/clients", tester)


def token_of(realm, user):
    form = {"grant_type": "password", "client_id": "tester", "username": user, "password": user}
    data = urllib.parse.urlencode(form).encode()
    with direct.open(f"{realm}/protocol/openid-connect/token", data) as response:
        return json.load(response)["access_token"]


def account(keys):
    """The upstream and its account for the gateway's configuration."""
    return (
        f'[upstreams.payroll]\nurl = "{URL}"\nera = "legacy"\n[upstreams.payroll.auth]\nkind = "token_exchange"\n'
        f'client_id = "drawbridge-gateway"\nclient_secret = "{SECRET}"\n{keys}\n'
    )


def ask(token, method, params=None, session=None, number=1):
    """One request to the merged endpoint: its result, and the session."""
    message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params or {}}
    headers = {
        "authorization": f"Bearer {token}",
        "content-type": "application/json",
        "accept": "application/json, text/event-stream",
        **({"mcp-session-id": session, "mcp-protocol-version": "2025-11-25"} if session else {}),
    }
    request = urllib.request.Request(MCP, json.dumps(message).encode(), headers)
    with direct.open(request, timeout=60) as response:
        text = response.read().decode()
        session = response.headers.get("mcp-session-id", session)
    lines = [line.removeprefix("data:") for line in text.splitlines() if line.startswith("data:")]
    replies = [json.loads(line) for line in lines or [text] if line.strip()]
    [reply] = [one for one in replies if one.get("id") == number]
    return reply, session


def who(token):
    """What the upstream's tool says who the caller is."""
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    _, session = ask(token, "initialize", hello)
    listed, _ = ask(token, "tools/list", None, session, 2)
    names = [tool["name"] for tool in listed["result"]["tools"]]
    [name] = [name for name in names if name.endswith("whoami")]
    called, _ = ask(token, "tools/call", {"name": name, "arguments": {}}, session, 3)
    return called["result"]["content"][0]["text"]
