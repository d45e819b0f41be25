#!/usr/bin/env python3
"""Takes real clients through a real Keycloak: `make test-keycloak`.

Keycloak imports `deploy/keycloak/realm.json` as it is, and the gateway has the `[auth]` of
`deploy/compose/gateway.toml` as it is. Their ports are fixed (8080, 8081), so all of it runs in a
network namespace of its own where this machine allows that, and needs these ports otherwise.
Needs `debug/drawbridge` where cargo builds, and what `tests/setup/install.py` installs; fetches Keycloak itself.
The last line has the counts.

Usage: run.py [name of a test]...
"""

import inspect
import re
import sys
import tempfile
import time
import traceback

import accounts
import exchange
import users
from harness import (
    CACHE,
    NODE,
    REALM,
    VERSION,
    admin,
    auth_of_compose,
    enter_own_network,
    install,
    logged,
    options,
    python,
    rotate_keys,
    script,
    start_gateway,
    start_keycloak,
    tour,
)

STEPS = ["from_401_to_a_tool_call", "through_a_step_up"]


def typescript_1_logs_in_with_the_administrative_scope():
    tour([NODE, script("clients/oauth.mjs"), "1", options()], STEPS, "alice")


def typescript_2_logs_in_with_the_administrative_scope():
    tour([NODE, script("clients/oauth.mjs"), "2", options()], STEPS, "alice")


def python_1_logs_in_with_the_administrative_scope():
    tour([python(1), script("clients/oauth.py"), options()], STEPS, "alice")


def python_2_logs_in_with_the_administrative_scope():
    tour([python(2), script("clients/oauth.py"), options()], STEPS, "alice")


def mcp_remote_logs_in_with_the_administrative_scope():
    with tempfile.TemporaryDirectory() as directory:
        tour([NODE, script("clients/mcp-remote.mjs"), options(directory=directory)], STEPS, "alice")


def fastmcp_logs_in_with_the_administrative_scope():
    python = str(CACHE / "python1-22/bin/python")
    tour([python, script("clients/fast-oauth.py"), options()], STEPS, "alice")


def inspector_command_line_logs_in_with_the_administrative_scope():
    tour([NODE, script("clients/printed-link.mjs"), options()], STEPS, "alice")


def inspector_page_logs_in_with_the_administrative_scope():
    tour([NODE, script("clients/page.mjs"), options(page="inspector")], STEPS[:1], "alice")


def sdk_in_a_page_logs_in_with_the_administrative_scope():
    tour([NODE, script("clients/page.mjs"), options(page="sdk")], STEPS[:1], "alice")


def user_without_the_role_may_use_every_other_tool():
    steps = ["from_401_to_a_tool_call", "the_scoped_tool_is_refused"]
    tour([NODE, script("clients/oauth.mjs"), "1", options(isRefused=True)], steps, "bob")


def token_is_refreshed():
    steps = [*STEPS, "a_refreshed_token_is_accepted"]
    tour([NODE, script("clients/oauth.mjs"), "2", options(refreshes=True)], steps, "alice")


def token_of_a_rotated_key_is_accepted(gateway):
    def fetches():
        return gateway.log.read_text().count("loaded the keys of an issuer")

    before = fetches()
    rotate_keys()
    tour([NODE, script("clients/oauth.mjs"), "2", options()], STEPS, "alice")
    assert fetches() > before, "the token named a key that was known before"


WITH_GATEWAY = [
    typescript_1_logs_in_with_the_administrative_scope,
    typescript_2_logs_in_with_the_administrative_scope,
    python_1_logs_in_with_the_administrative_scope,
    python_2_logs_in_with_the_administrative_scope,
    mcp_remote_logs_in_with_the_administrative_scope,
    fastmcp_logs_in_with_the_administrative_scope,
    inspector_command_line_logs_in_with_the_administrative_scope,
    inspector_page_logs_in_with_the_administrative_scope,
    sdk_in_a_page_logs_in_with_the_administrative_scope,
    user_without_the_role_may_use_every_other_tool,
    token_is_refreshed,
    token_of_a_rotated_key_is_accepted,
]


def introspected_token_ends_with_the_logout():
    ends = {"logsOut": f"{REALM}/protocol/openid-connect/logout"}
    steps = [*STEPS, "a_logout_ends_the_token"]
    tour([NODE, script("clients/oauth.mjs"), "2", options(**ends)], steps, "alice")


WITH_INTROSPECTION = [introspected_token_ends_with_the_logout]
INTROSPECTION = (
    'introspection = { client_id = "drawbridge-gateway", client_secret = "drawbridge-gateway-secret", '
    'tokens = "all", max_age = "1s" }\n'
)


def introspecting(auth):
    """The same `[auth]`, with introspection of every token."""
    return re.sub(r"(?m)^(issuer = .*\n)", lambda found: found[0] + INTROSPECTION, auth)


def each_user_is_at_the_upstream_as_itself(gateway):
    upstream = exchange.Upstream(REALM, "payroll")
    try:
        tokens = {user: exchange.token_of(REALM, user) for user in ("alice", "bob")}
        for _ in ("cold", "warm"):
            for token in tokens.values():
                said = exchange.who(token)
                assert said == exchange.claims(token)["sub"], said
        assert not set(tokens.values()) & set(upstream.seen), "a caller's own token went upstream"
        calls = '"rpc_method":"tools/call"'
        log = logged(gateway, "every call in the log", lambda log: log.count(calls) == 2 * len(tokens))
        assert "another audience" not in log
        for token in [*tokens.values(), *upstream.seen, exchange.SECRET]:
            assert token not in log
    finally:
        upstream.stop()


