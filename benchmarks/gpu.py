"""scripts/test --gpu and scripts/bench gpu: everything that is to be known of the first machine with a GPU, in one
command each, from a tree that nothing was built in. Such a machine need not have our packages (scripts/pack_gpu) nor
a network, and is had for minutes: tests come before figures, and each figure is on disk once it is known.

Two workers on the one GPU are a real job over NCCL (train --share-gpu); where there are several, each has its own.
"""
import argparse
import functools
import importlib.util
import json
import os
import pathlib
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import gpu_steps
from gpu_steps import PASSED, Step

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = ROOT / "build-gpu"
BIN = BUILD / "bin"
TOTAL_S = 480
GPU = "a GPU"
NO_GPU_STATUS = 3
LOADER_THREADS = min(8, os.cpu_count() or 1)
SELF = pathlib.Path(__file__).resolve()
CHECKS = SELF.with_name("gpu_checks.py")

FIND_GPU = """
import ctypes, sys
try:
    driver = ctypes.CDLL("libcuda.so.1")
except OSError:
    sys.exit("no driver (libcuda.so.1)")
count, name = ctypes.c_int(), ctypes.create_string_buffer(100)
status = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
if status or count.value == 0:
    sys.exit(f"the driver finds no device (status {status})")
driver.cuDeviceGetName(name, 100, 0)
print(name.value.decode())
print("GPUs:", count.value)
"""


@functools.cache
def gpus_here():
    """In a process of its own: one that has asked the driver has a context."""
    said = subprocess.run([sys.executable, "-c", FIND_GPU], capture_output=True, text=True).stdout
    found = re.search(r"^GPUs: (\d+)$", said, re.MULTILINE)
    return int(found.group(1)) if found else 0


def two_workers():
    """What train needs to be told for two workers on this machine."""
    return () if gpus_here() >= 2 else ("--share-gpu",)


class Machine:
    """Where what we build with lies: our own folders, else the packages of this Python."""

    def __init__(self):
        torch = os.environ.get("DDPRUN_TORCH")
        found = importlib.util.find_spec("torch")
        own = ROOT / ".deps" / "libtorch" / "torch"
        self.torch = pathlib.Path(torch) if torch else pathlib.Path(found.origin).parent if found else own
        self.pack = ROOT / ".gpu-pack" / "usr"
        self.nvjpeg = next((ROOT / ".gpu-pack" / "nvjpeg").glob("libnvjpeg.so.*"), None)
        peer = next((ROOT / ".deps" / "peer" / "lib").glob("python3*/site-packages"), None)
        packages = [self.torch.parent, *([peer] if peer else [])]
        self.nccl = next((p / "nvidia" / "nccl" for p in packages
                          if (p / "nvidia" / "nccl" / "include" / "nccl.h").exists()), None)
        self.peer = sys.executable if found else str(ROOT / ".deps" / "peer" / "bin" / "python")

    def settings(self):
        settings = {"CMAKE_BUILD_TYPE": "Release", "DDPRUN_TORCH": self.torch, "DDPRUN_WITH_MPI": "OFF"}
        if self.pack.exists():
            settings["CMAKE_PREFIX_PATH"] = self.pack
            # Paths inside of the tree are left out, unless they are named.
            settings["CMAKE_INSTALL_RPATH"] = self.pack / "lib" / "x86_64-linux-gnu"
        if self.nccl:
            settings |= {"NCCL_INCLUDE": self.nccl / "include", "NCCL_LIBRARY": self.nccl / "lib" / "libnccl.so.2"}
        return [f"-D{name}={value}" for name, value in settings.items()]


def with_nvjpeg(machine, argv):
    """A command that finds the packed nvJPEG; elsewhere the loader's path has to have one."""
    return ["env", f"DDPRUN_NVJPEG={machine.nvjpeg}", *argv] if machine.nvjpeg else argv


