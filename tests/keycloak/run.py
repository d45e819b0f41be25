#!/usr/bin/env python3
"""Takes real clients through a real Keycloak: `make test-keycloak`.

Keycloak imports `deploy/keycloak/realm.json` as it is, and the gateway has the `[auth]` of
`deploy/compose/gateway.toml` as it is. Their ports are fixed (8080, 8081), so all of it runs in a
network namespace of its own where this machine allows that, and needs these ports otherwise.
Needs `target/debug/drawbridge` and what `tests/setup/install.py` installs; fetches Keycloak itself.
The last line has the counts.

Usage: run.py [name of a test]...
"""

import ctypes
import fcntl
import hashlib
import inspect
import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import traceback
import urllib.error
import urllib.parse
import urllib.request
import zipfile
from pathlib import Path

import exchange

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache"
VERSION = "26.7.3"
SHA256 = "27a6535553c3cdcd083872ba40629efafb3475e3b758e0c6f691395561dd0f1f"
URL = (
    "https://repo.maven.apache.org/maven2/org/keycloak/keycloak-quarkus-dist/"
    f"{VERSION}/keycloak-quarkus-dist-{VERSION}.zip"
)
HOME = CACHE / f"keycloak-{VERSION}"
GATEWAY = os.environ.get("DRAWBRIDGE_BIN", str(ROOT / "target/debug/drawbridge"))
NODE = str(CACHE / "bin/node")
MCP = "http://localhost:8080/mcp"
KEYCLOAK = "http://localhost:8081"
REALM = f"{KEYCLOAK}/realms/drawbridge"
ADMIN = f"{KEYCLOAK}/admin/realms/drawbridge"
STEPS = ["from_401_to_a_tool_call", "through_a_step_up"]
CLONE_NEWNET = 0x40000000

direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


# Installing


def install():
    """Java, Chromium and Keycloak, where they are missing."""
    missing = [
        package
        for program, package in (("java", "default-jre-headless"), ("chromium", "chromium"))
        if not shutil.which(program)
    ]
    if missing:
        if os.geteuid() != 0 or not shutil.which("apt-get"):
            sys.exit(f"needed: {' '.join(missing)}; install them from your distribution")
        apt = ["apt-get", "-q", "-y", "-o", "Dpkg::Use-Pty=0"]
        subprocess.run([*apt, "update"], check=True, stdout=subprocess.DEVNULL)
        subprocess.run(
            [*apt, "install", "--no-install-recommends", *missing], check=True, stdout=subprocess.DEVNULL
        )
    if (HOME / "bin/kc.sh").exists():
        return
    CACHE.mkdir(exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=CACHE, suffix=".zip") as file:
        for attempt in (1, 2, 3):
            try:
                with urllib.request.urlopen(URL, timeout=60) as response:
                    file.seek(0)
                    file.truncate()
                    shutil.copyfileobj(response, file)
                break
            except OSError:
                if attempt == 3:
                    raise
                time.sleep(3)
        file.flush()
        found = hashlib.sha256(Path(file.name).read_bytes()).hexdigest()
        if found != SHA256:
            sys.exit(f"{URL}: sha256 is {found}, not {SHA256}")
        with tempfile.TemporaryDirectory(dir=CACHE) as directory:
            zipfile.ZipFile(file.name).extractall(directory)
            shutil.rmtree(HOME, ignore_errors=True)
            (Path(directory) / f"keycloak-{VERSION}").rename(HOME)
    (HOME / "bin/kc.sh").chmod(0o755)


def enter_own_network():
    """A network namespace with nothing but loopback. Without the right to it, the machine's own."""
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET) != 0:
        return
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        up_and_running = struct.pack("16sH", b"lo", 0x1 | 0x40)
        fcntl.ioctl(any_socket, 0x8914, up_and_running)  # SIOCSIFFLAGS


# Programs


class Program:
    """A child with its own process group, whose output goes to a file."""

    def __init__(self, name, args, directory, env=None):
        self.log = Path(directory) / f"{name}.log"
        with self.log.open("w") as out:
            self.child = subprocess.Popen(
                args,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(env or {})},
                start_new_session=True,
            )

    def until(self, what, claim, seconds):
        deadline = time.monotonic() + seconds
        while True:
            try:
                if claim():
                    return
            except OSError:
                pass
            if self.child.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"{what}: not ready\n{self.log.read_text()[-4000:]}")
            time.sleep(0.1)

    def stop(self):
        if self.child.poll() is None:
            os.killpg(self.child.pid, signal.SIGTERM)
            try:
                self.child.wait(15)
            except subprocess.TimeoutExpired:
                os.killpg(self.child.pid, signal.SIGKILL)
                self.child.wait()


def status(url, **headers):
    request = urllib.request.Request(url, headers=headers)
    try:
        with direct.open(request, timeout=10) as response:
            return response.status
    except urllib.error.HTTPError as error:
        return error.code


