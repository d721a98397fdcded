"""Writes sampler_fixtures.txt: what Python's DistributedSampler yields, for distributed_sampler_test.cpp.

    python tests/worker/torch/make_sampler_fixtures.py > tests/worker/torch/sampler_fixtures.txt

One line per case: length replicas rank seed epoch shuffle drop_last, then the number of indices, their
FNV-1a hash (64 bits, over little-endian int64), and up to eight first and eight last indices.
"""
import itertools
import struct

import torch
from torch.utils.data import DistributedSampler


def fnv1a(indices):
    value = 14695981039346656037
    for byte in b"".join(struct.pack("<q", i) for i in indices):
        value = ((value ^ byte) * 1099511628211) & (2**64 - 1)
    return value


def line(length, replicas, rank, seed, epoch, shuffle, drop_last):
    sampler = DistributedSampler(range(length), replicas, rank, shuffle, seed, drop_last)
    sampler.set_epoch(epoch)
    indices = list(sampler)
    head = [length, replicas, rank, seed, epoch, int(shuffle), int(drop_last)]
    return " ".join(map(str, head + [len(indices), fnv1a(indices)] + indices[:8] + indices[-8:]))


def cases():
    lengths = [(0, 3), (1, 1), (1, 4), (2, 8), (3, 8), (7, 3), (8, 4), (10, 4), (97, 5), (1000, 7)]
    for (length, replicas), drop_last, shuffle in itertools.product(
            lengths, [False, True], [False, True]):
        for rank in sorted({0, replicas // 2, replicas - 1}):
            for seed, epoch in [(0, 0), (0, 1), (1234, 5)]:
                if shuffle or (seed, epoch) == (0, 0):
                    yield length, replicas, rank, seed, epoch, shuffle, drop_last
    for length, replicas in [(50000, 8), (60000, 2), (60000, 7), (1281167, 256)]:
        for rank in [0, replicas - 1]:
            for seed, epoch in [(0, 0), (42, 89), (2**40 + 7, 3)]:
                for drop_last in [False, True]:
                    yield length, replicas, rank, seed, epoch, True, drop_last
    yield 100, 3, 1, -5, 2, True, False  # A negative seed.


print(f"# torch {torch.__version__.split('+')[0]}")
for case in cases():
    print(line(*case))
