"""Accounts at an upstream with Keycloak, by identity assertions (kind `id_jag`)."""

import base64
import json
import re
import time
import urllib.error
import urllib.parse
import urllib.request

import exchange
from harness import NODE, REALM, Program, admin, logged, script, tour

LOGIN_SECRET = "drawbridge-login-secret"
PAYROLL_SECRET = "drawbridge-payroll-secret"
GATEWAY = "http://localhost:8080"
HELLO = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
KEYCLOAK_LOGIN = f'issuer = "{REALM}"\nclient_id = "drawbridge-login"\nclient_secret = "{LOGIN_SECRET}"\n'

# The identity provider that asserts its users, to servers that know the gateway as `drawbridge-payroll`.
PROVIDER = "http://127.0.0.1:8083"
PROVIDER_SECRET = "a login's secret: %&+"
PROVIDER_LOGIN = f'issuer = "{PROVIDER}"\nclient_id = "login"\nclient_secret = "{PROVIDER_SECRET}"\n'
PROVIDER_AUTH = f'[auth]\nmode = "oauth"\nrequired_scopes = ["mcp:tools"]\n[[auth.issuers]]\nissuer = "{PROVIDER}"\n'


# Settings


def register(path, name, secret, **more):
    """Registers the gateway with a redirect URI that ends with `path`."""
    client = {
        "clientId": name,
        "secret": secret,
        "publicClient": False,
        "redirectUris": [f"{GATEWAY}{path}"],
        "optionalClientScopes": ["offline_access"],
        **more,
    }
    admin("POST", "/clients", client)


def register_login():
    # `profile` has the name that a page calls its person by.
    scopes = ["basic", "profile"]
    attributes = {"standard.token.exchange.enabled": "true"}
    register(
        "/connect/callback/login",
        "drawbridge-login",
        LOGIN_SECRET,
        defaultClientScopes=scopes,
        attributes=attributes,
    )


def register_payroll(attributes):
    path = "/connect/payroll/callback"
    scopes = ["basic", "payroll"]
    register(path, "drawbridge-payroll", PAYROLL_SECRET, defaultClientScopes=scopes, attributes=attributes)


def prepare_assertions():
    """The gateway as a client for logins, and for accounts by assertions of another provider, where alice and bob are known by these names."""
    register_login()
    grant = "oauth2.jwt.authorization.grant"
    attributes = {f"{grant}.enabled": "true", f"{grant}.idp": "company"}
    register_payroll(attributes)
    register("/connect/other/callback", "drawbridge-other", PAYROLL_SECRET, attributes=attributes)
    config = {
        "issuer": PROVIDER,
        "jwksUrl": f"{PROVIDER}/jwks",
        "useJwksUrl": "true",
        "jwtAuthorizationGrantEnabled": "true",
    }
    provider = {"alias": "company", "providerId": "jwt-authorization-grant", "enabled": True, "config": config}
    admin("POST", "/identity-provider/instances", provider)
    for name in ("alice", "bob"):
        [user] = admin("GET", f"/users?username={name}&exact=true")
        link = {"identityProvider": "company", "userId": name, "userName": name}
        admin("POST", f"/users/{user['id']}/federated-identity/company", link)


def tables(directory, account, login):
    """The upstream, its accounts and the login, for the gateway's configuration."""
    return (
        f'[upstreams.payroll]\nurl = "{exchange.URL}"\nera = "legacy"\n[upstreams.payroll.auth]\n{account}'
        f'[database]\nurl = "sqlite:{directory}/{time.monotonic_ns()}.db"\n[connect.login]\n{login}'
    )


def account(kind, issuer=REALM, client="drawbridge-payroll", secret=PAYROLL_SECRET):
    return (
        f'kind = "{kind}"\nissuer = "{issuer}"\nclient_id = "{client}"\nclient_secret = "{secret}"\nscopes = ["payroll"]\n'
    )


def start_provider(directory):
    env = {"JAG_CLIENT": "drawbridge-payroll", "LOGIN_REDIRECT": f"{GATEWAY}/connect/callback/login"}
    port = str(urllib.parse.urlsplit(PROVIDER).port)
    provider = Program("provider", [NODE, script("as/server.mjs"), port], directory, env)
    provider.until("the provider", lambda: PROVIDER in provider.log.read_text(), 30)
    return provider


# What users do