def building(machine, what, limit_s, *targets):
    return Step(f"build {what}", ["cmake", "--build", BUILD, "--target", *targets], limit_s, needs=("configure the build",))


def first_steps(machine):
    return [
        Step(GPU, [sys.executable, "-c", FIND_GPU], 60),
        Step("machine", ["sh", "-c", "uname -sr; nproc; nvcc --version | tail -2; nvidia-smi; true"], 30),
        Step("configure the build", ["cmake", "-S", ROOT, "-B", BUILD, "-G", "Ninja", *machine.settings()], 45),
    ]


def ran(text):
    """No figure; a test that was skipped has shown nothing."""
    if "SKIPPED" in text:
        raise ValueError("it was skipped")
    return {}


def events(folder, name, kind):
    """What the run that train() described has told: the last one of the file, to which --metrics adds."""
    told = []
    for line in map(json.loads, (folder / f"{name}.jsonl").read_text().splitlines()):
        if line.get("event") == "start":
            told = []
        if line.get("event") == kind:
            told.append(line)
    return told


def train(folder, name, *options):
    """The options of a run on synthetic images whose measured steps go to a file."""
    metrics = folder / f"{name}.jsonl"
    # One thread, as where nothing is said, may be slower than the GPU at 224 px, and is not what is measured.
    data = () if "--dataset" in options else ("--dataset", "synthetic")
    argv = [BIN / "train", *data, "--no-validation", "--device", "cuda", "--lr", "0.01",
            "--workers", str(LOADER_THREADS), "--metrics", metrics, *options]

    def images_per_s(_):
        rates = [line["images_per_s"] for line in events(folder, name, "train")]
        return {"images/s": statistics.median(rates[2:])}  # The first ones warm up.

    return argv, images_per_s


def by_kernels(folder, name, kernels, figures):
    """The figures of a run that used these kernels of ours, as it says itself."""
    def checked(text):
        used = events(folder, name, "start")[0]["own_kernels"]
        if used != kernels:
            raise ValueError(f"it used our kernels '{used}', not '{kernels}'")
        return figures(text)

    return checked


def with_waits(folder, name, figures):
    """The figures of a run of several workers, and for how long a GPU stands for the other's gradients."""
    def checked(text):
        lines = events(folder, name, "train")[2:]
        waits, steps = (statistics.median(line[what] for line in lines) for what in ("exposed_comm_s", "step_s"))
        if not 0 < waits < steps:
            raise ValueError(f"it says that {waits} s of a step, which takes {steps} s, are waits for the other worker")
        return figures(text) | {"ms of a step, waiting": 1e3 * waits}

    return checked


# As scripts/quickstart has it.
MNIST = ("--dataset", "mnist", "--data", ROOT / "data" / "mnist")
MNIST_RECIPE = ("--model", "resnet20", "--epochs", "1", "--batch-size", "64", "--lr", "0.1", "--lr-schedule", "cosine",
                "--warmup-steps", "20")
MNIST_ACCURACY = 98.5  # Percent.


def learns_mnist(folder):
    metrics = folder / "mnist.jsonl"

    def accuracy(_):
        found = events(folder, "mnist", "end")[0]["best_prec1"]
        if found < MNIST_ACCURACY:
            raise ValueError(f"{found} % of the test images, and {MNIST_ACCURACY} % are asked for")
        return {"%": found}

    return Step(f"MNIST is learned to {MNIST_ACCURACY} %",
                [BIN / "train", *MNIST, *MNIST_RECIPE, "--device", "cuda", "--metrics", metrics, *BEST], 60,
                needs=("build train", GPU), figures=accuracy)


def ddprun(workers, *options):
    return [BIN / "ddprun", "--standalone", "--nproc-per-node", workers, *options]


def worker_on_gpu(worker):
    """A shell's words: the worker on a GPU of its own, else on GPU 0 with what train --share-gpu sets
    (trainer/device/gpu_places.h)."""
    if gpus_here() >= 2:
        return f"exec {worker} $LOCAL_RANK"
    return ("export NCCL_HOSTID=h$RANK NCCL_NET=Socket NCCL_SOCKET_IFNAME=lo NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1 "
            f"NCCL_MAX_CTAS=2; exec {worker} 0")


