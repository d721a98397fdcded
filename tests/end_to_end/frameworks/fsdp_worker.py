"""PyTorch's FSDP2 over Gloo, whose sharded checkpoint is written by all ranks and read back."""
import os
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.elastic.multiprocessing.errors import record
from torch.distributed.fsdp import fully_shard

from small_task import batches, done, may_die, network


def sharded(model):
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


@record
def main():
    dist.init_process_group("gloo")
    model = sharded(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        for images, labels in batches(dist.get_rank(), dist.get_world_size()):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
            may_die(late=epoch == 1)
    checkpoint.save({"model": model.state_dict()}, checkpoint_id=sys.argv[1])
    read = sharded(network())
    checkpoint.load({"model": read.state_dict()}, checkpoint_id=sys.argv[1])
    done(dist.get_rank(), dist.get_world_size(), int(os.environ["LOCAL_RANK"]), read)


main()
