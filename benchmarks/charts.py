"""Draws docs/pictures/*.svg and the headline tables of README.md and docs/performance.md, from docs/measurements/.

  scripts/bench charts            draws all of them again
  scripts/bench charts --check    changes nothing; status 1 if one is not what the tables say (a test runs this)
"""
import argparse
import sys

import dot_chart
import measure
import pair_chart
import tables
from dot_chart import Axis, Series
from pair_chart import Pair
from tables import figure

PICTURES = measure.ROOT / "docs" / "pictures"
LESS, MORE = "Shorter bars are better.", "Longer bars are better."
RANGE = " Each pair has its own scale; thin lines are the range measured."


def peer_of(row):
    """The cell of the column between `ours` and `ratio`."""
    columns = list(row)
    return row[columns[columns.index("ours") + 1]]


def pair(table, what, words, unit=None):
    row = tables.row(table, what=what)
    return Pair(words, unit or row["unit"], figure(row["ours"]), figure(peer_of(row)), figure(row["ratio"]))


def start():
    pairs = [pair("launch", "2 x /bin/true, start to end", "2 workers: start to end"),
             pair("launch", "64 x /bin/true, start to end", "64 workers: start to end"),
             pair("launch", "resident memory while 2 workers run", "memory of the launcher")]
    return pair_chart.chart(f"A job of two workers that do nothing lasts {pairs[0].ours.words()} ms", LESS + RANGE,
                            "ddprun", "torchrun 2.11.0", pairs)


def restart():
    pairs = [pair("restart", "SIGKILL of a worker -> both workers of the next attempt run", "killed, until all run again"),
             pair("restart", "SIGKILL of a worker, no restart left -> the launcher has ended", "killed, until the job has ended")]
    return pair_chart.chart(f"{pairs[0].ours.words()} ms after a worker was killed, both run again", LESS + RANGE,
                            "ddprun", "torchrun 2.11.0", pairs)


def output():
    pairs = [pair("forward", "4 workers, --tee 3: files and prefixed console", "output of 4 workers")]
    return pair_chart.chart(f"Workers' output is forwarded at {pairs[0].ours.words()} MB/s", MORE + RANGE, "ddprun",
                            "torchrun 2.11.0", pairs)


def idle():
    pairs = [pair("idle", "CPU of the launcher, 8 idle workers", "CPU while 8 workers sleep"),
             pair("idle", "times it was woken", "times the launcher was woken", "a second")]
    return pair_chart.chart("A launcher that waits takes nothing", LESS + RANGE, "ddprun", "torchrun 2.11.0", pairs)


def store():
    operations = ["set", "get", "add", "check", "wait", "multi_get", "mixed"]
    panels = []
    for threads in ("1 thread", "8 threads", "64 threads"):
        def ratios(prefix, threads=threads):
            return [figure(tables.row("store", what=f"{prefix}{name}, {threads}")["ratio"]) for name in operations]

        panels.append((threads, Axis(0.6, 2, (0.6, 1, 1.4, 1.8), mark=1),
                       [Series("the least that any server must do", "line0 hollow", ratios("the least, ")),
                        Series("ours", "series0", ratios(""), numbers="right", unit=" x")]))
    return dot_chart.chart("Requests a second to the store, as a multiple of PyTorch's libuv server",
                           "Further right is better; the thick line is the libuv server. The client is LibTorch's.",
                           operations, panels, names_width=74)


def allreduce():
    sizes = ["44.7 MB", "1 MB", "64 KiB", "1 KiB"]

    def times(kind, column=None):
        found = [tables.row("allreduce", what=f"{size}, {kind}") for size in sizes]
        return [figure(row["ours"] if column else peer_of(row)) for row in found]

    series = [Series("ours, shared memory", "series0", times("shared memory", "ours"), numbers="above"),
              Series("ours, TCP", "series1", times("TCP over loopback", "ours"), numbers="above"),
              Series("Gloo", "peer", times("shared memory"), numbers="above")]
    ticks = (1, 10, 100, 1000, 10000)
    return dot_chart.chart("The average of a buffer over two processes, in microseconds",
                           "Further left is better; each line of the axis is ten times the one before.", sizes,
                           [("", Axis(0.2, 30000, ticks, logarithmic=True, label="{:,} us"), series)],
                           names_width=70, row_height=46)


