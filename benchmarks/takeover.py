"""takeover: how soon an elastic job goes on without node 0.

Three launchers on this machine, two workers each, heartbeats as they are by default. Node 0's launcher is
killed by SIGKILL, or told to leave by SIGTERM (which hands the job over). Measured: until another node says that it coordinates the
job, and until the first worker of the next attempt runs. torchrun is not beside it: there the job ends with node 0.
"""
import signal
import socket
import subprocess
import threading
import time

import measure

LIMIT_S = 120
NODES = 3
PROGRAM = ["sh", "-c", 'echo "worker of attempt $TORCHELASTIC_RESTART_COUNT"; exec sleep 600']


def free_port():
    with socket.socket() as asked:
        asked.bind(("127.0.0.1", 0))
        return asked.getsockname()[1]


class Launcher:
    """A launcher, and when each of its lines was seen first that has one of some words in it."""

    def __init__(self, node, port, marks):
        argv = [measure.ours("ddprun"), "--nnodes", f"1:{NODES}", "--rdzv-backend", "c10d", "--rdzv-endpoint",
                f"127.0.0.1:{port}", "--rdzv-conf", f"is_host={int(node == 0)}", "--max-restarts", "3",
                "--nproc-per-node", "2", *PROGRAM]
        self.process = subprocess.Popen(argv, env=measure.environment(), stdin=subprocess.DEVNULL,
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.marks = marks
        self.seen = {}
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            for mark in self.marks:
                if mark in line:
                    self.seen.setdefault(mark, time.perf_counter())


def first_seen(launchers, mark, count=1):
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        times = [one.seen[mark] for one in launchers if mark in one.seen]
        if len(times) >= count:
            return min(times)
        time.sleep(0.001)
    raise RuntimeError(f"no launcher said {mark!r} within {LIMIT_S} s")


def one_job(number):
    leads, first, following = "coordinates the job from here on (term", "worker of attempt 0", "worker of attempt 1"
    port = free_port()
    launchers = []
    try:
        for node in range(NODES):
            launchers.append(Launcher(node, port, [leads, first, following]))
        first_seen(launchers, first, count=NODES)
        time.sleep(0.5)  # The last workers have said that they run.
        gone = time.perf_counter()
        launchers[0].process.send_signal(number)
        others = launchers[1:]
        return {"leads_ms": 1e3 * (first_seen(others, leads) - gone),
                "worker_ms": 1e3 * (first_seen(others, following) - gone)}
    finally:
        for one in launchers:
            one.process.terminate()
        for one in launchers:
            one.process.wait(timeout=LIMIT_S)
            one.reader.join()


def run(rounds):
    samples = measure.alternate({"killed": lambda: one_job(signal.SIGKILL), "told": lambda: one_job(signal.SIGTERM)},
                                rounds)
    return [
        measure.row(f"{signal_name} of node 0's launcher -> {what}", "ms", samples[side][quantity], [], lower_is_better=True)
        for side, signal_name in (("killed", "SIGKILL"), ("told", "SIGTERM"))
        for quantity, what in (("leads_ms", "another node coordinates the job"),
                               ("worker_ms", "the first worker of the next attempt runs"))
    ], {"rounds": rounds}


PEER_NAME = "nobody"