WITH_EXCHANGE = [each_user_is_at_the_upstream_as_itself]
EXCHANGE = 'audience = "payroll"\nscopes = ["payroll"]'


def token_without_an_audience_is_used_and_told(gateway):
    upstream = exchange.Upstream(REALM, None)
    try:
        token = exchange.token_of(REALM, "alice")
        assert exchange.who(token) == exchange.claims(token)["sub"]
        log = logged(gateway, "the audience in the log", lambda log: "another audience" in log)
        lines = [line for line in log.splitlines() if "another audience" in line]
        assert len(lines) == 1 and exchange.URL in lines[0], lines
    finally:
        upstream.stop()


WITH_RESOURCE_ALONE = [token_without_an_audience_is_used_and_told]


def unknown_audience_is_told_with_its_remedy(gateway):
    upstream = exchange.Upstream(REALM, "payroll")
    try:
        token = exchange.token_of(REALM, "alice")
        try:
            said = exchange.who(token)
        except Exception:
            said = None
        assert said is None, said
        said = ("the account of an upstream cannot be used", "`audience`")
        logged(gateway, "the remedy in the log", lambda log: all(part in log for part in said))
        assert not upstream.seen
    finally:
        upstream.stop()


WITH_UNKNOWN_AUDIENCE = [unknown_audience_is_told_with_its_remedy]


WITH_ASSERTIONS = [
    accounts.keycloak_takes_assertions_of_another_provider,
    accounts.keycloak_checks_assertions_but_neither_resource_nor_scope,
]
WITH_OWN_ASSERTIONS = [accounts.keycloak_issues_no_assertion]


def are_wanted(tests, wanted):
    return [test for test in tests if not wanted or test.__name__ in wanted]


def run(tests, auth, directory, wanted, counts, upstreams="", upstream=None):
    tests = are_wanted(tests, wanted)
    if not tests:
        return
    gateway = start_gateway(directory, auth, upstreams)
    try:
        for test in tests:
            begun = time.monotonic()
            try:
                test(*[gateway, upstream][: len(inspect.signature(test).parameters)])
                counts["passed"] += 1
                print(f"test {test.__name__} ... ok ({time.monotonic() - begun:.1f} s)", flush=True)
            except Exception:
                counts["failed"] += 1
                print(f"test {test.__name__} ... FAILED", flush=True)
                traceback.print_exc(file=sys.stdout)
                print("\n".join(line[:500] for line in gateway.log.read_text().splitlines()[-20:]), flush=True)
    finally:
        gateway.stop()


def run_with_assertions(directory, wanted, counts):
    """Keycloak with its feature for identity assertions, beside another identity provider."""
    provider = accounts.start_provider(directory)
    keycloak = start_keycloak(directory, "identity-assertion-jwt")
    try:
        exchange.prepare(admin)
        accounts.prepare_assertions()
        tables = accounts.tables(directory, accounts.account("id_jag"), accounts.PROVIDER_LOGIN)
        run(WITH_ASSERTIONS, accounts.PROVIDER_AUTH, directory, wanted, counts, tables)
        own = accounts.account("id_jag", accounts.PROVIDER, "with-secret", "a service's secret: %&+")
        tables = accounts.tables(directory, own, accounts.KEYCLOAK_LOGIN)
        run(WITH_OWN_ASSERTIONS, auth_of_compose(), directory, wanted, counts, tables)
    finally:
        keycloak.stop()
        provider.stop()


def run_with_users(directory, wanted, counts):
    """Keycloak with the gateway as a client that an operator has registered there."""
    if not are_wanted(users.TESTS, wanted):
        return
    tracker = users.Tracker(directory)
    try:
        users.prepare(tracker.url)
        tables = users.tables(directory, tracker.url)
        run(users.TESTS, auth_of_compose(), directory, wanted, counts, tables, tracker)
    finally:
        tracker.program.stop()


def main():
    install()
    enter_own_network()
    counts = {"passed": 0, "failed": 0}
    with tempfile.TemporaryDirectory() as directory:
        keycloak = start_keycloak(directory)
        try:
            auth, wanted = auth_of_compose(), sys.argv[1:]
            run(WITH_GATEWAY, auth, directory, wanted, counts)
            run(WITH_INTROSPECTION, introspecting(auth), directory, wanted, counts)
            exchange.prepare(admin)
            for tests, keys in (
                (WITH_EXCHANGE, EXCHANGE),
                (WITH_RESOURCE_ALONE, ""),
                (WITH_UNKNOWN_AUDIENCE, 'audience = "https://payroll.example.com"'),
            ):
                run(tests, auth, directory, wanted, counts, exchange.account(keys))
            run_with_users(directory, wanted, counts)
        finally:
            keycloak.stop()
        if are_wanted([*WITH_ASSERTIONS, *WITH_OWN_ASSERTIONS], wanted):
            run_with_assertions(directory, wanted, counts)
    print(f"Keycloak {VERSION}: {counts['passed']} passed, {counts['failed']} failed")
    return 1 if counts["failed"] or not counts["passed"] else 0


if __name__ == "__main__":
    sys.exit(main())