def training():
    cases = [("train-cpu", "ResNet-18 32 px", "batch 64 x 2, fp32"), ("train-cpu-bf16", "ResNet-18 32 px", "batch 64 x 2, bf16"),
             ("train-cpu-224", "ResNet-18 224 px", "batch 16 x 2, fp32"),
             ("train-cpu-224-bf16", "ResNet-18 224 px", "batch 16 x 2, bf16"),
             ("train-cpu-resnet50", "ResNet-50 224 px", "batch 8 x 2, fp32")]
    pairs = [pair(table, f"{model}, {how}", f"{model}, {how[-4:]}") for table, model, how in cases]
    ratios = sorted((pair.ratio for pair in pairs), key=lambda ratio: ratio.value)
    return pair_chart.chart(f"Training on two CPU workers: {ratios[0].words()} to {ratios[-1].words()} times as fast as DDP",
                            MORE + RANGE, "train", "Python's DDP over Gloo, torch 2.11.0", pairs)


def gpu():
    pairs = [pair("gpu", what, words) for what, words in (("ResNet-50, 224 px, eager", "ResNet-50, eager DDP"),
                                                          ("ResNet-50, 224 px, torch.compile", "ResNet-50, torch.compile"),
                                                          ("ResNet-50, 224 px, bf16, eager", "ResNet-50, bf16, eager DDP"),
                                                          ("ResNet-18, 32 px, graph", "ResNet-18, CUDA graph"))]
    return pair_chart.chart(f"ResNet-50 in fp16 on one H100: {pairs[0].ours.words()} images a second", MORE + RANGE, "train",
                            "Python, torch 2.11.0", pairs)


def overlap():
    rows = tables.rows("overlap")
    shares = [figure(row["share"]) for row in rows]
    return dot_chart.chart("Speed of two workers that exchange gradients, in % of two that do not",
                           "Further right is better: 100 % would be communication that costs nothing. ResNet-18, 32 px.",
                           [row["when gradients are exchanged"] for row in rows],
                           [("", Axis(90, 100, (90, 92, 94, 96, 98, 100), label="{} %"),
                             [Series("share of the speed without communication", "series0", shares, numbers="above",
                                     unit=" %")])], names_width=284, row_height=40)


def slow_network():
    ways = ["fp32", "bf16", "PowerSGD, rank 4"]

    def panel(rate):
        rows = [tables.row("slow-network", what=f"{rate}, {way}") for way in ways]
        return (rate, Axis(18, 2500, (20, 100, 500, 2000), logarithmic=True),
                [Series("ours", "series0", [figure(row["ours"]) for row in rows], numbers="above"),
                 Series("the peer's, with the same hook", "peer", [figure(peer_of(row)) for row in rows])])
    return dot_chart.chart("Images a second where the network carries less than the workers compute",
                           "Further right is better. ResNet-18, 32 px, on two hosts; what travels of its gradients.", ways,
                           [panel("1 Gbit/s"), panel("100 Mbit/s")], names_width=130, row_height=40)


def convolutions():
    rows = [row for row in tables.rows("winograd") if row["pass"] == "together" and not row["layer"].endswith("batch 8")]
    gains = [figure(row["gain"]) for row in rows]
    return dot_chart.chart("3 x 3 convolutions in fp32, as a multiple of oneDNN's speed",
                           "Further right is better; the thick line is oneDNN. Forward and both gradients together.",
                           [row["layer"] for row in rows],
                           [("", Axis(0.5, 3.5, (0.5, 1, 1.5, 2, 2.5, 3, 3.5), mark=1),
                             [Series("Winograd's algorithm, ours", "series0", gains, numbers="right", unit=" x")])],
                           names_width=250)


def data():
    pairs = [pair("data", "JPEG 500x375, random resized crop to 224, flip, 2 threads", "JPEG, random crop to 224"),
             pair("data", "JPEG 500x375, resize to 256, centre crop of 224, 2 threads", "JPEG, centre crop of 224"),
             pair("data", "MNIST, 2 threads", "MNIST")]
    return pair_chart.chart("Images a second from the loader alone, two threads", MORE + RANGE, "ddprun",
                            "torchvision + DataLoader", pairs)


