"""train-cpu: ResNet-18 with the ImageNet stem on 32 x 32 images, batch 64 on each of 2 workers, fp32:
`train` under ddprun beside Python DDP over Gloo under torchrun.

Synthetic images, no validation, no checkpoints; one thread a worker; both sides leave out the first
steps. The peer is tuned: static_graph, gradient_as_bucket_view, fused SGD, denormals flushed, and an
allocator that keeps its memory (glibc otherwise gives each large buffer back to the kernel).
"""
import json
import statistics
import subprocess
import tempfile

import measure

PEER_NAME = "DDP + Gloo, tuned (torch 2.11.0)"
WORKERS, BATCH, IMAGE, CLASSES = 2, 64, 32, 1000
WARMUP_STEPS, BLOCK_STEPS, BLOCKS = 10, 10, 5
KEEP_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "8000000000",
               "MALLOC_TOP_PAD_": "67108864"}
LIMIT_S = 900


def execute(argv, **variables):
    done = subprocess.run(argv, env=measure.environment(OMP_NUM_THREADS="1", **variables),
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, timeout=LIMIT_S)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(argv)} ended with {done.returncode}:\n{done.stdout[-2000:]}")


def train(workers):
    """Images/s over all workers: median over the printed blocks of steps after the first ones."""
    with tempfile.TemporaryDirectory() as folder:
        steps = WARMUP_STEPS + BLOCKS * BLOCK_STEPS
        execute([measure.ours("ddprun"), "--standalone", "--nproc-per-node", str(workers),
                 measure.ours("train"), "--dataset", "synthetic", "--image-size", str(IMAGE),
                 "--synthetic-classes", str(CLASSES), "--model", "resnet18", "--stem", "imagenet",
                 "--batch-size", str(BATCH), "--steps", str(steps), "--print-freq", str(BLOCK_STEPS),
                 "--lr", "0.01", "--no-validation", "--device", "cpu",
                 "--metrics", f"{folder}/metrics.jsonl"])
        lines = [json.loads(line) for line in open(f"{folder}/metrics.jsonl")]
    rates = [line["images_per_s"] for line in lines
             if line.get("step", 0) > WARMUP_STEPS and "images_per_s" in line]
    return {"images_per_s": statistics.median(rates)}


def ddp(torchrun):
    with tempfile.TemporaryDirectory() as folder:
        execute([torchrun, "--standalone", "--nproc-per-node", str(WORKERS),
                 str(measure.ROOT / "benchmarks" / "peer_ddp.py"), "--arch", "resnet18",
                 "--img", str(IMAGE), "--batch", str(BATCH), "--classes", str(CLASSES),
                 "--warmup", str(WARMUP_STEPS), "--blocks", str(BLOCKS),
                 "--block-steps", str(BLOCK_STEPS), "--json", f"{folder}/peer.json"], **KEEP_MEMORY)
        result = json.load(open(f"{folder}/peer.json"))
    return {"images_per_s": statistics.median(result["images_per_s"])}


def run(rounds):
    torchrun = measure.peer("torchrun")
    measure.ours("train")
    samples = measure.alternate({"ours": lambda: train(WORKERS),
                                 "peer": (lambda: ddp(torchrun)) if torchrun else None}, rounds)
    rows = [measure.row(f"ResNet-18 {IMAGE} px, batch {BATCH} x {WORKERS}, fp32", "images/s",
                        samples["ours"]["images_per_s"],
                        samples.get("peer", {}).get("images_per_s", []), lower_is_better=False)]
    return rows, {"rounds": rounds, "classes": CLASSES, "blocks": BLOCKS, "block_steps": BLOCK_STEPS,
                  "warmup_steps": WARMUP_STEPS}
