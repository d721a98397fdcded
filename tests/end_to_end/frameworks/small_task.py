"""What the workers of frameworks_test.py share: a network, its data, a death, and what is told at the end."""
import os
import pathlib
import signal

import torch

RANK = int(os.environ["RANK"])
WORLD_SIZE = int(os.environ["WORLD_SIZE"])
RESTARTS = int(os.environ["TORCHELASTIC_RESTART_COUNT"])


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(10, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))


def batches(rank=0, world_size=1):
    """Those of a rank; without one those of all, which a framework shares out itself."""
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(64, 10, generator=generator)
    labels = torch.randint(0, 2, (64,), generator=generator)
    data = torch.utils.data.TensorDataset(images, labels)
    sampler = torch.utils.data.DistributedSampler(data, world_size, rank, shuffle=False) if world_size > 1 else None
    return torch.utils.data.DataLoader(data, batch_size=4, sampler=sampler)


def may_die(late):
    """Where the test wants it, the last rank is killed once, `late` in its training."""
    if late and RESTARTS == 0 and RANK == WORLD_SIZE - 1 and "DIE" in os.environ:
        os.kill(os.getpid(), signal.SIGKILL)


def done(rank, world_size, local_rank, model):
    """Checks whom the framework takes this worker for; writes the sums of its weights, bit for bit, into $OUT/rankR; ends it.
    Not as the interpreter ends, which torch's threads of Gloo do not bear: half of such programs are killed by SIGABRT."""
    assert (rank, world_size, local_rank) == (RANK, WORLD_SIZE, int(os.environ["LOCAL_RANK"])), (rank, world_size, local_rank)
    weights = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]
    sums = " ".join(weight.detach().double().sum().item().hex() for weight in weights)
    pathlib.Path(os.environ["OUT"], f"rank{rank}").write_text(f"restarts {RESTARTS} weights {sums}")
    os._exit(0)
