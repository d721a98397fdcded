"""Writes ddp_fixtures.txt: what Python's DistributedDataParallel computes, for python_ddp_test.cpp.

    python tests/worker/torch/make_ddp_fixtures.py > tests/worker/torch/ddp_fixtures.txt

Two ranks over Gloo. Weights and inputs are sines, so that C++ can make the same ones. One line per case,
rank and tensor: case rank name values.
"""
import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as DDP

WORLD = 2


def fill(module):
    with torch.no_grad():
        for k, parameter in enumerate(module.parameters()):
            values = torch.arange(parameter.numel(), dtype=torch.float32)
            parameter.copy_((values * 0.7 + k).sin().mul(0.5).view_as(parameter))
    return module


def batch(rank, step):
    values = torch.arange(16, dtype=torch.float32)
    return (values * 0.31 + (step * 1.7 + rank * 0.9)).sin().view(4, 4)


class Scaled(nn.Module):
    """Has a buffer that every forward reads and changes."""

    def __init__(self, by_input):
        super().__init__()
        self.linear = nn.Linear(4, 2)
        self.register_buffer("scale", torch.ones(1))
        self.by_input = by_input

    def forward(self, x):
        used = self.scale.clone()
        self.scale.add_(0.1 * x.abs().mean() if self.by_input else 0.25)
        return self.linear(x * used).pow(2).mean()


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.norm = nn.BatchNorm1d(6)
        self.last = nn.Linear(6, 2)

    def forward(self, x):
        return self.last(self.norm(self.first(x)).relu()).pow(2).mean()


def descend(module, rate=0.1):
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.sub_(rate * parameter.grad)
    module.zero_grad()


def gan(rank):
    generator = DDP(fill(nn.Sequential(nn.Linear(4, 4), nn.Tanh())))
    judge = DDP(fill(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 1))))
    for step in range(4):
        made = generator(batch(rank, step + 10))
        ((judge(batch(rank, step)) - 1).pow(2).mean() + judge(made.detach()).pow(2).mean()).backward()
        descend(judge)
        (judge(made) - 1).pow(2).mean().backward()  # Through both.
        descend(generator)
        judge.zero_grad()
    return {"generator": flat(generator.module), "judge": flat(judge.module)}


def siamese(rank):
    left, right = (DDP(fill(nn.Linear(4, 3))) for _ in range(2))
    for step in range(4):
        (left(batch(rank, step)) * right(batch(rank, step + 20))).mean().backward()
        descend(left)
        descend(right)
    return {"left": flat(left.module), "right": flat(right.module)}


def frozen_norm(rank):
    net = DDP(fill(Normed()))
    for step in range(6):
        if step == 3:
            net.module.norm.eval()
        net(batch(rank, step)).backward()
        descend(net)
    return {"weights": flat(net.module), "mean": net.module.norm.running_mean}


def uneven(rank, longer):
    net = DDP(fill(Scaled(by_input=False)))
    with Join([net]):
        for step in range(5 if rank == longer else 3):
            net(batch(rank, step)).backward()
            descend(net)
    return {"weights": flat(net.module), "scale": net.module.scale}


def accumulated(rank):
    net = DDP(fill(Scaled(by_input=True)))
    for step in range(9):
        if step % 3 == 2:
            net(batch(rank, step)).backward()
            descend(net)
        else:
            with net.no_sync():
                net(batch(rank, step)).backward()
    return {"weights": flat(net.module), "scale": net.module.scale}


def evaluated(rank):
    """Running statistics that are read in all the ways in which PyTorch does and does not send them."""
    net = DDP(fill(Normed()))
    seen = []

    def look(step):
        net.eval()
        with torch.no_grad():
            seen.append(net(batch(0, step)).item())
        net.train()

    for step in range(12):
        if step % 4 == 2:
            with net.no_sync():
                net(batch(rank, step)).backward()
        else:
            net(batch(rank, step)).backward()
            descend(net)
        if step in (3, 6, 7, 10):
            look(step)
        if step == 6:
            look(step + 1)
    return {"seen": torch.tensor(seen), "weights": flat(net.module)}


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(9, 4, sparse=True)
        self.last = nn.Linear(4, 2)

    def forward(self, words):
        return self.last(self.words(words).sum(1).tanh()).pow(2).mean()


def sparse(rank):
    net = DDP(fill(Words()))
    for step in range(6):
        words = (torch.arange(6) * (rank + 2) + step).remainder(9).view(3, 2)
        if step % 3 == 1:
            with net.no_sync():
                net(words).backward()
        else:
            net(words).backward()
            descend(net)
    return {"words": net.module.words.weight.detach().flatten(), "last": flat(net.module.last)}


CASES = {
    "gan": gan,
    "siamese": siamese,
    "frozen_norm": frozen_norm,
    "uneven_0": lambda rank: uneven(rank, 0),
    "uneven_1": lambda rank: uneven(rank, 1),
    "accumulated": accumulated,
    "evaluated": evaluated,
    "sparse": sparse,
}


def flat(module):
    return torch.cat([p.detach().flatten() for p in module.parameters()])


def run_rank(rank, store, results):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=WORLD)
    for name, case in CASES.items():
        for tensor, values in case(rank).items():
            results.put((name, rank, tensor, values.tolist()))
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        results = mp.get_context("spawn").SimpleQueue()
        context = mp.spawn(run_rank, (os.path.join(folder, "store"), results), WORLD, join=False)
        lines = [results.get() for _ in range(WORLD * 16)]
        context.join()
    print(f"# torch {torch.__version__.split('+')[0]}")
    for name, rank, tensor, values in sorted(lines):
        print(name, rank, tensor, *(f"{v:.9g}" for v in values))
