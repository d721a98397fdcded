"""shards: what train --shards costs in a step, beside the same workers without it, A B A B.

Two workers train on made-up images of 32 pixels, one thread each. As many shards as workers are the same work,
but for one small all-reduce of BatchNorm's statistics and the step's figures. Four shards on the two workers
are compared with --accumulate 2, which is as many forwards of as many images, and adds up less exactly.
"""
import os
import statistics
import subprocess
import tempfile

import measure
import metrics_lines

PEER_NAME = "without --shards"
WARM_UP = 5  # Steps: memory, kernels, the order of buckets.
CASES = {  # Name: (for both, with shards, without)
    "ResNet-18, 16 images a worker, 2 shards on 2 workers":
        (["--model", "resnet18", "--batch-size", "16", "--steps", "25"], ["--shards", "2"], []),
    "ResNet-20, 16 images a worker, 2 shards on 2 workers":
        (["--model", "resnet20", "--batch-size", "16", "--steps", "100"], ["--shards", "2"], []),
    "ResNet-18, 4 shards of 8 images on 2 workers, beside --accumulate 2":
        (["--model", "resnet18", "--batch-size", "8", "--steps", "25"], ["--shards", "4"], ["--accumulate", "2"]),
}
TRAIN = ["--dataset", "synthetic", "--synthetic-classes", "10", "--image-size", "32", "--no-validation", "--device",
         "cpu", "--print-freq", "1"]


def step_ms(arguments, launcher=()):
    with tempfile.TemporaryDirectory() as folder:
        metrics = os.path.join(folder, "metrics")
        argv = [measure.ours("ddprun"), "--standalone", "--nproc-per-node", "2", *launcher, measure.ours("train"),
                *TRAIN, "--metrics", metrics, *arguments]
        done = subprocess.run(argv, env=measure.environment(OMP_NUM_THREADS="1"), stdin=subprocess.DEVNULL, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if done.returncode != 0:
            raise RuntimeError(f"train ended with {done.returncode}:\n{done.stdout[-2000:]}")
        steps = [line["step_s"] for line in metrics_lines.read(metrics) if line.get("event") == "train"]
        return {"step_ms": 1e3 * statistics.median(steps[WARM_UP:])}


def run(rounds):
    rows = []
    for name, (both, sharded, plain) in CASES.items():
        samples = measure.alternate({"ours": lambda: step_ms(both + sharded), "peer": lambda: step_ms(both + plain)},
                                    rounds)
        rows.append(measure.row(name, "ms a step", samples["ours"]["step_ms"], samples["peer"]["step_ms"],
                                lower_is_better=True))
    return rows, {"rounds": rounds, "warm_up_steps": WARM_UP}
