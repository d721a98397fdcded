"""What scripts/test --gpu asks of whole runs: that two of them agree, that one goes on after a loss or names what fits.

Each is a process of its own, called as gpu_checks.py NAME FOLDER [ARGUMENT ...], so that benchmarks/gpu.py can end it at
its limit; it ends with a sentence where it is not so.
"""
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from gpu import BIN, LIBTORCH, MNIST, OPTIMIZER, ROOT, STEM, Machine, ddprun, events, train, two_workers


def children_of(pid):
    path = pathlib.Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in path.read_text().split()] if path.exists() else []


def was_spare(pid):
    """Whether it was started without a rank, whatever it has become since."""
    name = b"DDPRUN_SPARE_FD="
    return any(entry.startswith(name) and entry != name
               for entry in pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))


def workers_of(launcher):
    """Those that were started with a rank."""
    return [pid for pid in children_of(launcher)
            if pathlib.Path(f"/proc/{pid}/comm").read_text().strip() == "train" and not was_spare(pid)]


def train_events(metrics):
    """Those of a file that is being written, with the number of the attempt that each is of."""
    attempt = 0
    for line in metrics.read_text().splitlines(keepends=True) if metrics.exists() else ():
        if not line.endswith("\n"):
            return
        event = json.loads(line)
        if event["event"] == "start":
            attempt = event["restart_count"]
        if event["event"] == "train":
            yield attempt, event


