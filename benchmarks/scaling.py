"""scaling: how much faster N workers are than one. `scripts/bench scaling --help`.

Each number of workers runs --rounds times, in turn (1 2 4, 1 2 4, ...). The speed of a run is the median over
its metrics lines after the first steps; the table and the chart show the median of the rounds. With
--batch-size the work per worker stays the same (weak scaling, as in most published charts); with
--global-batch-size the work per step does (strong scaling). Efficiency = speed / (workers x speed of the
smallest number of workers, per worker).
"""
import argparse
import datetime
import json
import os
import pathlib
import shlex
import statistics
import subprocess
import sys
import tempfile

import line_chart
import measure
import metrics_lines

HELP = """Runs a training program with different numbers of workers, and writes a table (scaling.md), a chart
(scaling.svg) and the numbers (scaling.json) into --output.

  scripts/bench scaling --workers 1,2 --model resnet18 -- --dataset synthetic --image-size 32 --steps 60
  scripts/bench scaling --workers 1,2,4,8 --command \\
      'ddprun --nnodes 2 ... --nproc-per-node {workers} train ... --metrics {metrics}'

Everything after -- goes to `train`. With --command any program is run that writes the JSON lines of
`train --metrics` (events "train" with step and images_per_s) to {metrics}; {workers} is the number of workers.
"""


def parse_workers(text):
    try:
        counts = sorted({int(part) for part in text.split(",")})
    except ValueError:
        counts = [0]
    if counts[0] < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of numbers of workers, like 1,2,4")
    return counts