def link_of(token):
    """The link that a call without an account is answered with."""
    _, session = exchange.ask(token, "initialize", HELLO)
    listed, _ = exchange.ask(token, "tools/list", None, session, 2)
    names = [tool["name"] for tool in listed["result"]["tools"] if "payroll" in tool["name"]]
    assert names == ["connect_payroll"], names
    called, _ = exchange.ask(token, "tools/call", {"name": "connect_payroll", "arguments": {}}, session, 3)
    text = called["result"]["content"][0]["text"]
    return re.search(rf"{GATEWAY}/connect/payroll\?\S+", text)[0]


def walk(link, user):
    """Takes `user` in a browser from `link` to an account."""
    steps = ["the_login_leads_back", "the_consent_connects"]
    tour([NODE, script("clients/account.mjs"), json.dumps({"link": link})], steps, user)


# Tests


def keycloak_takes_assertions_of_another_provider(gateway):
    upstream = exchange.Upstream(REALM, "payroll")
    try:
        subjects = {}
        for name in ("alice", "bob"):
            [user] = admin("GET", f"/users?username={name}&exact=true")
            query = urllib.parse.urlencode({"sub": name, "resource": exchange.MCP, "scope": "mcp:tools"})
            token = read(f"{PROVIDER}/test/access_token?{query}")
            walk(link_of(token), name)
            assert exchange.who(token) == user["id"], name
            subjects[user["id"]] = token
        assert {exchange.claims(token)["sub"] for token in upstream.seen} == set(subjects)
        log = logged(gateway, "both accounts in the log", lambda log: log.count("account was connected") == 2)
        for secret in [*subjects.values(), *upstream.seen, PAYROLL_SECRET, PROVIDER_SECRET]:
            assert secret not in log
    finally:
        upstream.stop()


def keycloak_checks_assertions_but_neither_resource_nor_scope(_):
    granted = redeem(assertion("alice", scope="mcp:admin", resource=exchange.URL))
    claims = exchange.claims(granted["access_token"])
    assert (claims["aud"], claims["scope"]) == ("payroll", "payroll"), claims
    assert "refresh_token" not in granted
    used = assertion("alice")
    redeem(used)
    for refused, why in (
        (used, "Token reuse detected"),
        (assertion("carol"), "User not found"),
        (assertion("alice", audience=f"{REALM}/"), "Invalid token audience"),
    ):
        answer = redeem(refused)
        assert (answer["error"], answer["error_description"]) == ("invalid_grant", why), answer
    # Without the feature any client is given a token for it.
    answer = redeem(assertion("alice"), "drawbridge-other")
    assert answer["error"] == "invalid_grant" and "client id in assertion" in answer["error_description"], answer


def keycloak_issues_no_assertion(gateway):
    upstream = exchange.Upstream(PROVIDER, None)
    try:
        token = exchange.token_of(REALM, "alice")
        walk(link_of(token), "alice")
        _, session = exchange.ask(token, "initialize", HELLO)
        called, _ = exchange.ask(token, "tools/call", {"name": "payroll__whoami", "arguments": {}}, session, 2)
        assert "gives the gateway no assertion" in json.dumps(called), called
        said = ("the account of an upstream cannot be used", "supports access tokens only")
        logged(gateway, "Keycloak's words in the log", lambda log: all(part in log for part in said))
        assert not upstream.seen
    finally:
        upstream.stop()


# Requests past the gateway


def read(url):
    with exchange.direct.open(url, timeout=30) as response:
        return response.read().decode()


def post(url, client, secret, form):
    """The answer of a token endpoint, also to a request that it refuses."""
    pair = ":".join(urllib.parse.quote(text, safe="") for text in (client, secret))
    headers = {"authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}
    request = urllib.request.Request(url, urllib.parse.urlencode(form).encode(), headers)
    try:
        with exchange.direct.open(request, timeout=30) as response:
            return json.load(response)
    except urllib.error.HTTPError as error:
        return json.load(error)


def assertion(user, audience=REALM, **more):
    """An ID-JAG of the other provider for `user`."""
    kind = "urn:ietf:params:oauth:token-type:"
    form = {
        "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
        "requested_token_type": f"{kind}id-jag",
        "subject_token_type": f"{kind}id_token",
        "subject_token": read(f"{PROVIDER}/test/id_token?sub={user}&client_id=login"),
        "audience": audience,
        **more,
    }
    return post(f"{PROVIDER}/token", "login", PROVIDER_SECRET, form)["access_token"]


def redeem(jwt, client="drawbridge-payroll"):
    form = {"grant_type": "urn:ietf:params:oauth:grant-type:jwt-bearer", "assertion": jwt}
    return post(f"{REALM}/protocol/openid-connect/token", client, PAYROLL_SECRET, form)
