"""Installs and starts Keycloak, starts the gateway before it, and runs clients. For `run.py`."""

import ctypes
import fcntl
import hashlib
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
import urllib.error
import urllib.parse
import urllib.request
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache"
VERSION = "26.7.3"
SHA256 = "27a6535553c3cdcd083872ba40629efafb3475e3b758e0c6f691395561dd0f1f"
URL = (
    "https://repo.maven.apache.org/maven2/org/keycloak/keycloak-quarkus-dist/"
    f"{VERSION}/keycloak-quarkus-dist-{VERSION}.zip"
)
HOME = CACHE / f"keycloak-{VERSION}"
# Where cargo builds.
BUILT = ROOT / (os.environ.get("CARGO_TARGET_DIR") or "target")
GATEWAY = os.environ.get("DRAWBRIDGE_BIN", str(BUILT / "debug/drawbridge"))
NODE = str(CACHE / "bin/node")
MCP = "http://localhost:8080/mcp"
KEYCLOAK = "http://localhost:8081"
REALM = f"{KEYCLOAK}/realms/drawbridge"
ADMIN = f"{KEYCLOAK}/admin/realms/drawbridge"
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
                # The home directory may have state of another gateway.
                env={**os.environ, "XDG_STATE_HOME": f"{directory}/state", **(env or {})},
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


def start_keycloak(directory, *features):
    """Keycloak with the shipped realm, and with features that are off by default."""
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
    flags = [f"--features={feature}" for feature in features]
    keycloak = Program("keycloak", [str(HOME / "bin/kc.sh"), "start-dev", "--import-realm", *flags], directory, env)
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
