"""A Python torch worker: joins over Gloo, adds, and can die on the way.

usage: gloo_worker.py [--kills N]   in each of the attempts 0 .. N-1 one rank, in turn, ends by SIGKILL
                                    when all ranks have told their sum
"""
import datetime
import os
import signal
import sys

import torch
import torch.distributed as dist


def main():
    rank = int(os.environ["RANK"])
    world = int(os.environ["WORLD_SIZE"])
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    kills = int(sys.argv[2]) if sys.argv[1:2] == ["--kills"] else 0
    print(f"attempt {attempt} rank {rank} begins", flush=True)
    # Ranks that read a dead attempt's addresses wait for each other: by default half an hour.
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
    value = torch.full((1000,), float(rank + 1))
    dist.all_reduce(value)
    expected = world * (world + 1) / 2
    if not torch.equal(value, torch.full((1000,), expected)):
        sys.exit(f"wrong sum {value[0].item()}, expected {expected}")
    print(f"attempt {attempt} rank {rank} sum {value[0].item():.0f}", flush=True)
    dist.barrier()  # Whoever is through knows that all have printed.
    if attempt < kills:
        if rank == (attempt + 1) % world:
            os.kill(os.getpid(), signal.SIGKILL)
        signal.pause()  # Until the launcher ends this rank too.
    # A process that ends normally can hang in Gloo's own destructors (torch 2.11).
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
