"""mnist-epoch: the first epoch of MNIST with data loading, batch 64 on each of 2 workers: `train` under
ddprun beside Python DDP over Gloo under torchrun, with the usual loader (PIL) and with images that lie in
memory as one tensor. Seconds of the steps; neither side validates. The peer is tuned as in train-cpu.
"""
import json
import tempfile

import measure
from train_cpu import KEEP_MEMORY, execute

PEER_NAME = "DDP + Gloo, tuned (torch 2.11.0)"
MNIST = str(measure.ROOT / "data" / "mnist")


def ours(model):
    with tempfile.TemporaryDirectory() as folder:
        execute([measure.ours("ddprun"), "--standalone", "--nproc-per-node", "2",
                 measure.ours("train"), "--dataset", "mnist", "--data", MNIST, "--model", model,
                 "--batch-size", "64", "--epochs", "1", "--lr", "0.01", "--no-validation",
                 "--device", "cpu", "--print-freq", "100", "--metrics", f"{folder}/metrics.jsonl"])
        lines = [json.loads(line) for line in open(f"{folder}/metrics.jsonl")]
    return {"seconds": next(line["train_s"] for line in lines if line["event"] == "end")}


def peer(torchrun, model, loader):
    with tempfile.TemporaryDirectory() as folder:
        execute([torchrun, "--standalone", "--nproc-per-node", "2",
                 str(measure.ROOT / "benchmarks" / "peer_mnist.py"), "--data", MNIST,
                 "--model", model, "--loader", loader, "--json", f"{folder}/peer.json"],
                **KEEP_MEMORY)
        return json.load(open(f"{folder}/peer.json"))


def run(rounds):
    torchrun = measure.peer("torchrun")
    measure.ours("train")
    rows = []
    for model, loaders in (("convnet", ("pil", "tensor")), ("resnet20", ("tensor",))):
        sides = {"ours": lambda: ours(model)}
        for loader in loaders:
            sides[loader] = (lambda loader=loader: peer(torchrun, model, loader)) if torchrun else None
        samples = measure.alternate(sides, rounds)
        for loader in loaders:
            rows.append(measure.row(
                f"{model}, an epoch; the peer's loader: {loader}", "s", samples["ours"]["seconds"],
                samples.get(loader, {}).get("seconds", []), lower_is_better=True))
    return rows, {"rounds": rounds}
