"""Accounts of kind `user` with a client that is registered in Keycloak, before a server on the Python SDK that verifies tokens."""

import json
import re
import time

import accounts
import exchange
from harness import NODE, REALM, Program, admin, logged, python, script, tour

CLIENT = "drawbridge-tracker"
SECRET = "drawbridge-tracker-secret"
# Seconds that an access token of the client lasts.
LIFE = 10
REFUSED = "Offline tokens not allowed for the user or client"


# Settings


class Tracker:
    """The server: each user sees a tool of its own there, `greet_<sub>`, which tells the audience and the client of the token."""

    def __init__(self, directory):
        self.tokens = f"{directory}/tracker.tokens"
        args = [python(1), script("servers/personal.py"), REALM, self.tokens, "tracker"]
        self.program = Program("tracker", args, directory)
        self.program.until("the tracker", lambda: self.program.log.read_text().startswith("http"), 60)
        self.url = self.program.log.read_text().split()[0]

    def seen(self):
        """Users and tokens, each token once, in the order of their first use."""
        with open(self.tokens) as tokens:
            tokens = list(dict.fromkeys(tokens.read().split()))
        return [(exchange.claims(token)["sub"], token) for token in tokens]


def prepare(url):
    """The gateway as a client for logins, and as one that users have to agree to; a scope with the audience `url`."""
    accounts.register_login()
    mapper = {
        "name": "audience of the tracker",
        "protocol": "openid-connect",
        "protocolMapper": "oidc-audience-mapper",
        "config": {"included.custom.audience": url, "access.token.claim": "true"},
    }
    shown = {"display.on.consent.screen": "true", "consent.screen.text": "Use the tracker"}
    admin(
        "POST",
        "/client-scopes",
        {"name": "tracker", "protocol": "openid-connect", "attributes": shown, "protocolMappers": [mapper]},
    )
    accounts.register(
        "/connect/tracker/callback",
        CLIENT,
        SECRET,
        consentRequired=True,
        attributes={"access.token.lifespan": str(LIFE)},
        defaultClientScopes=["basic"],
        optionalClientScopes=["tracker", "offline_access"],
    )
    # Without default roles she has no role `offline_access`.
    carol = {"username": "carol", "email": "carol@example.com", "firstName": "Carol", "lastName": "Example"}
    password = {"type": "password", "value": "carol", "temporary": False}
    admin("POST", "/users", {**carol, "enabled": True, "emailVerified": True, "credentials": [password]})
    roles = f"/users/{user_id('carol')}/role-mappings/realm"
    admin("DELETE", roles, admin("GET", roles))


def tables(directory, url):
    account = f'kind = "user"\nissuer = "{REALM}"\nclient_id = "{CLIENT}"\nclient_secret = "{SECRET}"\n'
    return (
        f'[upstreams.tracker]\nurl = "{url}"\n[upstreams.tracker.auth]\n{account}'
        f'[database]\nurl = "sqlite:{directory}/{time.monotonic_ns()}.db"\n[connect.login]\n{accounts.KEYCLOAK_LOGIN}'
    )


def user_id(name):
    [user] = admin("GET", f"/users?username={name}&exact=true")
    return user["id"]


# What users do


def walk(link, name, *steps, **more):
    """Takes `name` in a browser from `link` through Keycloak's pages."""
    steps = ["the_login_leads_back", *steps]
    tour([NODE, script("clients/account.mjs"), json.dumps({"link": link, **more})], steps, name)


class Caller:
    """A program of a user, with a session of its own."""

    def __init__(self, name):
        self.name, self.sub, self.number = name, user_id(name), 1
        self.token = exchange.token_of(REALM, name)
        _, self.session = exchange.ask(self.token, "initialize", accounts.HELLO)

    def ask(self, method, params=None):
        self.number += 1
        reply, _ = exchange.ask(self.token, method, params, self.session, self.number)
        return reply["result"]

    def tools(self):
        """The tools of the tracker, or the one that leads to an account."""
        names = [tool["name"] for tool in self.ask("tools/list")["tools"]]
        return [name for name in names if "tracker" in name]

    def call(self, tool, **arguments):
        return self.ask("tools/call", {"name": tool, "arguments": arguments})["content"][0]["text"]

    def link(self):
        assert self.tools() == ["connect_tracker"], self.tools()
        said = self.call("connect_tracker")
        return re.search(rf"{accounts.GATEWAY}/connect/tracker\?\S+", said)[0]

    def greeting(self):
        return self.call(f"tracker__greet_{self.sub}", text="hello")


def consents(sub):
    """The scopes that this user has agreed to for the client."""
    agreed = [one for one in admin("GET", f"/users/{sub}/consents") if one["clientId"] == CLIENT]
    return {scope for one in agreed for scope in one["grantedClientScopes"]}


# Tests


def registered_client_connects_each_user(gateway, tracker):
    callers = [Caller("alice"), Caller("bob")]
    for caller in callers:
        link = caller.link()
        assert not consents(caller.sub)
        walk(link, caller.name, "the_consent_connects")
        # The pages were Keycloak's.
        assert consents(caller.sub) == {"tracker", "offline_access"}, consents(caller.sub)
    for _ in ("cold", "warm"):
        for caller in callers:
            assert caller.tools() == [f"tracker__greet_{caller.sub}"], caller.tools()
            said = f"I am {caller.sub}, at {tracker.url}, by {CLIENT}: hello"
            assert caller.greeting() == said, caller.greeting()
    alice, bob = callers
    assert alice.sub not in json.dumps(bob.ask("tools/list")), "another user's tool"
    foreign = alice.call(f"tracker__greet_{bob.sub}", text="hello")
    assert "I am" not in foreign, foreign
    refreshed(callers, tracker)
    tokens = tracker.seen()
    assert {sub for sub, _ in tokens} == {caller.sub for caller in callers}
    for _, token in tokens:
        assert exchange.claims(token)["azp"] == CLIENT
    assert not {caller.token for caller in callers} & {token for _, token in tokens}, "a caller's own token went upstream"
    log = logged(gateway, "both accounts in the log", lambda log: log.count("account was connected") == 2)
    for secret in [SECRET, accounts.LOGIN_SECRET, *(token for _, token in tokens), *(one.token for one in callers)]:
        assert secret not in log


def refreshed(callers, tracker):
    """Calls until each user has been there with three tokens, the latter ones by refreshes."""
    deadline = time.monotonic() + 6 * LIFE
    while True:
        for caller in callers:
            assert caller.greeting().startswith(f"I am {caller.sub},"), caller.name
        subjects = [sub for sub, _ in tracker.seen()]
        if all(subjects.count(caller.sub) >= 3 for caller in callers):
            return
        assert time.monotonic() < deadline, subjects
        time.sleep(0.5)


def user_without_offline_access_connects_at_the_next_attempt(gateway, tracker):
    carol = Caller("carol")
    walk(carol.link(), "carol", "the_refusal_is_told", "the_consent_connects", refusal="not_allowed")
    assert carol.greeting().startswith(f"I am {carol.sub}, at {tracker.url}")
    assert consents(carol.sub) >= {"tracker"}
    said = (REFUSED, "role `offline_access`", "leaves out `offline_access`")
    logged(gateway, "the remedy in the log", lambda log: all(part in log for part in said))


TESTS = [registered_client_connects_each_user, user_without_offline_access_connects_at_the_next_attempt]
