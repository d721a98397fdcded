"""allreduce: the average of a float32 buffer over 2 processes of this machine, ours (shared memory,
without and with a copy from ordinary memory, and TCP) beside Gloo.

Each repetition starts behind a barrier and takes as long as its slowest rank. A round's number is the
median of its repetitions. The peer's number contains the division by 2 that makes a sum an average,
as every user of Gloo has to do it; 44.7 MB are the gradients of ResNet-18.
"""
import json
import subprocess

import measure

PEER_NAME = "Gloo (torch 2.11.0)"
SIZES = {44_700_000: "44.7 MB", 1_000_000: "1 MB", 65_536: "64 KiB", 1_024: "1 KiB"}
REPETITIONS = 50
LIMIT_S = 300


def medians_us(argv, sizes=SIZES):
    argv = [*argv, "--world", "2", "--bytes", ",".join(str(size) for size in sizes),
            "--repetitions", str(REPETITIONS)]
    done = subprocess.run(argv, env=measure.environment(OMP_NUM_THREADS="1"),
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, timeout=LIMIT_S)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0 or not lines:
        raise RuntimeError(f"{' '.join(argv)} ended with {done.returncode}:\n{done.stdout[-2000:]}")
    return {r["bytes"]: 1e6 * r["median_s"] for r in json.loads(lines[-1])["results"]}


def run(rounds):
    program = measure.ours("allreduce")
    python = measure.peer("python")
    script = str(measure.ROOT / "benchmarks" / "allreduce_gloo.py")
    samples = measure.alternate({
        "ours": lambda: medians_us([program]),
        "peer": (lambda: medians_us([python, script])) if python else None,
        "copy": lambda: medians_us([program, "--copy"]),
        "tcp": lambda: medians_us([program, "--tcp"]),
    }, rounds)
    rows = []
    for side, name in (("ours", "shared memory"), ("copy", "shared memory, ordinary buffers"),
                       ("tcp", "TCP over loopback")):
        for size, text in SIZES.items():
            rows.append(measure.row(f"{text}, {name}", "us", samples[side][size],
                                    samples.get("peer", {}).get(size, []), lower_is_better=True))
    return rows, {"rounds": rounds, "repetitions": REPETITIONS}
