"""The peer of mnist-epoch: one epoch of MNIST with Python torch's DistributedDataParallel over Gloo.

Started by torchrun. Images go the usual way: PIL, ToTensor, Normalize, DistributedSampler, DataLoader
(`--loader pil`); or, tuned, lie in memory as one tensor that is sliced (`--loader tensor`). Rank 0 writes
JSON: seconds of the epoch's steps, data included, from the first request for a batch on.
"""
import argparse
import gzip
import json
import os
import time

import numpy
import torch
import torch.distributed as dist
import torch.nn.functional as F
import torchvision
from PIL import Image
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

MEAN, DEVIATION = 0.1307, 0.3081


def read_mnist(folder):
    with gzip.open(f"{folder}/train-images-idx3-ubyte.gz") as file:
        images = numpy.frombuffer(file.read()[16:], numpy.uint8).reshape(-1, 28, 28)
    with gzip.open(f"{folder}/train-labels-idx1-ubyte.gz") as file:
        labels = numpy.frombuffer(file.read()[8:], numpy.uint8).astype(numpy.int64)
    return images, labels


class PilImages(Dataset):
    def __init__(self, images, labels):
        self.images, self.labels = images, labels
        self.transform = torchvision.transforms.Compose([
            torchvision.transforms.ToTensor(),
            torchvision.transforms.Normalize((MEAN,), (DEVIATION,))])

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return self.transform(Image.fromarray(self.images[i], mode="L")), int(self.labels[i])


def pil_batches(images, labels, world, rank, batch):
    data = PilImages(images, labels)
    return DataLoader(data, batch_size=batch, sampler=DistributedSampler(data, world, rank))


def tensor_batches(images, labels, world, rank, batch):
    x = ((torch.from_numpy(images.copy()).float() / 255 - MEAN) / DEVIATION).unsqueeze(1)
    y = torch.from_numpy(labels)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))[rank::world]
    return [(x[part], y[part]) for part in order.split(batch)]


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 10, 5), nn.Conv2d(10, 20, 5)
        self.drop = nn.Dropout2d()
        self.fc1, self.fc2 = nn.Linear(320, 50), nn.Linear(50, 10)

    def forward(self, x):
        x = F.relu(F.max_pool2d(self.conv1(x), 2))
        x = F.relu(F.max_pool2d(self.drop(self.conv2(x)), 2))
        x = F.relu(self.fc1(x.flatten(1)))
        return self.fc2(F.dropout(x, training=self.training))


class Block(nn.Module):
    def __init__(self, width_in, width, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(width_in, width, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        self.added = width - width_in

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        if self.added:  # A shortcut without parameters.
            x = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.added // 2, self.added // 2))
        return F.relu(y + x)


def resnet20():
    layers = [nn.Conv2d(1, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    width_in = 16
    for stage, width in enumerate((16, 32, 64)):
        for i in range(3):
            layers.append(Block(width_in, width, 2 if stage > 0 and i == 0 else 1))
            width_in = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--model", choices=["convnet", "resnet20"], required=True)
    parser.add_argument("--loader", choices=["pil", "tensor"], required=True)
    parser.add_argument("--batch", type=int, default=64, help="per rank")
    parser.add_argument("--json", required=True)
    o = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    torch.set_flush_denormal(True)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    # ResNet-20 is faster channels-last, for the peer too.
    layout = torch.channels_last if o.model == "resnet20" else torch.contiguous_format
    model = (resnet20() if o.model == "resnet20" else ConvNet()).to(memory_format=layout)
    ddp = DistributedDataParallel(model, static_graph=True, gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4,
                                fused=True)
    make = pil_batches if o.loader == "pil" else tensor_batches
    images, labels = read_mnist(o.data)
    dist.barrier()
    start = time.perf_counter()
    for x, y in make(images, labels, world, rank, o.batch):
        optimizer.zero_grad()
        F.cross_entropy(ddp(x.contiguous(memory_format=layout)), y).backward()
        optimizer.step()
    dist.barrier()
    if rank == 0:
        with open(o.json, "w") as file:
            json.dump({"seconds": time.perf_counter() - start}, file)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
