"""train-cpu and its variants: ResNets on synthetic images, 2 workers of one thread each: `train` under
ddprun beside Python DDP over Gloo under torchrun.

  train-cpu            ResNet-18 with the ImageNet stem on 32 x 32 images, batch 64 a worker, fp32
  train-cpu-bf16       the same in bfloat16 (autocast on both sides)
  train-cpu-224        ResNet-18, 224 x 224, batch 16 a worker, fp32
  train-cpu-224-bf16   the same in bfloat16
  train-cpu-resnet50   ResNet-50, 224 x 224, batch 8 a worker, fp32

No validation, no checkpoints; both sides leave out the first steps. The peer is tuned: static_graph,
gradient_as_bucket_view, fused SGD, denormals flushed, an allocator that keeps its memory (glibc
otherwise gives each large buffer back to the kernel), and the better one of the memory formats that
a case names: all are measured in each round.
"""
import dataclasses
import json
import statistics
import subprocess
import tempfile

import measure

PEER_NAME = "DDP + Gloo, tuned (torch 2.11.0)"
WORKERS, CLASSES = 2, 1000
KEEP_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "8000000000",
               "MALLOC_TOP_PAD_": "67108864"}
LIMIT_S = 900


@dataclasses.dataclass(frozen=True)
class Case:
    model: str = "resnet18"
    image: int = 32
    batch: int = 64  # Per worker.
    precision: str = "fp32"
    peer_formats: tuple = ("nchw",)  # The better one counts.
    warmup_steps: int = 10
    block_steps: int = 10
    blocks: int = 5

    def title(self):
        name = self.model.replace("resnet", "ResNet-")
        return f"{name} {self.image} px, batch {self.batch} x {WORKERS}, {self.precision}"


CASES = {
    "": Case(),
    "bf16": Case(precision="bf16", peer_formats=("nchw", "channels-last")),
    "224": Case(image=224, batch=16, peer_formats=("channels-last",), warmup_steps=5, block_steps=5),
    "224-bf16": Case(image=224, batch=16, precision="bf16", peer_formats=("channels-last",),
                     warmup_steps=5, block_steps=5),
    "resnet50": Case(model="resnet50", image=224, batch=8, peer_formats=("channels-last",),
                     warmup_steps=3, block_steps=3),
}


def execute(argv, **variables):
    done = subprocess.run(argv, env=measure.environment(OMP_NUM_THREADS="1", **variables),
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, timeout=LIMIT_S)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(argv)} ended with {done.returncode}:\n{done.stdout[-2000:]}")


def train(case, workers=WORKERS, more=()):
    """Images/s over all workers: median over the printed blocks of steps after the first ones."""
    # A line is printed every block_steps steps, so the warm-up is a whole number of blocks.
    warmup = -(-case.warmup_steps // case.block_steps) * case.block_steps
    with tempfile.TemporaryDirectory() as folder:
        execute([measure.ours("ddprun"), "--standalone", "--nproc-per-node", str(workers),
                 measure.ours("train"), "--dataset", "synthetic", "--image-size", str(case.image),
                 "--synthetic-classes", str(CLASSES), "--model", case.model, "--stem", "imagenet",
                 "--batch-size", str(case.batch), "--precision", case.precision,
                 "--steps", str(warmup + case.blocks * case.block_steps),
                 "--print-freq", str(case.block_steps), "--lr", "0.01", "--no-validation",
                 "--device", "cpu", "--metrics", f"{folder}/metrics.jsonl", *more])
        lines = [json.loads(line) for line in open(f"{folder}/metrics.jsonl")]
    rates = [line["images_per_s"] for line in lines
             if line.get("event") == "train" and line["step"] > warmup]
    return {"images_per_s": statistics.median(rates)}


def ddp(torchrun, case):
    """The same of the peer; the better one of its memory formats."""
    rates = {}
    for memory_format in case.peer_formats:
        with tempfile.TemporaryDirectory() as folder:
            execute([torchrun, "--standalone", "--nproc-per-node", str(WORKERS),
                     str(measure.ROOT / "benchmarks" / "peer_ddp.py"), "--arch", case.model,
                     "--img", str(case.image), "--batch", str(case.batch),
                     "--classes", str(CLASSES), "--precision", case.precision,
                     "--memory-format", memory_format, "--warmup", str(case.warmup_steps),
                     "--blocks", str(case.blocks), "--block-steps", str(case.block_steps),
                     "--json", f"{folder}/peer.json"], **KEEP_MEMORY)
            result = json.load(open(f"{folder}/peer.json"))
        rates[memory_format] = statistics.median(result["images_per_s"])
    return {"images_per_s": max(rates.values())}


def run(rounds, name=""):
    case = CASES[name]
    torchrun = measure.peer("torchrun")
    measure.ours("train")
    samples = measure.alternate({"ours": lambda: train(case),
                                 "peer": (lambda: ddp(torchrun, case)) if torchrun else None},
                                rounds)
    rows = [measure.row(case.title(), "images/s", samples["ours"]["images_per_s"],
                        samples.get("peer", {}).get("images_per_s", []), lower_is_better=False)]
    return rows, {"rounds": rounds, "classes": CLASSES, **dataclasses.asdict(case)}
