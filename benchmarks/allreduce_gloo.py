#!/usr/bin/env python3
"""The measurement of benchmarks/allreduce.cpp for PyTorch's Gloo, with the same JSON keys.

    python allreduce_gloo.py --world 2 --bytes 44700000,1000000
"""
import argparse
import json
import os
import socket
import time


def measure(dist, torch, count, repetitions):
    data = torch.ones(count)
    seconds = []
    for i in range(-3, repetitions):  # Three to warm up.
        dist.barrier()
        start = time.perf_counter()
        dist.all_reduce(data)
        data /= dist.get_world_size()
        if i >= 0:
            seconds.append(time.perf_counter() - start)
        data.fill_(1.0)
    slowest = torch.tensor(seconds, dtype=torch.float64)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return sorted(slowest.tolist())


def run_rank(rank, options):
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(options.world), MASTER_ADDR="127.0.0.1",
                      MASTER_PORT=str(options.port), OMP_NUM_THREADS="1")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    import torch
    import torch.distributed as dist
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    results = []
    for size in options.bytes:
        seconds = measure(dist, torch, size // 4, options.repetitions)
        median = seconds[len(seconds) // 2]
        results.append({"bytes": size, "median_s": median, "min_s": seconds[0],
                        "max_s": seconds[-1], "repetitions": options.repetitions,
                        "bytes_per_s": size / median})
    if rank == 0:
        report(options, results, torch.__version__)
    dist.destroy_process_group()


def report(options, results, version):
    print(f"gloo, torch {version}, {options.world} ranks")
    print("      bytes   median us      min us      max us      GB/s")
    for row in results:
        print(f"{row['bytes']:11d} {row['median_s'] * 1e6:11.1f} {row['min_s'] * 1e6:11.1f} "
              f"{row['max_s'] * 1e6:11.1f} {row['bytes_per_s'] / 1e9:9.2f}")
    print(json.dumps({"benchmark": "allreduce", "system": "gloo", "world": options.world,
                      "wiring": f"gloo, torch {version}", "results": results}), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--world", type=int, default=2)
    parser.add_argument("--bytes", type=lambda text: [int(b) for b in text.split(",")],
                        default=[44700000, 25000000, 1000000, 65536, 1024])
    parser.add_argument("--repetitions", type=int, default=50)
    options = parser.parse_args()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        options.port = probe.getsockname()[1]
    children = []
    for rank in range(options.world):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                run_rank(rank, options)
                code = 0
            finally:
                os._exit(code)
        children.append(child)
    statuses = [os.waitpid(child, 0)[1] for child in children]
    raise SystemExit(0 if not any(statuses) else 1)


if __name__ == "__main__":
    main()
