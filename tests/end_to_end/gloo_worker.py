"""A Python torch worker: joins over Gloo, adds, and can die once on the way.

usage: gloo_worker.py [--kill-rank R]   rank R of attempt 0 ends by SIGKILL after its first sum
"""
import os
import signal
import sys

import torch
import torch.distributed as dist


def main():
    rank = int(os.environ["RANK"])
    world = int(os.environ["WORLD_SIZE"])
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    dist.init_process_group("gloo")
    value = torch.full((1000,), float(rank + 1))
    dist.all_reduce(value)
    expected = world * (world + 1) / 2
    if not torch.equal(value, torch.full((1000,), expected)):
        sys.exit(f"wrong sum {value[0].item()}, expected {expected}")
    print(f"attempt {attempt} rank {rank} sum {value[0].item():.0f}", flush=True)
    if attempt == 0 and sys.argv[1:] == ["--kill-rank", str(rank)]:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()
    # A process that ends normally can hang in Gloo's own destructors (torch 2.11).
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
