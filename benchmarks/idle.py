"""idle: what a launcher costs while eight workers run and nothing happens.

From the kernel's counters of the launcher's own processes, all their threads, over some seconds:
nanoseconds on a CPU (schedstat) and how often they were switched in.
"""
import pathlib
import subprocess
import time

import launch
import measure

PEER_NAME = "torchrun 2.11.0"
WORKERS = 8
SECONDS = 5


def counters(pids):
    """CPU time in ns and the number of times a thread was given a CPU."""
    busy_ns = turns = 0
    for pid in pids:
        for path in pathlib.Path(f"/proc/{pid}/task").glob("*/schedstat"):
            on_cpu, _, slices = path.read_text().split()
            busy_ns += int(on_cpu)
            turns += int(slices)
    return busy_ns, turns


def one_job(launcher):
    argv = [launcher, "--standalone", "--nproc-per-node", str(WORKERS), "--no-python", "/bin/sleep",
            "300"]
    job = subprocess.Popen(argv, env=measure.environment(OMP_NUM_THREADS="1"),
                           stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                           stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        is_worker = lambda pid: launch.program_of(pid) == "sleep"
        while sum(is_worker(pid) for pid in launch.children_of(job.pid)) < WORKERS:
            if time.monotonic() > deadline or job.poll() is not None:
                raise RuntimeError(f"the workers did not start: {argv}")
            time.sleep(0.01)
        time.sleep(1)  # The start's own work is no idling.
        own = [job.pid] + [p for p in launch.children_of(job.pid) if not is_worker(p)]
        start, (busy_before, turns_before) = time.monotonic(), counters(own)
        time.sleep(SECONDS)
        seconds, (busy, turns) = time.monotonic() - start, counters(own)
        return {"cpu": 100 * (busy - busy_before) / 1e9 / seconds,
                "turns": (turns - turns_before) / seconds}
    finally:
        job.terminate()
        job.wait(timeout=60)


def run(rounds):
    ddprun = measure.ours("ddprun")
    torchrun = measure.peer("torchrun")
    samples = measure.alternate({"ours": lambda: one_job(ddprun),
                                 "peer": (lambda: one_job(torchrun)) if torchrun else None}, rounds)
    peer = samples.get("peer", {})
    return [
        measure.row(f"CPU of the launcher, {WORKERS} idle workers", "% of a core",
                    samples["ours"]["cpu"], peer.get("cpu", []), lower_is_better=True),
        measure.row("times it was woken", "1/s", samples["ours"]["turns"], peer.get("turns", []),
                    lower_is_better=True),
    ], {"rounds": rounds, "workers": WORKERS, "seconds": SECONDS}