def memory_checks(program):
    """The kernels under CUDA's memory checker, where the toolkit came with it."""
    checker = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")
    if not checker:
        return []
    return [Step("the kernels of a step touch no memory but their own",
                 [checker, "--error-exitcode", "9", BIN / "test_step_kernels", "[gpu]"], 60, needs=(program, GPU), figures=ran)]


def several_gpus(folder, program):
    """What one GPU cannot show. Of one process LibTorch may reach for GPU 0 in any thread."""
    argv, rate = train(folder, "parallel", "--image-size", "32", "--batch-size", "64", "--print-freq", "10", "--steps", "60",
                       "--data-parallel", "2")
    together, together_rate = train(folder, "parallel-norms", "--image-size", "32", "--batch-size", "64", "--print-freq", "10",
                                    "--steps", "60", "--data-parallel", "2", "--sync-bn")
    return [
        Step("no worker has a context on another one's GPU",
             [sys.executable, "-B", CHECKS, "own-gpu", folder], 120, needs=(program, GPU), figures=last_json),
        Step("one process trains on two GPUs", argv, 60, needs=(program, GPU), figures=rate),
        Step("so it does with batch norms over both", together, 60, needs=(program, GPU), figures=together_rate)]


def test_plan(machine, folder):
    module, program = "build what needs no LibTorch", "build train"
    small = ("--image-size", "32", "--batch-size", "64", "--print-freq", "10")
    one, one_rate = train(folder, "one", *small, "--steps", "60", *LIBTORCH)
    two, two_rate = train(folder, "two", *small, "--steps", "60", *two_workers(), "--verify-sync", "10")
    replays, replays_rate = train(folder, "replays", *small, "--steps", "60", *two_workers(), "--cuda-graph")
    together, together_rate = train(folder, "together", *small, "--steps", "60", *two_workers(), "--sync-bn", "--verify-sync",
                                    "10")
    narrow, narrow_rate = train(folder, "narrow", *small, "--steps", "60", *two_workers(), "--grad-dtype", "bf16", "--cuda-graph",
                                "--verify-sync", "10")
    thin, thin_rate = train(folder, "thin", *small, "--steps", "60", *two_workers(), "--power-sgd", "4", "--power-sgd-start",
                            "5", "--verify-sync", "10")
    graph, graph_rate = train(folder, "graph", *small, "--steps", "60", *OPTIMIZER, *BEST)
    own, own_rate = train(folder, "own", *small, "--steps", "60", "--precision", "fp16", "--gpu-memory")
    best, best_rate = train(folder, "best", *small, "--steps", "60", "--precision", "fp16", *BEST)
    return first_steps(machine) + [  # The time may end anywhere: what needs no GPU comes last.
        building(machine, "what needs no LibTorch", 120, "ddprun", "ddprun_cuda", "test_nccl", "test_over_nccl",
                 "test_nccl_job", "test_worker", "nccl_worker"),
        Step("NCCL starts", [BIN / "test_worker", "NCCL starts*"], 60, needs=(module, GPU), figures=ran),
        building(machine, "train", 180, "train", "test_step_kernels", "test_device_jpeg", "test_ddp_on_gpu"),
        Step("the kernels of a step have the bits of their loops", [BIN / "test_step_kernels", "[gpu]"], 60,
             needs=(program, GPU), figures=ran),
        *memory_checks(program),
        Step("nvJPEG's images are libjpeg's but for rounding", with_nvjpeg(machine, [BIN / "test_device_jpeg", "[gpu]"]), 60,
             needs=(program, GPU), figures=ran),
        Step("one worker trains by LibTorch's kernels", one, 60, needs=(program, GPU),
             figures=by_kernels(folder, "one", "", one_rate)),
        Step("one worker trains by ours where nothing is said", own, 60, needs=(program, GPU),
             figures=by_kernels(folder, "own", "fused-optimizer fused-norm fused-pool working-copies", own_rate)),
        Step("each of ours has the losses of LibTorch's",
             [sys.executable, "-B", CHECKS, "same-losses", folder, "--fused-optimizer --resident-data", "--device-normalize",
              "--fused-norm", "--fused-pool"], 90, needs=(program, GPU)),
        Step("one worker trains by all of ours, with a graph", best, 60, needs=(program, GPU), figures=best_rate),
        Step("with working copies it has the bits of autocast's",
             [sys.executable, "-B", CHECKS, "same-bits", folder, "1", "--working-copies", "--precision", "fp16"], 90,
             needs=(program, GPU)),
        Step("fifty steps have the losses of PyTorch", [sys.executable, "-B", CHECKS, "python-losses", folder, "cuda"], 90,
             needs=(program, GPU), figures=last_json),
        learns_mnist(folder),
        Step("one worker trains by replays of a graph", graph, 60, needs=(program, GPU), figures=graph_rate),
        Step("a graph has the bits of steps without one",
             [sys.executable, "-B", CHECKS, "same-bits", folder, "1", "--cuda-graph"], 90, needs=(program, GPU)),
        Step("so it has with two workers on the GPU",
             [sys.executable, "-B", CHECKS, "same-bits", folder, "2", "--cuda-graph"], 120, needs=(program, GPU)),
        Step("so it has with batch norms of ours",
             [sys.executable, "-B", CHECKS, "same-bits", folder, "1", "--cuda-graph", "--fused-norm"], 90,
             needs=(program, GPU)),
        Step("so it has by all of ours in fp16, with two workers",
             [sys.executable, "-B", CHECKS, "same-bits", folder, "2", "--cuda-graph", "--fused-norm", "--working-copies",
              "--precision", "fp16"], 120, needs=(program, GPU)),
        Step("two workers on the GPU have each collective's result, and each other's messages",
             [*ddprun(2, "--no-python"), "sh", "-c", worker_on_gpu(BIN / "nccl_worker")], 90, needs=(module, GPU)),
        Step("two workers on the GPU have equal weights", [*ddprun(2), *two], 90, needs=(program, GPU),
             figures=with_waits(folder, "two", two_rate)),
        Step("in a graph, too, it is known how long they wait for each other", [*ddprun(2), *replays], 90, needs=(program, GPU),
             figures=with_waits(folder, "replays", replays_rate)),
        Step("so they have with batch norms over both", [*ddprun(2), *together], 90, needs=(program, GPU),
             figures=together_rate),
        Step("so they have with gradients that travel as bf16, in a graph", [*ddprun(2), *narrow], 90, needs=(program, GPU),
             figures=narrow_rate),
        Step("so they have with gradients that travel as thin matrices", [*ddprun(2), *thin], 90, needs=(program, GPU),
             figures=thin_rate),
        Step("a wrapped module does on the GPU what it does on the CPU", [BIN / "test_ddp_on_gpu", "[gpu]"], 60,
             needs=(program, GPU), figures=ran),
        Step("a killed worker is noticed, and the job goes on",
             [sys.executable, "-B", CHECKS, "kill-one", folder, "0"], 90, needs=(program, GPU), figures=last_json),
        Step("with --shards two workers have the losses of one",
             [sys.executable, "-B", CHECKS, "same-shards", folder], 90, needs=(program, GPU), figures=last_json),
        Step("with --shards a killed worker is replaced, and the other keeps its process",
             [sys.executable, "-B", CHECKS, "kill-one", folder, "0", "--shards", "4"], 90, needs=(program, GPU),
             figures=last_json),
        Step("so it is by a process that was kept ready",
             [sys.executable, "-B", CHECKS, "kill-one", folder, "1", "--shards", "4"], 90, needs=(program, GPU),
             figures=last_json),
        Step("a batch that does not fit ends with one that does",
             [sys.executable, "-B", CHECKS, "fitting-batch", folder], 90, needs=(program, GPU), figures=last_json),
        *(several_gpus(folder, program) if gpus_here() >= 2 else []),
        Step("the NCCL module's own cases", [BIN / "test_nccl"], 60, needs=(module,)),
        Step("the collectives, over libraries without a GPU", [BIN / "test_over_nccl", "[any-backend],[nccl]"], 90,
             needs=(module,)),
        Step("jobs over libraries without a GPU", [BIN / "test_nccl_job"], 60, needs=(module,)),
    ]


