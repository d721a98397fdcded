"""spares: how soon train takes its next step after one of its workers was killed by SIGKILL, started
cold and with a spare for each worker (ddprun --spares), A B A B.

Two workers train ResNet-20 on made-up images of 32 pixels and save a checkpoint every 20 steps. Once
the second checkpoint is there, and with spares both of them are ready, rank 1 is killed. Measured: until its
attempt is over, and until the next attempt has reported its first step, which holds the
reading of the checkpoint and the step itself. Also what memory a spare that waits has for itself.

The same with `train --shards 2`, both with spares: with --recover in-place, where rank 0 keeps its process and its
state and no step is lost, beside --recover restart. Of that also how much is left without a step, which both do again:
what a step took before the kill, in the median, is taken off. And in place without a spare, in a world that may have
one worker fewer (--nproc-per-node 1:2): the other one takes both shards, and what is taken off is a step of its alone.

Last, what launcher and library need for it by themselves: examples/elastic_train.cpp, a program of a few MiB whose step takes
microseconds, from the SIGKILL until all workers of the next attempt have agreed on a state.
"""
import json
import os
import random
import signal
import statistics
import subprocess
import tempfile
import time

import measure

LIMIT_S = 300
TRAIN = ["--dataset", "synthetic", "--synthetic-images", "20000", "--synthetic-classes", "10", "--image-size", "32",
         "--model", "resnet20", "--batch-size", "16", "--no-validation", "--device", "cpu", "--print-freq", "1",
         "--checkpoint-every", "20"]


class Lines:
    """JSON lines of a file that grows: each once, with the time at which it was seen."""

    def __init__(self, path):
        self.path, self.file, self.rest = path, None, ""

    def new(self):
        if self.file is None:
            if not os.path.exists(self.path):
                return []
            self.file = open(self.path)
        self.rest += self.file.read()
        *lines, self.rest = self.rest.split("\n")
        return [json.loads(line) for line in lines if line]


def wait_for(what, condition):
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.001)
    raise RuntimeError(f"{what} did not come within {LIMIT_S} s")


def private_mib(pid):
    with open(f"/proc/{pid}/smaps_rollup") as file:
        kib = [int(line.split()[1]) for line in file if line.startswith(("Private_Clean:", "Private_Dirty:"))]
    return sum(kib) / 1024


def one_job(spares, more=(), workers="2"):
    with tempfile.TemporaryDirectory() as folder:
        def place(name):
            return os.path.join(folder, name)

        argv = [measure.ours("ddprun"), "--standalone", "--nproc-per-node", workers, "--max-restarts", "1", "--spares",
                str(spares), "--event-log", place("events"), measure.ours("train"), *TRAIN, *more,
                "--checkpoint-dir", place("checkpoints"), "--metrics", place("metrics")]
        with open(place("output"), "w") as output:
            job = subprocess.Popen(argv, env=measure.environment(OMP_NUM_THREADS="1"), stdin=subprocess.DEVNULL,
                                   stdout=output, stderr=output)
        try:
            return follow(Lines(place("events")), Lines(place("metrics")), spares, alone=workers != "2")
        except RuntimeError as error:
            with open(place("output")) as output:
                raise RuntimeError(f"{error}\n{output.read()[-2000:]}") from None
        finally:
            if job.poll() is None:
                job.kill()
                job.wait(timeout=LIMIT_S)


def follow(events, metrics, spares, alone):
    seen, steps = [], []

    def event(name, count, attempt=None):
        seen.extend(events.new())
        found = [one for one in seen if one["event"] == name and attempt in (None, one["attempt"])]
        return found if len(found) >= count else None

    workers = wait_for("the workers", lambda: event("worker_started", 2, 0))
    ready = wait_for("the spares", lambda: event("spare_ready", spares)) if spares else []
    memory = [private_mib(one["spare_pid"]) for one in ready]
    durations = []

    def second_checkpoint():
        for one in metrics.new():
            if one.get("event") == "checkpoint":
                steps.append(one)
            elif one.get("event") == "train":
                durations.append(one["step_s"])
        return len(steps) >= 2

    wait_for("the second checkpoint", second_checkpoint)
    time.sleep(random.uniform(0, 0.3))
    pid = next(one["worker_pid"] for one in workers if one["rank"] == 1)
    metrics.new()
    killed = time.perf_counter()
    os.kill(pid, signal.SIGKILL)
    wait_for("the attempt's end", lambda: event("attempt_ended", 1, 0))
    gone = time.perf_counter()
    told = []

    def lines_since():
        """From the next attempt's start on, once it has begun."""
        told.extend(metrics.new())
        begun = [i for i, one in enumerate(told) if one.get("event") == "start" and one["restart_count"] == 1]
        return told[begun[0]:] if begun else []

    def steps_since():
        """How long each step of the next attempt took."""
        return [one["step_s"] for one in lines_since() if one.get("event") == "train"]

    wait_for("the next attempt's start", lines_since)
    begun = time.perf_counter()
    wait_for("the first step", steps_since)
    stepped = time.perf_counter()
    if alone:
        durations = wait_for("some steps alone", lambda: len(steps_since()) > 3 and steps_since())[1:]
    result = {"gone_ms": 1e3 * (gone - killed), "begun_ms": 1e3 * (begun - killed), "step_ms": 1e3 * (stepped - killed),
              "beyond_ms": 1e3 * (stepped - killed - statistics.median(durations))}
    if memory:
        result["memory_mib"] = max(memory)
    return result


