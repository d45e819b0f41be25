"""What every tour tells the test that runs it: one JSON line per step, on stdout."""

import json
import time
import traceback

import anyio


async def tour(steps) -> bool:
    """Runs the steps in order; a failed one does not stop the later ones. True if all went well."""
    is_fine = True
    for step in steps:
        started = time.monotonic()
        line = {"step": step.__name__, "ok": True}
        try:
            with anyio.fail_after(60):
                await step()
        except Exception:
            is_fine = False
            line |= {"ok": False, "error": traceback.format_exc()}
        line["ms"] = round((time.monotonic() - started) * 1000)
        print(json.dumps(line), flush=True)
    return is_fine


async def eventually(what, claim, seconds=20):
    """Waits until `await claim()` is truthy."""
    deadline = time.monotonic() + seconds
    while not await claim():
        assert time.monotonic() < deadline, f"{what}: not within {seconds} s"
        await anyio.sleep(0.02)