CHARTS = {chart.__name__: chart
          for chart in (start, restart, output, idle, store, allreduce, training, gpu, overlap, slow_network, convolutions,
                        data)}


def headline(lines):
    """`lines`: tuples (words, table, what, unit in words, who the peer is)."""
    out = ["| | ours | Python | |", "|---|---:|---:|---:|"]
    for words, table, what, unit, peer in lines:
        row = tables.row(table, what=what)
        ours, theirs, ratio = figure(row["ours"]), figure(peer_of(row)), figure(row["ratio"])
        out.append(f"| {words} | {ours.words()} {unit} | {peer}: {theirs.words()} {unit} | {ratio.words()} x |")
    return "\n".join(out)


SHORT = [
    ("a job of 2 x /bin/true, start to end", "launch", "2 x /bin/true, start to end", "ms", "torchrun"),
    ("a worker is killed, until all workers of the next attempt run", "restart",
     "SIGKILL of a worker -> both workers of the next attempt run", "ms", "torchrun"),
    ("ResNet-18, 224 px, fp32", "train-cpu-224", "ResNet-18 224 px, batch 16 x 2, fp32", "images/s", "DDP"),
    ("ResNet-18, 224 px, bf16", "train-cpu-224-bf16", "ResNet-18 224 px, batch 16 x 2, bf16", "images/s", "DDP"),
    ("ResNet-50, 224 px, fp32", "train-cpu-resnet50", "ResNet-50 224 px, batch 8 x 2, fp32", "images/s", "DDP"),
    ("ResNet-18, 32 px, fp32", "train-cpu", "ResNet-18 32 px, batch 64 x 2, fp32", "images/s", "DDP"),
    ("ResNet-50, 224 px, fp16, one H100", "gpu", "ResNet-50, 224 px, eager", "images/s", "DDP"),
    ("the same, beside a compiled network", "gpu", "ResNet-50, 224 px, torch.compile", "images/s", "torch.compile"),
    ("all-reduce of 44.7 MB in shared memory", "allreduce", "44.7 MB, shared memory", "us", "Gloo"),
    ("all-reduce of 44.7 MB over TCP", "allreduce", "44.7 MB, TCP over loopback", "us", "Gloo"),
]
LONG = [
    *SHORT[:2],
    ("resident memory of the launcher", "launch", "resident memory while 2 workers run", "MB", "torchrun"),
    ("output of four workers, to files and a console", "forward", "4 workers, --tee 3: files and prefixed console",
     "MB/s", "torchrun"),
    # With all on one core, where the ratio does not depend on how far the cores are from each other.
    ("`get` from the store, 8 threads, all on one core", "store-together", "get, 8 threads", "thousand/s",
     "libuv server"),
    *SHORT[2:],
    ("ResNet-18, 32 px, two hosts with 1 Gbit/s, PowerSGD", "slow-network", "1 Gbit/s, PowerSGD, rank 4", "images/s",
     "DDP"),
    ("an epoch of MNIST, convnet", "mnist-epoch", "convnet, an epoch; the peer's loader: tensor", "s", "DDP"),
    ("JPEG files decoded and cropped", "data", "JPEG 500x375, random resized crop to 224, flip, 2 threads", "images/s",
     "torchvision"),
]
HEADLINES = {"README.md": SHORT, "docs/performance.md": LONG}


def drawn():
    """What each file shall hold, by its path."""
    files = {PICTURES / f"{name}.svg": chart() for name, chart in CHARTS.items()}
    for name, lines in HEADLINES.items():
        path = measure.ROOT / name
        files[path] = tables.replaced(path.read_text(), "headline", headline(lines))
    return files


def main(argv):
    parser = argparse.ArgumentParser(prog="scripts/bench charts", description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="change nothing; status 1 if a file is not as drawn")
    options = parser.parse_args(argv)
    stale = {path: text for path, text in drawn().items() if not path.exists() or path.read_text() != text}
    for path, text in stale.items():
        if not options.check:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        print(f"{path.relative_to(measure.ROOT)}: {'is not what the tables say' if options.check else 'drawn'}")
    if stale and options.check:
        return "charts: run scripts/bench charts"
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
