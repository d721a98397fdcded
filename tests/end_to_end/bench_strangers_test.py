"""scripts/bench strangers leaves no namespace and no process behind, however it ends.

  bench_strangers_test.py SOURCE_DIR
"""
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

from patience import patience

SOURCE = pathlib.Path(sys.argv[1]).resolve()
LIMIT_S = 120  # Of each wait, on an idle machine.
# A job that trains, and goes on.
FAKE_DDPRUN = """#!{python}
import json, pathlib, sys, time
with open(sys.argv[sys.argv.index("--metrics") + 1], "w") as metrics:
    for step in range(100000):
        metrics.write(json.dumps({{"event": "train", "step": step, "time": time.time()}}) + "\\n")
        metrics.flush()
        time.sleep(0.01 if step > 100 else 0)
"""


def wait_for(what, holds):
    limit = patience(LIMIT_S)
    end = time.monotonic() + limit
    while time.monotonic() < end:
        if holds():
            return
        time.sleep(0.05)
    sys.exit(f"after {limit:.0f} s: {what}")


def namespaces(bench):
    folder = pathlib.Path("/run/netns")
    return [path.name for path in folder.glob(f"ddprun-{bench.pid}-*")] if folder.exists() else []


def keys_of(bench):
    """The namespaces' keys. `ip` makes an empty file first, and mounts the namespace over it."""
    folder = pathlib.Path("/run/netns")
    found = [os.stat(folder / name) for name in namespaces(bench)]
    return {status.st_ino for status in found if status.st_dev != os.stat(folder).st_dev}


def inside(keys):
    """Processes that are in one of these namespaces."""
    found = []
    for link in pathlib.Path("/proc").glob("[0-9]*/ns/net"):
        try:
            if os.stat(link).st_ino in keys:
                found.append(int(link.parts[2]))
        except OSError:
            pass  # Gone meanwhile.
    return found


def may_have_hosts():
    """Root may not everywhere: in a chroot a namespace can be made, and not entered."""
    if os.geteuid() != 0:
        return False
    name = f"ddprun-{os.getpid()}-probe"
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    if subprocess.run(["ip", "netns", "add", name], **quiet).returncode:
        return False
    entered = subprocess.run(["ip", "netns", "exec", name, "true"], **quiet).returncode == 0
    subprocess.run(["ip", "netns", "del", name], check=True)
    return entered


if not may_have_hosts():
    print("SKIPPED: no network namespaces here")
    sys.exit(0)

with tempfile.TemporaryDirectory() as folder:
    programs = {"ddprun": FAKE_DDPRUN.format(python=sys.executable), "train": "#!/bin/sh\n"}
    for name, text in programs.items():
        path = pathlib.Path(folder) / name
        path.write_text(text)
        path.chmod(0o755)
    with open(pathlib.Path(folder) / "output", "w+") as output:
        bench = subprocess.Popen([sys.executable, "-B", str(SOURCE / "benchmarks" / "bench.py"), "strangers"],
                                 env={**os.environ, "DDPRUN_BIN_DIR": folder}, stdin=subprocess.DEVNULL,
                                 stdout=output, stderr=output)
        try:
            wait_for("no hosts", lambda: len(keys_of(bench)) == 2 or bench.poll() is not None)
            keys = keys_of(bench)
            # The job, and its attacker.
            wait_for("no attacker runs", lambda: len(inside(keys)) >= 2 or bench.poll() is not None)
            bench.send_signal(signal.SIGTERM)
            status = bench.wait(timeout=patience(LIMIT_S))
        finally:
            bench.kill()
            bench.wait()
        output.seek(0)
        said = output.read()
    assert len(keys) == 2, (keys, said)
    assert status == 128 + signal.SIGTERM, (status, said)
    assert not namespaces(bench), namespaces(bench)
    wait_for("processes are left behind in its namespaces", lambda: not inside(keys))
print("fine")