# Kernels of ours are what a GPU uses where nothing is said.
LIBTORCH = ("--no-fused-optimizer", "--no-fused-norm", "--no-fused-pool", "--no-working-copies")
OPTIMIZER = (*LIBTORCH, "--fused-optimizer")
RESIDENT = ("--resident-data",)
BEST = (*RESIDENT, "--cuda-graph")

# Model, image side, batch, precision.
CASES = [("resnet50", 224, 256, "fp16"), ("resnet50", 224, 256, "bf16"), ("resnet18", 32, 128, "fp16")]
# Of torchvision's networks, which both sides must have: train's own choice for small images, a stem that leaves them
# their size, computes several times as much.
STEM = ("--stem", "imagenet")
PARAMETERS = {"resnet18": 11_689_512, "resnet50": 25_557_032}
# Of train, each measured once, to know what each brings; BEST is what is compared, turn about with Python's.
WAYS = [("LibTorch's kernels", LIBTORCH), ("LibTorch's kernels, --device-normalize", (*LIBTORCH, "--device-normalize")),
        ("our optimizer, --resident-data --cuda-graph", (*OPTIMIZER, *BEST)),
        ("as it is", ()), ("--resident-data", RESIDENT)]


def peer_argv(machine, mode, model, side, batch, precision):
    return [machine.peer, "-B", ROOT / "benchmarks" / "peer_gpu.py", "--mode", mode, "--model", model, "--image-size", side,
            "--batch-size", batch, "--precision", precision]


