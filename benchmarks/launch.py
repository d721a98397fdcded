"""launch: a job whose workers do nothing, ddprun beside torchrun; what a start costs.

Time: from the start of the launcher to its end, workers are /bin/true. Memory: resident set of the
launcher's own processes while its workers sleep.
"""
import os
import pathlib
import subprocess
import time

import measure

PEER_NAME = "torchrun 2.11.0"


def seconds_of(argv):
    start = time.perf_counter()
    job = subprocess.Popen(argv, env=measure.environment(OMP_NUM_THREADS="1"),
                           stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                           stderr=subprocess.DEVNULL)
    status = measure.wait(job, 300)
    seconds = time.perf_counter() - start
    if status != 0:
        raise RuntimeError(f"{argv} ended with {status}")
    return seconds


def children_of(pid):
    found = []
    for path in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += [int(child) for child in path.read_text().split()]
        except OSError:
            pass
    return found + [descendant for child in found for descendant in children_of(child)]


def program_of(pid):
    try:
        return pathlib.Path(os.readlink(f"/proc/{pid}/exe")).name
    except OSError:
        return ""


def resident_mb(argv):
    """Starts a job of two `sleep`s and adds up what the launcher's own processes hold."""
    job = subprocess.Popen(argv, env=measure.environment(OMP_NUM_THREADS="1"),
                           stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                           stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while sum(program_of(pid) == "sleep" for pid in children_of(job.pid)) < 2:
            if time.monotonic() > deadline or job.poll() is not None:
                raise RuntimeError(f"the workers did not start: {argv}")
            time.sleep(0.01)
        own = [job.pid] + [p for p in children_of(job.pid) if program_of(p) != "sleep"]
        total = 0
        for pid in own:
            for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
                if line.startswith("VmRSS:"):
                    total += int(line.split()[1])
        return total / 1024
    finally:
        job.terminate()
        job.wait(timeout=60)


def run(rounds):
    ddprun = measure.ours("ddprun")
    torchrun = measure.peer("torchrun")

    def job(launcher, workers, *program):
        return [launcher, "--standalone", "--nproc-per-node", str(workers), "--no-python", *program]

    rows = []
    for workers in (2, 64):
        mine = lambda w=workers: {"s": seconds_of(job(ddprun, w, "/bin/true"))}
        other = (lambda w=workers: {"s": seconds_of(job(torchrun, w, "/bin/true"))}) if torchrun else None
        mine()  # Once unmeasured, so that both find their files in memory.
        if other:
            other()
        samples = measure.alternate({"ours": mine, "peer": other}, rounds)
        rows.append(measure.row(
            f"{workers} x /bin/true, start to end", "ms", [1e3 * v for v in samples["ours"]["s"]],
            [1e3 * v for v in samples.get("peer", {}).get("s", [])], lower_is_better=True))
    sleeping = lambda launcher: {"mb": resident_mb(job(launcher, 2, "/bin/sleep", "300"))}
    samples = measure.alternate({"ours": lambda: sleeping(ddprun),
                                 "peer": (lambda: sleeping(torchrun)) if torchrun else None}, 3)
    rows.append(measure.row("resident memory while 2 workers run", "MB", samples["ours"]["mb"],
                            samples.get("peer", {}).get("mb", []), lower_is_better=True))
    return rows, {"rounds": rounds}