def agreed_ms(spares, workers, left):
    """Of the example: from the SIGKILL of one of two until `left` workers have the state and train on."""
    with tempfile.TemporaryDirectory() as folder:
        events = Lines(os.path.join(folder, "events"))
        job = subprocess.Popen([measure.ours("ddprun"), "--standalone", "--nproc-per-node", workers, "--max-restarts", "1",
                                "--spares", str(spares), "--event-log", events.path, measure.ours("elastic_train"), str(10**9)],
                               env=measure.environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        try:
            first = [job.stdout.readline() for _ in range(2)]
            ready = []

            def all_ready():
                ready.extend(one for one in events.new() if one["event"] == "spare_ready")
                return len(ready) >= spares

            wait_for("the spares", all_ready)
            time.sleep(random.uniform(0.05, 0.1))
            pid = next(int(line.split("pid ")[1].split()[0]) for line in first if line.startswith("rank 1 "))
            killed = time.perf_counter()
            os.kill(pid, signal.SIGKILL)
            then = [job.stdout.readline() for _ in range(left)]
            ms = 1e3 * (time.perf_counter() - killed)
            if not all(f" of {left} is pid " in line for line in then):
                raise RuntimeError(f"not all went on: {then}")
            return ms
        finally:
            job.kill()
            job.wait(timeout=LIMIT_S)
            job.stdout.close()


def run(rounds):
    shards = ["--shards", "2"]
    samples = measure.alternate({"cold": lambda: one_job(0), "spares": lambda: one_job(2),
                                 "restart": lambda: one_job(2, [*shards, "--recover", "restart"]),
                                 "in place": lambda: one_job(2, [*shards, "--recover", "in-place"]),
                                 "fewer": lambda: one_job(0, [*shards, "--recover", "in-place"], workers="1:2")}, rounds)
    small = measure.alternate({"spare": lambda: {"ms": agreed_ms(2, "2", 2)}, "fewer": lambda: {"ms": agreed_ms(0, "1:2", 1)}}, rounds)
    cold, warm = samples["cold"], samples["spares"]
    restart, in_place, fewer = (samples[name] for name in ("restart", "in place", "fewer"))
    return [
        measure.row("SIGKILL of a worker -> its attempt is over", "ms", warm["gone_ms"], cold["gone_ms"],
                    lower_is_better=True),
        measure.row("SIGKILL of a worker -> first step of the next attempt", "ms", warm["step_ms"], cold["step_ms"],
                    lower_is_better=True),
        measure.row("the same with --shards 2: in place, beside a restart with spares", "ms", in_place["step_ms"],
                    restart["step_ms"], lower_is_better=True),
        measure.row("the same, beyond the step that is done again", "ms", in_place["beyond_ms"], restart["beyond_ms"],
                    lower_is_better=True),
        measure.row("the same, until that step begins", "ms", in_place["begun_ms"], restart["begun_ms"], lower_is_better=True),
        measure.row("the same without spares, one worker goes on alone", "ms", fewer["step_ms"], [],
                    lower_is_better=True),
        measure.row("the same, beyond a step of it alone", "ms", fewer["beyond_ms"], [], lower_is_better=True),
        measure.row("the same, until that step begins", "ms", fewer["begun_ms"], [], lower_is_better=True),
        measure.row("a worker of a few MiB -> all have the state again and go on, with a spare", "ms", small["spare"]["ms"], [],
                    lower_is_better=True),
        measure.row("the same without spares, one worker goes on alone", "ms", small["fewer"]["ms"], [], lower_is_better=True),
        measure.row("memory of a spare of its own", "MiB", warm["memory_mib"], [], lower_is_better=True),
    ], {"rounds": rounds}


PEER_NAME = "cold"