def last_json(text):
    return json.loads([line for line in text.splitlines() if line.startswith("{")][-1])


def check_network(model, parameters):
    if parameters != PARAMETERS[model]:
        raise ValueError(f"{parameters} parameters, and {model} has {PARAMETERS[model]}")


def train_on(folder, name, model, side, batch, precision, *options):
    """As train(), of torchvision's network."""
    argv, rate = train(folder, name, "--model", model, *STEM, "--image-size", str(side), "--batch-size", str(batch),
                       "--precision", precision, *options)

    def images_per_s(text):
        check_network(model, events(folder, name, "start")[0]["parameters"])
        return rate(text)

    return argv, images_per_s


def peer_rate(model):
    def images_per_s(text):
        found = last_json(text)
        check_network(model, found.pop("parameters"))
        return found

    return images_per_s


def host_time_step(folder, name, *more):
    """What a step takes the host, which every fifth one waits for the GPU: its limit of steps ahead does not count."""
    argv, _ = train_on(folder, f"host-{len(more)}", "resnet18", 32, 4, "fp16", "--steps", "200", "--print-freq", "5", *more)

    def host_us(_):
        host_s = [line["host_s"] for line in events(folder, f"host-{len(more)}", "train")]
        return {"us": 1e6 * statistics.median(host_s[2:])}

    return Step(f"the host's time for a step of resnet18, 32 px{name}", argv, 40, needs=("build train", GPU), figures=host_us)


CIFAR_IMAGES = (10_000,) * 6  # Of each of its files; the last is for validation.


