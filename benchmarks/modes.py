"""modes: the same training in one process, with DataParallel and with DistributedDataParallel.
`scripts/bench modes --help`.

All modes see the same images in the same global batches: single in one process with all cores, DataParallel in
one process with N replicas, DDP in N processes with 1/N of the batch each. The peers, where Python torch is
installed, are measured by other benchmarks (train-cpu).
"""
import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import tempfile

import measure
import metrics_lines

HELP = """Trains in one process, with DataParallel (--data-parallel N) and with DDP (N processes), and prints the time
of an epoch and of a batch of each. Everything after -- goes to `train`, in every mode.

  scripts/bench modes --workers 2 --model resnet18 -- --dataset mnist
"""


def arguments(argv):
    parser = argparse.ArgumentParser(prog="scripts/bench modes", description=HELP,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    cores = max(2, len(os.sched_getaffinity(0)))
    parser.add_argument("--workers", type=int, default=cores,
                        help=f"replicas of DataParallel and processes of DDP [{cores}]")
    parser.add_argument("--model", default="resnet18", help="goes to train [resnet18]")
    parser.add_argument("--global-batch-size", type=int, default=128, help="images per step, in every mode [128]")
    parser.add_argument("--epochs", type=int, default=2, help="of one run; the first does not count [2]")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each mode, in turn [3]")
    parser.add_argument("--limit", type=float, default=3600, metavar="SECONDS", help="of one run [3600]")
    parser.add_argument("train", nargs="*", metavar="-- TRAIN OPTIONS", help="what train gets besides")
    options = parser.parse_args(argv)
    if options.workers < 1 or options.epochs < 2 or options.rounds < 1:
        parser.error("--workers and --rounds must be 1 or more, --epochs 2 or more")
    if options.global_batch_size % options.workers:
        parser.error(f"--global-batch-size {options.global_batch_size} is no multiple of --workers {options.workers}")
    return options


def epoch_times(lines):
    """Seconds of training in each whole epoch but the first, and of a batch in them. Every step has a line."""
    epochs = {}
    for line in lines:
        if line.get("event") == "train":
            epochs.setdefault(line["epoch"], []).append(line["step_s"])
    later = [steps for epoch, steps in sorted(epochs.items())][1:]
    if not later:
        raise metrics_lines.NoMetrics("there are lines of one epoch only")
    return {"epoch_s": statistics.median(sum(steps) for steps in later),
            "batch_s": statistics.median(step for steps in later for step in steps)}


def run_once(options, prefix, more):
    with tempfile.TemporaryDirectory() as folder:
        metrics = f"{folder}/metrics.jsonl"
        argv = [*prefix, measure.ours("train"), "--model", options.model, "--epochs", str(options.epochs),
                "--global-batch-size", str(options.global_batch_size), "--print-freq", "1", "--no-validation",
                "--metrics", metrics, *more, *options.train]
        try:
            done = subprocess.run(argv, env=measure.environment(), timeout=options.limit, text=True,
                                  stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        except subprocess.TimeoutExpired:
            raise metrics_lines.NoMetrics(f"it did not end within {options.limit:g} s (--limit)") from None
        if done.returncode != 0:
            raise metrics_lines.NoMetrics(f"it ended with {done.returncode}:\n{done.stdout[-2000:]}")
        return epoch_times(metrics_lines.read(metrics))


def has_option(name):
    done = subprocess.run([measure.ours("train"), "--help"], stdout=subprocess.PIPE, text=True, check=True)
    return name in done.stdout


def modes(options):
    """Name of each mode -> (what comes before train, what after it), or why it is left out."""
    ddprun = [measure.ours("ddprun"), "--standalone", "--nproc-per-node", str(options.workers)]
    parallel = f"DataParallel, 1 process x {options.workers} replicas"
    return {"single, 1 process": ([], []),
            parallel: ([], ["--data-parallel", str(options.workers)]) if has_option("--data-parallel")
            else "this train has no option --data-parallel",
            f"DistributedDataParallel, {options.workers} processes": (ddprun, [])}


def table(samples):
    lines = ["| mode | epoch, s | batch, ms | speed-up of the epoch |", "|---|---:|---:|---:|"]
    single = None
    for name, runs in samples.items():
        if isinstance(runs, str):
            lines.append(f"| {name} | skipped: {runs} | - | - |")
            continue
        epochs, batches = ([run[what] for run in runs] for what in ("epoch_s", "batch_s"))
        epoch = statistics.median(epochs)
        single = single or epoch
        lines.append(f"| {name} | {measure.number(epoch)} ({measure.number(min(epochs))} - "
                     f"{measure.number(max(epochs))}) | {1000 * statistics.median(batches):.1f} | "
                     f"{single / epoch:.2f} |")
    return "\n".join(lines)


def main(argv):
    options = arguments(argv)
    try:
        wanted = modes(options)
        samples = {name: mode if isinstance(mode, str) else [] for name, mode in wanted.items()}
        for _ in range(options.rounds):
            for name, mode in wanted.items():
                if not isinstance(mode, str):
                    samples[name].append(run_once(options, *mode))
                    print(f"{name}: {samples[name][-1]['epoch_s']:.2f} s an epoch", flush=True)
    except (metrics_lines.NoMetrics, measure.Unavailable) as reason:
        return f"modes: train cannot be measured: {reason}"
    what = (f"{options.model}, {options.global_batch_size} images a step; {measure.machine()}; {datetime.date.today()}; "
            f"medians of {options.rounds} runs (minimum - maximum)")
    print(f"\n{what}\n\n{table(samples)}")
    measure.RESULTS.mkdir(parents=True, exist_ok=True)
    path = measure.RESULTS / "modes.json"
    path.write_text(json.dumps({"what": what, "train": options.train, "modes": samples}, indent=1) + "\n")
    print(f"\n{path.relative_to(measure.ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