def wait_for_step(job, metrics, attempt, step=1):
    """The first line of this attempt's training that is so far; None where the job ended, or took longer than a minute."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        over = job.poll() is not None  # Before the look: an end may come between.
        for number, event in train_events(metrics):
            if number == attempt and event["step"] >= step:
                return event
        if over:
            return None
        time.sleep(0.05)
    return None


KILLED_AT, SAVED_EVERY = 25, 20  # Steps: once there is a checkpoint.


def kill_one(folder, spares, *ways):
    """A job of two workers on the GPU, with so many more kept ready; one is killed once both train, and the job must end
    well after one restart. With --shards the other one must have kept its process."""
    with tempfile.TemporaryDirectory(dir=folder) as place:
        argv, _ = train(pathlib.Path(place), "killed", "--image-size", "32", "--batch-size", "64", "--print-freq", "5",
                        "--steps", "200", *two_workers(), "--checkpoint-dir", f"{place}/checkpoints",
                        "--checkpoint-every", str(SAVED_EVERY), *ways)
        metrics, said = pathlib.Path(place) / "killed.jsonl", pathlib.Path(place) / "said"
        with said.open("w") as output:
            job = subprocess.Popen([str(word) for word in [*ddprun(2, "--max-restarts", "1", "--spares", spares), *argv]], stdout=output,
                                   stderr=subprocess.STDOUT)
            wait_for_step(job, metrics, attempt=0, step=KILLED_AT)
            workers, killed = workers_of(job.pid), time.time()
            if len(workers) == 2:
                os.kill(workers[1], signal.SIGKILL)
            again = wait_for_step(job, metrics, attempt=1)
            kept = set(workers) & set(workers_of(job.pid))
            job.wait()
        text = said.read_text()
    print(text)
    if len(workers) != 2:
        sys.exit(f"{len(workers)} workers were training, not 2")
    if job.returncode != 0 or "SIGKILL" not in text:
        sys.exit(f"the job ended with {job.returncode}, and must end with 0 and tell of the SIGKILL")
    if not again or again["step"] <= SAVED_EVERY:
        sys.exit(f"the other attempt told of {again or 'no step'}, and begins after step {SAVED_EVERY}")
    if ("--shards" in ways) != (kept == {workers[0]}):
        sys.exit(f"of the workers {workers}, of which the second was killed, {kept or 'none'} went on")
    print(json.dumps({"s until steps are told again": again["time"] - killed}))


def same_shards(folder):
    """A run with --shards by one worker and by two: the same samples, so the same losses but for rounding."""
    found = []
    for workers in (1, 2):
        name = f"shards-{workers}"
        argv, _ = train(folder, name, "--image-size", "32", "--batch-size", "32", "--steps", "20", "--print-freq", "1",
                        "--shards", "4", "--no-cudnn-benchmark", "--tf32", "off", "--verify-sync", "10",
                        *(two_workers() if workers > 1 else ()))
        subprocess.run([str(word) for word in [*(ddprun(workers) if workers > 1 else ()), *argv]], check=True)
        found.append([line["loss"] for line in events(folder, name, "train")])
    check_alike("--shards by two workers", *found)


def fitting_batch(folder):
    """A batch that no GPU's memory has room for ends the run with one that fits."""
    def run(batch):
        argv, _ = train(folder, "fitting", "--model", "resnet50", "--image-size", "224", "--batch-size", str(batch), "--steps",
                        "2", "--precision", "fp32", "--workers", "2")
        ended = subprocess.run([str(word) for word in argv], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        print(ended.stdout)
        return ended

    named = re.search(r"give --batch-size (\d+)", (large := run(2048)).stdout)
    if large.returncode == 0 or not named:
        sys.exit(f"2048 images: status {large.returncode}, and no batch that would fit was named")
    batch = int(named[1])
    if (small := run(batch)).returncode != 0:
        sys.exit(f"{batch} images should have fitted: status {small.returncode}")
    print(json.dumps({"images": batch}))


ALIKE = (1e-5, 1e-5, 1e-3)  # By how much of itself each of the first losses may differ.
ALIKE_ON_AVERAGE = 0.02


def check_alike(what, expected, found):
    """That steps on noise are the same but for rounding. With each further one of them rounding grows, tenfold and more:
    after twenty, two runs by the same kernels differ by 0.9 %. What a step does is in the first three losses: a
    learning rate that is 2 % less, or a momentum of 0.8 for 0.9, is 5e-4 and 1e-3 of the second one."""
    if not len(expected) == len(found) == 20:
        sys.exit(f"{what}: {len(found)} losses beside {len(expected)}, not 20")
    differences = [abs(a - b) / abs(a) for a, b in zip(expected, found)]
    average = abs(sum(expected) - sum(found)) / abs(sum(expected))
    print(json.dumps({"largest difference of the first, %": 100 * max(differences[:len(ALIKE)]),
                      "of the average, %": 100 * average}))
    if any(difference > most for difference, most in zip(differences, ALIKE)) or average > ALIKE_ON_AVERAGE:
        sys.exit(f"{what}: losses differ by more than rounding explains: {found} beside {expected}")


def python_losses(folder, device):
    """The losses of float32 steps of a ResNet-18 on MNIST, with Python's weights, beside Python's own. At a rate at which
    rounding does not grow: with ten times as much the same step differs by 0.3 % on a CPU."""
    rate, largest = "0.001", 1e-4
    weights, metrics = folder / "python.safetensors", folder / "python-losses.jsonl"
    metrics.unlink(missing_ok=True)
    oracle = [Machine().peer, "-B", ROOT / "tests" / "trainer" / "oracle.py", "train", ROOT / "data" / "mnist", "50", "16",
              rate, "1", weights, device, "channels-last"]
    said = subprocess.run([str(word) for word in oracle], check=True, stdout=subprocess.PIPE, text=True).stdout
    expected = [float(line) for line in said.splitlines()]
    argv = [BIN / "train", *MNIST, "--model", "resnet18", "--stem", "small", "--steps", "50", "--batch-size", "16", "--lr",
            rate, "--print-freq", "1", "--no-validation", "--device", device, "--tf32", "off", "--cudnn-deterministic",
            "--no-cudnn-benchmark", "--conv-algorithm", "direct", "--weights", weights, "--metrics", metrics,
            *LIBTORCH]
    subprocess.run([str(word) for word in argv], check=True)
    found = [line["loss"] for line in events(folder, metrics.stem, "train")]
    if not len(found) == len(expected) == 50:
        sys.exit(f"{len(found)} losses beside {len(expected)} of Python's, not 50")
    worst = max(abs(a - b) / abs(b) for a, b in zip(found, expected))
    print(json.dumps({"largest difference, %": 100 * worst}))
    if not worst < largest:
        sys.exit(f"losses differ by {worst:.3%}, and may by {largest:.3%}")


def same_losses(folder, *ways):
    """The same run by LibTorch's kernels and in these ways."""
    found = {}
    for way in ("", *ways):
        name = f"losses{way.replace(' ', '')}"
        # With the stem that pools, which images of 32 pixels would not have.
        argv, _ = train(folder, name, *STEM, "--image-size", "32", "--batch-size", "64", "--steps", "20",
                        "--print-freq", "1", "--augment", "pad-crop,flip", "--nesterov", "--no-cudnn-benchmark",
                        "--tf32", "off", *LIBTORCH, *way.split())
        subprocess.run([str(word) for word in argv], check=True)
        found[way] = [line["loss"] for line in events(folder, name, "train")][-20:]
    for way in ways:
        check_alike(way, found[""], found[way])


def tensors_of(checkpoint):
    content = checkpoint.read_bytes()
    return content[8 + int.from_bytes(content[:8], "little"):]


def gpus_of_processes(listed):
    """{process: its GPUs} of nvidia-smi's lines "4127, 00000000:1B:00.0"."""
    found = {}
    for line in listed.splitlines():
        process, _, gpu = line.partition(",")
        if gpu:
            found.setdefault(process.strip(), set()).add(gpu.strip())
    return found


def own_gpu(folder):
    """A job of two workers with loaders, checkpoints and an evaluation: for all of its time each process is on one GPU, and
    both GPUs have one."""
    with tempfile.TemporaryDirectory(dir=folder) as place:
        argv, _ = train(pathlib.Path(place), "own-gpu", "--image-size", "32", "--batch-size", "64", "--epochs", "4",
                        "--synthetic-images", "12800", "--checkpoint-dir", f"{place}/checkpoints", "--checkpoint-every", "20")
        argv.remove("--no-validation")
        job = subprocess.Popen([str(word) for word in [*ddprun(2), *argv]])
        seen = {}
        while job.poll() is None:
            listed = subprocess.run(["nvidia-smi", "--query-compute-apps=pid,gpu_bus_id", "--format=csv,noheader"],
                                    capture_output=True, text=True).stdout
            for process, gpus in gpus_of_processes(listed).items():
                seen.setdefault(process, set()).update(gpus)
            time.sleep(0.2)
    print(json.dumps({process: sorted(gpus) for process, gpus in seen.items()}))
    if job.returncode != 0:
        sys.exit(f"the job ended with {job.returncode}")
    if [process for process, gpus in seen.items() if len(gpus) > 1] or len(set().union(*seen.values())) < 2:
        sys.exit("each worker must be seen on one GPU, and the two on two")


def same_bits(folder, workers, tried, *ways):
    """The same run with what is tried (a graph, say) and without, over an epoch's end, a smaller last step and
    checkpoints: the same weights and losses, to the bit. Once more without it where they differ, to know whether such
    steps repeat at all."""
    workers = int(workers)

    def trail(name, *more):
        place = folder / f"bits-{workers}{tried}{''.join(ways)}-{name}"
        shutil.rmtree(place, ignore_errors=True)
        (folder / f"{place.name}.jsonl").unlink(missing_ok=True)
        argv, _ = train(folder, place.name, "--model", "resnet20", "--image-size", "32", "--batch-size", "64",
                        "--synthetic-images", str(workers * (64 * 20 + 9)), "--synthetic-classes", "10", "--steps", "50",
                        "--print-freq", "1", "--nesterov", "--lr-schedule", "cosine", "--warmup-steps", "5",
                        "--no-cudnn-benchmark", "--cudnn-deterministic", *OPTIMIZER, "--checkpoint-dir", place,
                        "--checkpoint-every", "10", *((*two_workers(), "--verify-sync", "10") if workers > 1 else ()), *ways, *more)
        subprocess.run([str(word) for word in [*(ddprun(workers) if workers > 1 else ()), *argv]], check=True)
        losses = [line["loss"] for line in events(folder, place.name, "train")]
        return losses, tensors_of(place / "last.safetensors")

    plain, other = trail("without"), trail("with", tried)
    print(json.dumps({"without": plain[0], "with": other[0]}))
    if len(plain[0]) != 50:
        sys.exit(f"a run has {len(plain[0])} losses, not 50")
    if plain == other:
        return
    first = next((i + 1 for i, (a, b) in enumerate(zip(plain[0], other[0])) if a != b), "none")
    repeats = "repeats itself" if trail("again") == plain else "does not repeat itself either"
    sys.exit(f"with {tried} other bits (first loss that differs: step {first}); a run without it {repeats}")


CHECKS = {"kill-one": kill_one, "same-shards": same_shards, "fitting-batch": fitting_batch, "python-losses": python_losses,
          "same-losses": same_losses, "same-bits": same_bits, "own-gpu": own_gpu}

if __name__ == "__main__":
    CHECKS[sys.argv[1]](pathlib.Path(sys.argv[2]), *sys.argv[3:])
