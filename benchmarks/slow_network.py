"""slow-network: a step of ResNet-18 whose gradients are more than the network between two hosts carries: `train` as it is,
with --grad-dtype bf16 and with --power-sgd 4, each beside Python DDP over Gloo with the same hook, A B A B.

The hosts are network namespaces on one switch, with a worker each, and may send so much and no more (tc's token bucket).
Both work on one machine's cores, as in train-cpu, whose images, batch, optimizer and settings of the peer these are; the
first steps are left out on both sides.
"""
import contextlib
import dataclasses
import json
import pathlib
import statistics
import subprocess
import tempfile

import hosts
import measure
from train_cpu import CLASSES, KEEP_MEMORY, LIMIT_S

PEER_NAME = "DDP + Gloo with the same hook (torch 2.11.0)"
HOSTS, PORT = 2, 29500
RATES = {"1gbit": "1 Gbit/s", "100mbit": "100 Mbit/s"}


@dataclasses.dataclass(frozen=True)
class Way:
    """How gradients travel."""
    title: str
    ours: tuple
    hook: str


WAYS = [Way("fp32", (), "none"), Way("bf16", ("--grad-dtype", "bf16"), "bf16"),
        Way("PowerSGD, rank 4", ("--power-sgd", "4", "--power-sgd-start", "2"), "power-sgd")]
WARMUP, BLOCK, BLOCKS, BATCH = 5, 5, 3, 64


def on_all_hosts(net, argv_of, **variables):
    """A launcher on each host; waits for all."""
    env = measure.environment(OMP_NUM_THREADS="1", **variables)
    with contextlib.ExitStack() as stack:
        started = []
        for host in range(HOSTS):
            output = stack.enter_context(tempfile.TemporaryFile("w+"))
            started.append((subprocess.Popen(net.on(host, argv_of(host)), env=env, stdin=subprocess.DEVNULL,
                                             stdout=output, stderr=output), output))
        for process, output in started:
            if measure.wait(process, LIMIT_S) != 0:
                output.seek(0)
                raise RuntimeError(f"{process.args} ended with {process.returncode}:\n{output.read()[-2000:]}")


def train(net, way):
    with tempfile.TemporaryDirectory() as folder:
        metrics = pathlib.Path(folder) / "metrics.jsonl"
        on_all_hosts(net, lambda host: [
            measure.ours("ddprun"), "--nnodes", str(HOSTS), "--node-rank", str(host), "--master-addr", net.address(0),
            "--master-port", str(PORT), "--auth", "none", measure.ours("train"), "--dataset", "synthetic", "--image-size",
            "32", "--synthetic-classes", str(CLASSES), "--model", "resnet18", "--stem", "imagenet", "--batch-size",
            str(BATCH), "--steps", str(WARMUP + BLOCKS * BLOCK), "--print-freq", str(BLOCK), "--lr", "0.01",
            "--no-validation", "--device", "cpu", "--metrics", str(metrics), *way.ours])
        lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    return statistics.median(line["images_per_s"] for line in lines
                             if line.get("event") == "train" and line["step"] > WARMUP)


def ddp(net, torchrun, way):
    with tempfile.TemporaryDirectory() as folder:
        result = pathlib.Path(folder) / "peer.json"
        on_all_hosts(net, lambda host: [
            torchrun, "--nnodes", str(HOSTS), "--node-rank", str(host), "--master-addr", net.address(0), "--master-port",
            str(PORT), str(measure.ROOT / "benchmarks" / "peer_ddp.py"), "--arch", "resnet18", "--img", "32", "--batch",
            str(BATCH), "--classes", str(CLASSES), "--warmup", str(WARMUP), "--blocks", str(BLOCKS), "--block-steps",
            str(BLOCK), "--hook", way.hook, "--json", str(result)], GLOO_SOCKET_IFNAME="eth0", **KEEP_MEMORY)
        return statistics.median(json.loads(result.read_text())["images_per_s"])


def run(rounds):
    torchrun = measure.peer("torchrun")
    rows = []
    with tempfile.TemporaryDirectory() as folder, hosts.Hosts(HOSTS, pathlib.Path(folder)) as net:
        for rate, words in RATES.items():
            net.limit_rate(rate)
            samples = measure.alternate({
                "ours": lambda: {way.title: train(net, way) for way in WAYS},
                "peer": (lambda: {way.title: ddp(net, torchrun, way) for way in WAYS}) if torchrun else None}, rounds)
            rows += [measure.row(f"{words}, {way.title}", "images/s", samples["ours"][way.title],
                                 samples.get("peer", {}).get(way.title, []), lower_is_better=False) for way in WAYS]
    return rows, {"rounds": rounds, "batch": BATCH, "steps": BLOCK * BLOCKS}
