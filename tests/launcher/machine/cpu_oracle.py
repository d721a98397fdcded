"""torch's own --numa-binding against ours, on machines made of random files.

  cpu_oracle.py PROGRAM FOLDER     PROGRAM is print_placement; FOLDER is empty, for the files

torch reads the same files, as far as it can be told where they are, and gets its GPUs from us.
"""
import os
import random
import shutil
import subprocess
import sys
import types

import torch
from torch.numa import binding

MACHINES = 40
MODES = ["node", "socket", "exclusive", "core-complex"]
ranges = binding._get_ranges_str_from_ints


class Machine:
    """Sockets of equal nodes of equal cores; the second threads have the higher numbers."""

    def __init__(self, root, dice):
        self.root = root
        sockets, nodes_each = dice.choice([1, 2]), dice.choice([1, 2])
        cores_each, threads = dice.choice([2, 4, 6]), dice.choice([1, 2])
        cores_behind_cache = dice.choice([1, 2, 3, 4])
        nodes = sockets * nodes_each
        cores = nodes * cores_each

        def cpus_of(some_cores):
            return [core + thread * cores for core in some_cores for thread in range(threads)]

        self.write("/sys/devices/system/cpu/online", ranges(range(cores * threads)))
        self.write("/sys/devices/system/node/possible", ranges(range(nodes)))
        for node in range(nodes):
            its_cores = range(node * cores_each, (node + 1) * cores_each)
            self.write(f"/sys/devices/system/node/node{node}/cpulist", ranges(cpus_of(its_cores)))
            for core in its_cores:
                first = core - (core - its_cores[0]) % cores_behind_cache
                near = [c for c in its_cores if first <= c < first + cores_behind_cache]
                for cpu in cpus_of([core]):
                    self.write_cpu(cpu, node // nodes_each, cpus_of([core]), cpus_of(near))

        self.gpus = dice.randint(1, 6)
        for gpu in range(self.gpus):
            unknown = nodes == 1 and dice.random() < 0.3
            self.write_gpu(gpu, -1 if unknown else dice.randrange(nodes))
        share = dice.choice([1, 0.7])
        self.allowed = {cpu for cpu in range(cores * threads) if dice.random() < share} or {0}

    def write(self, path, text):
        os.makedirs(os.path.dirname(self.root + path), exist_ok=True)
        with open(self.root + path, "w") as file:
            file.write(text + "\n")

    def write_cpu(self, cpu, socket, siblings, behind_cache):
        own = f"/sys/devices/system/cpu/cpu{cpu}"
        self.write(own + "/topology/physical_package_id", str(socket))
        self.write(own + "/topology/thread_siblings_list", ranges(siblings))
        for index, (kind, level, shared) in enumerate(
            [("Data", 1, siblings), ("Instruction", 1, siblings), ("Unified", 3, behind_cache)]
        ):
            self.write(f"{own}/cache/index{index}/type", kind)
            self.write(f"{own}/cache/index{index}/level", str(level))
            self.write(f"{own}/cache/index{index}/shared_cpu_list", ranges(shared))

    def write_gpu(self, gpu, node):
        address = f"0000:{16 + gpu:02x}:00.0"
        self.write(
            f"/proc/driver/nvidia/gpus/{address}/information",
            f"GPU UUID: \t GPU-{gpu}\nBus Location: \t {address}\nDevice Minor: \t {gpu}",
        )
        self.write(f"/sys/bus/pci/devices/{address}/numa_node", str(node))
        self.write(f"/dev/nvidia{gpu}", "")

    def show_to_torch(self):
        binding.open = lambda path: open(self.root + path)
        binding.os = types.SimpleNamespace(
            path=os.path,
            listdir=lambda path: os.listdir(self.root + path),
            sched_getaffinity=lambda _: self.allowed,
        )
        torch.cuda.device_count = lambda: self.gpus
        torch.cuda.get_device_properties = lambda gpu: types.SimpleNamespace(
            pci_domain_id=0, pci_bus_id=16 + gpu, pci_device_id=0
        )


def torchs_choice(mode, gpu):
    """Its CPUs, or nothing where it ends the job."""
    options = binding.NumaOptions(affinity_mode=binding.AffinityMode(mode))
    try:
        return ranges(binding._get_logical_cpus_to_bind_to(gpu_index=gpu, numa_options=options))
    except (RuntimeError, ValueError, ZeroDivisionError):
        return ""


def main(program, folder):
    dice = random.Random(20261121)
    compared = 0
    for number in range(MACHINES):
        machine = Machine(f"{folder}/{number}", dice)
        machine.show_to_torch()
        workers = dice.randint(1, machine.gpus)
        ours = subprocess.run(
            [program, machine.root, ranges(machine.allowed), str(workers)],
            capture_output=True, text=True, check=True,
        ).stdout.splitlines()
        for mode, line in zip(MODES, ours, strict=True):
            for worker, cpus in enumerate(line.split()):
                wanted = torchs_choice(mode, worker)
                if wanted:
                    assert cpus == wanted, f"{mode}, worker {worker}, {machine.root}: {cpus} {wanted}"
                    compared += 1
        shutil.rmtree(machine.root)
    assert compared > 4 * MACHINES
    print("binding ok")


main(*sys.argv[1:])