def cifar_epoch(folder):
    """An epoch of CIFAR-10's images, of which only the number and the size count here, with its evaluation."""
    data = BUILD / "cifar"  # Not a result.

    def seconds(_):
        ends = [line["time"] for line in events(folder, "cifar", "validation")]
        return {"s": statistics.median(b - a for a, b in zip(ends, ends[1:]))}  # The first one warms up.

    argv = [sys.executable, "-B", SELF, "with-cifar", data, BIN / "train", "--dataset", "cifar10", "--data", data, "--model",
            "resnet18", "--batch-size", "512", "--epochs", "4", "--augment", "pad-crop,flip", "--lr", "0.1", "--device", "cuda",
            "--precision", "fp16", "--print-freq", "1000", "--metrics", folder / "cifar.jsonl", *BEST]
    return Step("an epoch of CIFAR-10, ResNet-18, with crops, flips and evaluation", argv, 60, needs=("build train", GPU),
                figures=seconds)


def with_cifar(data, *argv):
    """The command, with files like CIFAR-10's there while it runs."""
    shutil.rmtree(data, ignore_errors=True)  # Of a run that was killed at its limit.
    data.mkdir(parents=True)
    try:
        for number, images in enumerate(CIFAR_IMAGES, 1):
            name = f"data_batch_{number}.bin" if number < len(CIFAR_IMAGES) else "test_batch.bin"
            pixels = os.urandom(3072)
            (data / name).write_bytes(b"".join(bytes([i % 10]) + pixels for i in range(images)))
        sys.exit(subprocess.run(argv).returncode)
    finally:
        shutil.rmtree(data)


JPEG_FILES, JPEG_TIMES = 1_000, 20


def jpeg_files(folder):
    """Files of 500x375 pixels, and a list that has each of them many times: an epoch of some length."""
    subprocess.run([BIN / "data_load", "make", folder, str(JPEG_FILES)], check=True)
    lines = [f"train/{i % 10}/{i}.jpg,{i % 10}\n" for i in range(JPEG_FILES)]
    (folder / "list.csv").write_text("".join(lines * JPEG_TIMES))


def loading_steps(machine, folder):
    """What JPEG files give a network that waits for them, decoded by the loader's threads and by nvJPEG."""
    data = BUILD / "jpeg"  # Not a result.
    steps = [Step("JPEG files to load", [sys.executable, "-B", SELF, "jpeg-files", data], 40, needs=("build train",))]
    for name, way in (("libjpeg", "--device-normalize"), ("nvJPEG", "--device-jpeg")):
        argv, rate = train(folder, f"load-{name}", "--model", "convnet", "--dataset", "csv", "--data", data / "list.csv",
                           "--image-size", "224", "--batch-size", "256", "--steps", "75", "--print-freq", "15", way)
        steps.append(Step(f"images that {LOADER_THREADS} threads load from JPEG files, by {name}", with_nvjpeg(machine, argv),
                          60, needs=("JPEG files to load", GPU), figures=rate))
    return steps


def rate_step(folder, case, kind, *way):
    model, side, batch, precision = case
    argv, rate = train_on(folder, f"{model}-{precision}-{re.sub('[^a-z0-9]+', '-', kind)}", model, side, batch, precision, "--steps", "60",
                          "--print-freq", "10", *way)
    return Step(f"{name_of(case)}: train, {kind}", argv, 40, needs=("build train", GPU), figures=rate)


def peer_step(machine, case, mode, kind, limit_s):
    return Step(f"{name_of(case)}: Python {mode}, {kind}", peer_argv(machine, mode, *case), limit_s, needs=(GPU,),
                figures=peer_rate(case[0]))


def name_of(case):
    model, side, batch, precision = case
    return f"{model} {side} px, batch {batch}, {precision}"


def compared_steps(machine, folder, case, number, modes=("eager", "graph")):
    """A round: ours beside Python's, one after the other."""
    return [rate_step(folder, case, f"{' '.join(BEST)}, round {number}", *BEST),
            *(peer_step(machine, case, mode, f"round {number}", 40) for mode in modes)]


