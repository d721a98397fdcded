"""Runs named benchmarks, prints a table for each and writes build/bench/NAME.json.

What is compared with what, and how, stands at the head of each benchmark's file.
"""
import argparse
import datetime
import importlib
import os
import signal
import sys

import charts
import measure
import tables

# name: (module, rounds by default[, what the module's run() takes besides])
BENCHMARKS = {
    "launch": ("launch", 7),
    "secret": ("secret_start", 40),
    "forward": ("forward", 5),
    "restart": ("restart", 7),
    "death": ("death", 10),
    "spares": ("spares", 10),
    "takeover": ("takeover", 10),
    "agents": ("agents", 10),
    "idle": ("idle", 3),
    "store": ("store", 3),
    "store-apart": ("store", 1, "apart"),
    "store-together": ("store", 1, "together"),
    "gloo-restart": ("gloo_restart", 10),
    "allreduce": ("allreduce", 5),
    "encryption": ("encryption", 5),
    "train-cpu": ("train_cpu", 3),
    "train-cpu-bf16": ("train_cpu", 3, "bf16"),
    "train-cpu-224": ("train_cpu", 3, "224"),
    "train-cpu-224-bf16": ("train_cpu", 3, "224-bf16"),
    "train-cpu-resnet50": ("train_cpu", 3, "resnet50"),
    "slow-network": ("slow_network", 3),
    "data": ("data", 5),
    "mnist-epoch": ("mnist_epoch", 3),
    "shards": ("shards", 7),
    "in-place": ("in_place", 11),
    "strangers": ("strangers", 10),
    "strangers-silent": ("strangers", 55, "silent connections"),
}


def write_into_docs(name, text):
    """Puts a table into its page of docs/measurements/, between the marks that stand there for it."""
    path = tables.page_with(name)
    path.write_text(tables.replaced(path.read_text(), name, text))


def end_by_signal(number, _):
    """As Ctrl-C does: what a benchmark has made (namespaces, processes) is taken away on the way out."""
    signal.signal(number, signal.SIG_IGN)  # Once is enough: a second one must not end the cleaning up.
    sys.exit(128 + number)


def main():
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end_by_signal)
    names = ", ".join(BENCHMARKS)
    parser = argparse.ArgumentParser(
        prog="scripts/bench", description=f"Benchmarks: {names}. Peers are measured in the same run, "
        "A B A B, when Python torch is in .deps/peer (scripts/setup --peer). Beside these there are scaling "
        "(speed and efficiency over numbers of workers, with a chart) and modes (one process, DataParallel, "
        "DistributedDataParallel), which have options of their own: scripts/bench scaling --help; and charts, which "
        "measures nothing and redraws docs/pictures/ from the tables of docs/measurements/.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="which ones; all when left out")
    parser.add_argument("--rounds", type=int, help="how often each side runs")
    parser.add_argument("--docs", action="store_true",
                        help="also put the tables into docs/measurements/, and redraw the pictures")
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in BENCHMARKS]
    if unknown:
        parser.error(f"no benchmark {unknown[0]!r}; there are: {names}")

    if options.docs and not measure.peer("torchrun"):
        parser.error(f"--docs needs the peer, since tables without it would replace those that have it: {measure.NO_PEER}")

    failed = False
    machine = f"{measure.machine()}; load before the start {os.getloadavg()[0]:.2f}"
    print(f"Machine: {machine}")
    for name in options.names or BENCHMARKS:
        module_name, rounds, *case = BENCHMARKS[name]
        module = importlib.import_module(module_name)
        print(f"\n## {name}: medians of {options.rounds or rounds} runs each (minimum - maximum)\n",
              flush=True)
        if not measure.peer("torchrun"):
            print(f"Peer skipped: {measure.NO_PEER}\n")
        try:
            rows, settings = module.run(options.rounds or rounds, *case)
        except measure.Unavailable as reason:
            print(f"Skipped: {reason}")
            failed = True
            continue
        table = measure.table(rows, module.PEER_NAME)
        print(table)
        if options.docs:
            write_into_docs(name, f"`scripts/bench {name}`, {datetime.date.today()}, {machine}; "
                            f"medians of {options.rounds or rounds} runs each\n\n{table}")
        path = measure.save(name, rows, module.PEER_NAME, settings)
        print(f"\n{path.relative_to(measure.ROOT)}")
    if options.docs:
        charts.main([])
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
