"""The peer of train-cpu: Python torch's DistributedDataParallel over Gloo, as fast as we know to set
it up, on the same work as `train`: same model, batch, optimizer and number of steps.

Started by torchrun. Batches lie in memory, so no input pipeline is in its time. Rank 0 writes JSON:
images/s of each block of steps, over all ranks.
"""
import argparse
import json
import os
import time

import torch
import torch.distributed as dist
import torchvision
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel


def options():
    parser = argparse.ArgumentParser()
    parser.add_argument("--arch", default="resnet18")
    parser.add_argument("--img", type=int, default=32)
    parser.add_argument("--batch", type=int, default=64, help="per rank")
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--warmup", type=int, default=10)
    parser.add_argument("--blocks", type=int, default=5)
    parser.add_argument("--block-steps", type=int, default=10)
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--memory-format", choices=["nchw", "channels-last"], default="nchw")
    parser.add_argument("--hook", choices=["none", "bf16", "power-sgd"], default="none")
    parser.add_argument("--plain", action="store_true", help="DDP and SGD with their defaults")
    parser.add_argument("--json", required=True)
    return parser.parse_args()


def register_hook(ddp, name):
    """As `train --grad-dtype bf16` and `train --power-sgd 4 --power-sgd-start 2`."""
    if name == "bf16":
        ddp.register_comm_hook(None, default_hooks.bf16_compress_hook)
    elif name == "power-sgd":
        state = powerSGD_hook.PowerSGDState(process_group=None, matrix_approximation_rank=4, start_powerSGD_iter=2)
        ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)


def main():
    o = options()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    torch.set_flush_denormal(True)
    torch.manual_seed(0)
    world = int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo")
    rank = dist.get_rank()

    model = getattr(torchvision.models, o.arch)(num_classes=o.classes)
    memory_format = (torch.channels_last if o.memory_format == "channels-last"
                     else torch.contiguous_format)
    model = model.to(memory_format=memory_format)
    settings = {} if o.plain else {"static_graph": True, "gradient_as_bucket_view": True}
    if o.hook == "power-sgd":
        # With several buckets the hook's collectives of two of them pass each other, on each rank in another order, and
        # Gloo ends the job ("Received data size doesn't match expected size"): in one of three runs (torch 2.11).
        settings["bucket_cap_mb"] = 1000
    ddp = DistributedDataParallel(model, **settings)
    register_hook(ddp, o.hook)
    fused = {} if o.plain else {"fused": True}
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4, **fused)

    generator = torch.Generator().manual_seed(rank)
    batches = [(torch.randn(o.batch, 3, o.img, o.img, generator=generator)
                .contiguous(memory_format=memory_format),
                torch.randint(o.classes, (o.batch,), generator=generator)) for _ in range(4)]

    def steps(count):
        for i in range(count):
            images, targets = batches[i % len(batches)]
            optimizer.zero_grad(set_to_none=o.plain)
            with torch.autocast("cpu", torch.bfloat16, enabled=o.precision == "bf16"):
                loss = torch.nn.functional.cross_entropy(ddp(images), targets)
            loss.backward()
            optimizer.step()

    steps(o.warmup)
    rates = []
    for _ in range(o.blocks):
        dist.barrier()
        start = time.perf_counter()
        steps(o.block_steps)
        dist.barrier()
        rates.append(o.block_steps * o.batch * world / (time.perf_counter() - start))
    if rank == 0:
        with open(o.json, "w") as file:
            json.dump({"images_per_s": rates, "torch": torch.__version__, "options": vars(o)}, file)
    dist.barrier()
    os._exit(0)  # A normal exit can hang in Gloo's destructors (torch 2.11).


if __name__ == "__main__":
    main()
