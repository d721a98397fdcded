"""death: when ddprun knows that a worker was killed and starts the next attempt, beside when the kernel tells a parent.

The worker, on the library, has touched so much memory, which the kernel frees before it tells of the end (pidfd, waitpid:
all that a launcher can see of a program that does not help it). Both are of the same death, so there is no A B A B.
"""
import json
import os
import select
import signal
import subprocess
import tempfile
import time

import measure

PEER_NAME = "pidfd"
SIZES_MIB = (64, 512, 4096)
LIMIT_S = 60


def events_of(path):
    try:
        with open(path) as file:
            return [json.loads(line) for line in file if line.endswith("\n")]
    except FileNotFoundError:
        return []


def one_death(mib):
    """Milliseconds from SIGKILL until it is in the event log, until the next attempt's worker is started, and until
    the pidfd is readable."""
    with tempfile.TemporaryDirectory() as folder:
        log = os.path.join(folder, "events")
        job = subprocess.Popen([measure.ours("ddprun"), "--standalone", "--max-restarts", "1", "--event-log", log,
                                measure.ours("dying_worker"), "heavy", str(mib)], env=measure.environment(),
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        try:
            if job.stdout.readline() != b"heavy\n":
                raise RuntimeError("the worker did not start")
            pid = next(one["worker_pid"] for one in events_of(log) if one["event"] == "worker_started")
            pidfd = os.pidfd_open(pid)
            time.sleep(0.2)  # The start's own work, and its memory's, is over.
            killed = time.time()
            os.kill(pid, signal.SIGKILL)
            if not select.select([pidfd], [], [], LIMIT_S)[0]:
                raise RuntimeError(f"the worker did not end within {LIMIT_S} s")
            gone = time.time()
            os.close(pidfd)
            if job.stdout.readline() != b"heavy\n":
                raise RuntimeError("the next attempt's worker did not start")
            told = next(one for one in events_of(log) if one["event"] == "worker_ended")
            started = next(one for one in events_of(log) if one["event"] == "worker_started" and one["attempt"] == 1)
            return {"told": 1e3 * (told["time_unix_us"] / 1e6 - killed),
                    "started": 1e3 * (started["time_unix_us"] / 1e6 - killed), "gone": 1e3 * (gone - killed)}
        finally:
            if job.poll() is None:
                job.kill()
                job.wait(timeout=LIMIT_S)
            job.stdout.close()


def run(rounds):
    rows = []
    for mib in SIZES_MIB:
        deaths = [one_death(mib) for _ in range(rounds)]
        gone = [one["gone"] for one in deaths]
        rows.append(measure.row(f"SIGKILL of a worker with {mib} MiB -> it is told", "ms",
                                [one["told"] for one in deaths], gone, lower_is_better=True))
        rows.append(measure.row(f"SIGKILL of a worker with {mib} MiB -> the next attempt's is started", "ms",
                                [one["started"] for one in deaths], gone, lower_is_better=True))
    return rows, {"rounds": rounds}