def arguments(argv):
    parser = argparse.ArgumentParser(prog="scripts/bench scaling", description=HELP,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    cores = len(os.sched_getaffinity(0))
    default = sorted({1, *(2**i for i in range(10) if 2**i <= cores)})
    parser.add_argument("--workers", type=parse_workers, default=default,
                        help=f"numbers of workers [{','.join(map(str, default))}: powers of two up to the cores]")
    parser.add_argument("--model", help="goes to train")
    parser.add_argument("--command", help="instead of train under ddprun, with {workers} and {metrics}")
    parser.add_argument("--threads", type=int, help="computing threads of each worker, the same for all numbers of "
                        "workers: OMP_NUM_THREADS [cores / the largest number of workers]")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each number of workers [3]")
    parser.add_argument("--warmup-steps", type=int, default=10, help="steps that do not count [10]")
    parser.add_argument("--limit", type=float, default=3600, metavar="SECONDS", help="of one run [3600]")
    parser.add_argument("--title", help="of the chart [the model]")
    parser.add_argument("--output", type=pathlib.Path, default=measure.RESULTS / "scaling",
                        help="folder of the results [build/bench/scaling]")
    parser.add_argument("train", nargs="*", metavar="-- TRAIN OPTIONS", help="what train gets besides")
    options = parser.parse_args(argv)
    if options.command and (options.train or options.model):
        parser.error("--command contradicts --model and options of train: put them into the command")
    if options.command and "{metrics}" not in options.command:
        parser.error("--command must hold {metrics}, where the program is to write its JSON lines")
    if options.rounds < 1 or (options.threads or 1) < 1:
        parser.error("--rounds and --threads must be 1 or more")
    options.threads = options.threads or max(1, cores // max(options.workers))
    return options


def command_for(options, workers, metrics):
    if options.command:
        return options.command.replace("{workers}", str(workers)).replace("{metrics}", shlex.quote(metrics))
    model = ["--model", options.model] if options.model else []
    argv = [measure.ours("ddprun"), "--standalone", "--nproc-per-node", str(workers), measure.ours("train"),
            "--no-validation", "--print-freq", "10", *model, *options.train, "--metrics", metrics]
    return shlex.join(argv)


def run_once(options, workers):
    with tempfile.TemporaryDirectory() as folder:
        metrics = f"{folder}/metrics.jsonl"
        command = command_for(options, workers, metrics)
        try:
            done = subprocess.run(["bash", "-c", command], timeout=options.limit,
                                  env=measure.environment(OMP_NUM_THREADS=str(options.threads)),
                                  stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                  text=True)
        except subprocess.TimeoutExpired:
            raise metrics_lines.NoMetrics(f"it did not end within {options.limit:g} s (--limit)") from None
        if done.returncode != 0:
            raise metrics_lines.NoMetrics(f"it ended with {done.returncode}:\n{done.stdout[-2000:]}")
        if not os.path.exists(metrics):
            raise metrics_lines.NoMetrics("it wrote no metrics")
        lines = metrics_lines.read(metrics)
        world = metrics_lines.world_size(lines)
        if not options.command and world != workers:
            raise metrics_lines.NoMetrics(f"it ran with {world} workers")
        return {**metrics_lines.speed(lines, options.warmup_steps), "workers": world or workers}


def summarise(samples):
    """One row for each number of workers, ascending; `samples` maps it to its runs' results."""
    rows = []
    for workers, runs in sorted(samples.items()):
        row = {"workers": workers, "rates": [run["images_per_s"] for run in runs]}
        row["images_per_s"] = statistics.median(row["rates"])
        for name in ("step_s", "exposed_comm_s"):
            if all(name in run for run in runs):
                row[name] = statistics.median(run[name] for run in runs)
        base = rows[0] if rows else row
        row["speedup"] = row["images_per_s"] / base["images_per_s"] * base["workers"]
        row["efficiency"] = row["speedup"] / workers
        rows.append(row)
    return rows


def table(rows):
    lines = ["| workers | images/s | speed-up | efficiency | step, ms | exposed communication, ms |",
             "|---:|---:|---:|---:|---:|---:|"]
    for row in rows:
        rates = [measure.number(rate) for rate in (row["images_per_s"], min(row["rates"]), max(row["rates"]))]
        ms = [f"{1000 * row[name]:.1f}" if name in row else "-" for name in ("step_s", "exposed_comm_s")]
        lines.append(f"| {row['workers']} | {rates[0]} ({rates[1]} - {rates[2]}) | {row['speedup']:.2f} | "
                     f"{100 * row['efficiency']:.1f} % | {ms[0]} | {ms[1]} |")
    return "\n".join(lines)


def chart(rows, title):
    counts = [row["workers"] for row in rows]
    per_worker = rows[0]["images_per_s"] / rows[0]["workers"]
    Series = line_chart.Series
    return line_chart.chart(title, [
        ("Throughput", "workers", "images/s", counts,
         [Series("measured", [(row["workers"], row["images_per_s"]) for row in rows],
                number=lambda rate: line_chart.label(float(f"{rate:.4g}"))),
          Series("ideal", [(n, n * per_worker) for n in counts], dashed=True)]),
        ("Efficiency", "workers", "% of ideal", counts,
         [Series("measured", [(row["workers"], 100 * row["efficiency"]) for row in rows],
                number="{:.1f}".format),
          Series("ideal", [(n, 100) for n in counts], dashed=True)])])


def main(argv):
    options = arguments(argv)
    samples = {}
    try:
        for _ in range(options.rounds):
            for workers in options.workers:
                result = run_once(options, workers)
                samples.setdefault(result["workers"], []).append(result)
                print(f"{result['workers']} workers: {result['images_per_s']:.1f} images/s", flush=True)
    except (metrics_lines.NoMetrics, measure.Unavailable) as reason:
        return f"scaling: the command cannot be measured: {reason}"
    rows = summarise(samples)
    title = options.title or options.model or "Scaling"
    what = command_for(options, "{workers}", "{metrics}").replace(str(measure.ROOT) + "/", "")
    text = (f"# {title}\n\n`{what}`\n\ncomputing threads of each worker: {options.threads}; {measure.machine()}; {datetime.date.today()}; medians of {options.rounds} runs "
            f"(minimum - maximum)\n\n{table(rows)}\n")
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "scaling.md").write_text(text)
    (options.output / "scaling.svg").write_text(chart(rows, title))
    (options.output / "scaling.json").write_text(
        json.dumps({"command": what, "machine": measure.machine(), "rows": rows}, indent=1) + "\n")
    print(f"\n{table(rows)}\n\n{options.output}/scaling.svg, scaling.md, scaling.json")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
