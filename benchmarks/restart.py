"""restart: how soon a job goes on, or ends, after one of its workers was killed by SIGKILL.

Two workers that are shell commands say through a pipe that they run, and then sleep. The first one
killed: until both workers of the next attempt run. Killed again, with no restart left: until the
launcher has ended.
"""
import os
import random
import select
import signal
import subprocess
import tempfile
import time

import measure

PEER_NAME = "torchrun 2.11.0"
# torchrun makes $ of $$ in a worker's arguments, so the shell asks /proc who it is.
WORKER = ('read pid rest < /proc/self/stat; echo "$TORCHELASTIC_RESTART_COUNT $RANK $pid" > "$SAY"; '
          'exec sleep 300')
LIMIT_S = 60


class Sayings:
    """The lines that workers write into a named pipe."""

    def __init__(self, folder):
        self.path = os.path.join(folder, "say")
        os.mkfifo(self.path)
        self.pipe = os.open(self.path, os.O_RDWR | os.O_NONBLOCK)
        self.text = ""

    def wait_for_attempt(self, attempt):
        """Until both ranks of this attempt run: (when, {rank: pid})."""
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            pids = {}
            for line in self.text.splitlines():
                said_attempt, rank, pid = (int(word) for word in line.split())
                if said_attempt == attempt:
                    pids[rank] = pid
            if len(pids) == 2:
                return time.perf_counter(), pids
            if select.select([self.pipe], [], [], 1)[0]:
                self.text += os.read(self.pipe, 4096).decode()
        raise RuntimeError(f"attempt {attempt} did not start within {LIMIT_S} s")

    def close(self):
        os.close(self.pipe)


def rest():
    """A job at rest, as it is when a worker dies in the middle of training; of random length, so that
    no launcher that polls is always met at the same moment between two polls."""
    time.sleep(random.uniform(0.25, 0.45))


def one_job(launcher):
    with tempfile.TemporaryDirectory() as folder:
        sayings = Sayings(folder)
        argv = [launcher, "--standalone", "--nproc-per-node", "2", "--max-restarts", "1",
                "--no-python", "/bin/sh", "-c", WORKER]
        job = subprocess.Popen(argv, env=measure.environment(OMP_NUM_THREADS="1", SAY=sayings.path),
                               stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL)
        try:
            _, pids = sayings.wait_for_attempt(0)
            rest()
            killed = time.perf_counter()
            os.kill(pids[1], signal.SIGKILL)
            running, pids = sayings.wait_for_attempt(1)
            rest()
            killed_again = time.perf_counter()
            os.kill(pids[1], signal.SIGKILL)
            measure.wait(job, LIMIT_S)
            ended = time.perf_counter()
        finally:
            if job.poll() is None:
                job.terminate()
                job.wait(timeout=LIMIT_S)
            sayings.close()
    return {"restart_ms": 1e3 * (running - killed), "end_ms": 1e3 * (ended - killed_again)}


def run(rounds):
    ddprun = measure.ours("ddprun")
    torchrun = measure.peer("torchrun")
    samples = measure.alternate({"ours": lambda: one_job(ddprun),
                                 "peer": (lambda: one_job(torchrun)) if torchrun else None}, rounds)
    peer = samples.get("peer", {})
    return [
        measure.row("SIGKILL of a worker -> both workers of the next attempt run", "ms",
                    samples["ours"]["restart_ms"], peer.get("restart_ms", []), lower_is_better=True),
        measure.row("SIGKILL of a worker, no restart left -> the launcher has ended", "ms",
                    samples["ours"]["end_ms"], peer.get("end_ms", []), lower_is_better=True),
    ], {"rounds": rounds}
