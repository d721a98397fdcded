"""The peer of scripts/bench gpu: Python torch on one GPU, as fast as we know to set it up, on the same work as `train`:
channels-last, autocast, fused SGD with momentum, batches that lie on the device, DistributedDataParallel with a world
of one (eager, compile). graph: forward, loss, backward and update in one CUDA graph, without DDP.

Prints JSON: images/s, the median of the blocks after the warm-up.
"""
import argparse
import json
import os
import statistics
import time

import torch
import torch.distributed as dist
import torchvision


def options():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", choices=["eager", "compile", "graph"], required=True)
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--precision", choices=["bf16", "fp16"], default="fp16")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cpu: to try this file")
    parser.add_argument("--blocks", type=int, default=5)
    parser.add_argument("--block-steps", type=int, default=10)
    return parser.parse_args()


def make_step(o, device):
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True
    model = torchvision.models.get_model(o.model, num_classes=1000).to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4, fused=True)
    if o.mode != "graph":
        model = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True, static_graph=True)
    if o.mode == "compile":
        model = torch.compile(model)
    images = torch.randn(o.batch_size, 3, o.image_size, o.image_size, device=device)
    images = images.contiguous(memory_format=torch.channels_last)
    labels = torch.randint(1000, (o.batch_size,), device=device)
    # fp16 without a scaler in the graph: the scale would be found on the host.
    scaler = torch.amp.GradScaler(o.device, enabled=o.precision == "fp16" and o.mode != "graph" and o.device == "cuda")
    dtype = torch.float16 if o.precision == "fp16" else torch.bfloat16

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(o.device, dtype=dtype, cache_enabled=o.mode != "graph"):
            loss = torch.nn.functional.cross_entropy(model(images), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return step, sum(parameter.numel() for parameter in model.parameters())


def captured(step):
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(5):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def main():
    o = options()
    device = torch.device(o.device)
    wait = torch.cuda.synchronize if o.device == "cuda" else lambda: None
    if o.mode != "graph":
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "RANK": "0", "WORLD_SIZE": "1"}
        store = dist.HashStore()
        dist.init_process_group("nccl" if o.device == "cuda" else "gloo", store=store, rank=0, world_size=1)
    step, parameters = make_step(o, device)
    if o.mode == "graph":
        step = captured(step)
    rates = []
    for block in range(o.blocks + 1):
        wait()
        begun = time.monotonic()
        for _ in range(o.block_steps):
            step()
        wait()
        if block > 0:
            rates.append(o.block_steps * o.batch_size / (time.monotonic() - begun))
    print(json.dumps({"images/s": statistics.median(rates), "parameters": parameters}))
    if o.mode != "graph":
        dist.destroy_process_group()


main()