def start_keycloak(directory):
    data = HOME / "data"
    shutil.rmtree(data, ignore_errors=True)
    (data / "import").mkdir(parents=True)
    shutil.copy(ROOT / "deploy/keycloak/realm.json", data / "import")
    env = {
        "KC_HTTP_PORT": "8081",
        "KC_HOSTNAME": KEYCLOAK,
        "KC_BOOTSTRAP_ADMIN_USERNAME": "admin",
        "KC_BOOTSTRAP_ADMIN_PASSWORD": "admin",
        "JAVA_OPTS_APPEND": "-Djava.net.preferIPv4Stack=true",
    }
    keycloak = Program("keycloak", [str(HOME / "bin/kc.sh"), "start-dev", "--import-realm"], directory, env)
    document = f"{REALM}/.well-known/openid-configuration"
    keycloak.until("Keycloak", lambda: status(document) == 200, 300)
    return keycloak


def auth_of_compose():
    """The `[auth]` tables of the shipped configuration, word for word."""
    text = (ROOT / "deploy/compose/gateway.toml").read_text()
    tables = re.split(r"(?m)^(?=\[)", text)
    return "".join(table for table in tables if re.match(r"\[+auth", table))


def start_gateway(directory, auth, upstreams=""):
    config = Path(directory) / "gateway.toml"
    program = json.dumps(GATEWAY)
    config.write_text(
        '[server]\nlisten = "127.0.0.1:8080"\npublic_url = "http://localhost:8080"\n'
        f'[admin]\nlisten = "127.0.0.1:9090"\n{auth}\n'
        f'[upstreams.demo]\ncommand = {program}\nargs = ["demo-upstream"]\n{upstreams}'
    )
    gateway = Program("gateway", [GATEWAY, "serve", "--config", str(config)], directory)
    gateway.until("the gateway", lambda: status("http://127.0.0.1:9090/ready") == 200, 30)
    return gateway


def logged(gateway, what, claim):
    """The log, up to its last whole line, once `claim` is true of it: lines are written behind the answers."""

    def whole_lines():
        return gateway.log.read_text().rpartition("\n")[0]

    gateway.until(what, lambda: claim(whole_lines()), 10)
    return whole_lines()


# Clients


def tour(args, steps, user, **env):
    """Runs a tour of `tests/clients` as `user`; every step has to be taken and to be fine."""
    with tempfile.TemporaryDirectory() as home:
        path = f"{CACHE / 'bin'}:{os.environ['PATH']}"
        env = {"PATH": path, "HOME": home, "LANG": "C.UTF-8", "PYTHONWARNINGS": "ignore", "TOUR_USER": user, **env}
        env["CHROMIUM"] = shutil.which("chromium")
        done = subprocess.run(args, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=180)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    failed = [line for line in lines if not line.get("ok")]
    taken = [line["step"] for line in lines if line.get("ok")]
    missing = [step for step in steps if step not in taken]
    if failed or missing or done.returncode != 0:
        details = "\n".join(f"{line.get('step')}: {line.get('error')}" for line in failed)
        raise AssertionError(f"{missing or ''}\n{details}\n{done.stderr[-3000:]}")


def options(**more):
    return json.dumps(
        {"url": MCP, "plainTool": "clock", "scopedTool": "admin_about", "scope": "mcp:admin", "atLogin": True, **more}
    )


def script(name):
    return str(ROOT / "tests" / name)


def python(generation):
    return str(CACHE / f"python{generation}/bin/python")


# The administrator of Keycloak


def admin(method, path, body=None):
    form = {"grant_type": "password", "client_id": "admin-cli", "username": "admin", "password": "admin"}
    data = urllib.parse.urlencode(form).encode()
    with direct.open(f"{KEYCLOAK}/realms/master/protocol/openid-connect/token", data) as response:
        token = json.load(response)["access_token"]
    headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{ADMIN}{path}", data, headers, method=method)
    with direct.open(request) as response:
        text = response.read()
    return json.loads(text) if text else None


def rotate_keys():
    """A further key for signatures, which is used from now on."""
    realm = admin("GET", "")
    provider = {
        "name": f"key-{time.time_ns()}",
        "providerId": "ecdsa-generated",
        "providerType": "org.keycloak.keys.KeyProvider",
        "parentId": realm["id"],
        "config": {"priority": [str(time.time_ns() // 10**9)], "ecdsaEllipticCurveKey": ["P-256"]},
    }
    admin("POST", "/components", provider)


# Tests


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


def run(tests, auth, directory, wanted, counts, upstreams=""):
    tests = [test for test in tests if not wanted or test.__name__ in wanted]
    if not tests:
        return
    gateway = start_gateway(directory, auth, upstreams)
    try:
        for test in tests:
            begun = time.monotonic()
            try:
                test(gateway) if inspect.signature(test).parameters else test()
                counts["passed"] += 1
                print(f"test {test.__name__} ... ok ({time.monotonic() - begun:.1f} s)", flush=True)
            except Exception:
                counts["failed"] += 1
                print(f"test {test.__name__} ... FAILED", flush=True)
                traceback.print_exc(file=sys.stdout)
                print("\n".join(line[:500] for line in gateway.log.read_text().splitlines()[-20:]), flush=True)
    finally:
        gateway.stop()


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
        finally:
            keycloak.stop()
    print(f"Keycloak {VERSION}: {counts['passed']} passed, {counts['failed']} failed")
    return 1 if counts["failed"] or not counts["passed"] else 0


if __name__ == "__main__":
    sys.exit(main())