def bench_plan(machine, folder):
    steps = first_steps(machine) + [
        building(machine, "train", 180, "ddprun", "train", "ddprun_cuda", "nccl_calls", "sgd_costs", "ddp_tax", "data_load"),
    ]
    # The time may end anywhere: each thing once before one of them again.
    large, large_bf16, small = CASES
    steps += compared_steps(machine, folder, large, 1) + compared_steps(machine, folder, small, 1)
    steps += compared_steps(machine, folder, large_bf16, 1, modes=("eager",))
    steps += [
        host_time_step(folder, "", *RESIDENT),
        host_time_step(folder, ", by replays of a graph", *BEST),
        cifar_epoch(folder),
        peer_step(machine, large, "compile", "round 1", 120),
    ]
    steps += loading_steps(machine, folder)
    steps += compared_steps(machine, folder, large, 2) + compared_steps(machine, folder, small, 2)
    steps += [rate_step(folder, large, kind, *way) for kind, way in WAYS]
    steps += [rate_step(folder, small, kind, *way) for kind, way in WAYS[2:]]
    return steps + [
        Step("what a collective costs the host, world of one", [BIN / "nccl_calls"], 60, needs=("build train", GPU),
             figures=last_json),
        Step("an update of ResNet-50's parameters", [BIN / "sgd_costs"], 30, needs=("build train", GPU), figures=last_json),
        Step("what DistributedDataParallel takes of a step, world of one", [BIN / "ddp_tax"], 40,
             needs=("build train", GPU), figures=last_json),
    ]


def verdict(results):
    states = {result.name: result.state for result in results}
    if states.get(GPU) != PASSED:
        status = NO_GPU_STATUS
        if any(state not in (PASSED, gpu_steps.LEFT_OUT) for name, state in states.items() if name != GPU):
            status = 1
        return status, ("this machine has no GPU that can be used: what needs one was not run, and nothing is known "
                        "of it")
    bad = [name for name, state in states.items() if state != PASSED]
    return (1, f"not passed: {', '.join(bad)}") if bad else (0, "all passed")


def only(steps, text):
    """The steps whose names have the text, all that they need, and the look for a GPU, which the verdict needs."""
    kept = {step.name for step in steps if text in step.name} | {GPU}
    for step in reversed(steps):  # Every need is an earlier step.
        if step.name in kept:
            kept.update(step.needs)
    return [step for step in steps if step.name in kept]


def main():
    command = sys.argv[1]
    if command == "jpeg-files":
        return jpeg_files(pathlib.Path(sys.argv[2]))
    if command == "with-cifar":
        return with_cifar(pathlib.Path(sys.argv[2]), *sys.argv[3:])
    plan = {"test": test_plan, "bench": bench_plan}[command]
    name = "scripts/test --gpu" if command == "test" else "scripts/bench gpu"
    parser = argparse.ArgumentParser(prog=name, description=__doc__.split("\n\n")[0],
                                     epilog=f"Ends with {NO_GPU_STATUS} where there is no GPU, after all that needs none.")
    parser.add_argument("--results", type=pathlib.Path, default=BUILD / f"{command}-results", metavar="FOLDER",
                        help="where results.json, results.md and each step's output go [build-gpu/...]")
    parser.add_argument("--limit", type=float, default=TOTAL_S, metavar="SECONDS", help=f"for all of it [{TOTAL_S}]")
    parser.add_argument("--only", metavar="TEXT", help="leave out steps whose names lack it, but for those that they need")
    options = parser.parse_args(sys.argv[2:])
    folder = options.results.resolve()
    steps = plan(Machine(), folder)
    if options.only:
        steps = only(steps, options.only)
    head = {"command": name, "began": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "limit": f"{options.limit:.0f} s"}
    results = gpu_steps.run(steps, options.limit, folder, head)
    status, text = verdict(results)
    print(f"{name}: {text} ({folder}/results.md)")
    sys.exit(status)


if __name__ == "__main__":
    main()
