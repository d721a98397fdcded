"""What PyTorch and torchvision compute, for the tests of trainer/ to compare with.

  oracle.py model NAME CHANNELS STEM OUT     seeded weights, an input and its logits
  oracle.py sgd OUT                          five steps of torch.optim.SGD
  oracle.py train MNIST STEPS BATCH LR WORLD WEIGHTS   losses of a ResNet-18, one a line
  oracle.py order LENGTH REPLICAS RANK SEED EPOCH      DistributedSampler's indices, one a line
  oracle.py load FILE                        loads our ResNet-18 weights with strict=True
  oracle.py give NAME FOLDER                 torchvision's weights in two formats, and logits
  oracle.py take NAME FOLDER                 logits of a model with our weights
  oracle.py torch_files FOLDER               files of torch.save in several forms
"""

import argparse
import gzip
import json
import struct
import sys

import numpy as np
import torch
import torchvision

DTYPES = {torch.float32: "F32", torch.int64: "I64"}


def write_safetensors(path, tensors):
    header, data = {}, b""
    for name, tensor in tensors.items():
        raw = tensor.detach().contiguous().numpy().tobytes()
        header[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape),
                        "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def read_safetensors(path):
    raw = open(path, "rb").read()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8:8 + length])
    header.pop("__metadata__", None)
    types = {"F32": torch.float32, "I64": torch.int64}
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        flat = torch.frombuffer(bytearray(raw[8 + length + begin:8 + length + end]),
                                dtype=types[entry["dtype"]])
        tensors[name] = flat.reshape(entry["shape"])
    return tensors


def resnet(name, channels, stem, classes=10):
    net = getattr(torchvision.models, name)(num_classes=classes)
    if stem == "small":
        net.conv1 = torch.nn.Conv2d(channels, 64, 3, 1, 1, bias=False)
        net.maxpool = torch.nn.Identity()
    elif channels != 3:
        net.conv1 = torch.nn.Conv2d(channels, 64, 7, 2, 3, bias=False)
    return net


def model(name, channels, stem, out):
    torch.manual_seed(7)
    net = resnet(name, int(channels), stem)
    result = {"weights/" + key: value.clone() for key, value in net.state_dict().items()}
    generator = torch.Generator().manual_seed(1)
    # So large that the last BatchNorm sees 16 values a channel: of two values it makes +1 and -1,
    # and which is which then hangs on the last bit of their difference.
    images = torch.randn(4, int(channels), 64, 64, generator=generator)
    result["images"] = images
    with torch.no_grad():
        net.eval()
        result["eval_logits"] = net(images)
        net.train()
        result["train_logits"] = net(images)
    write_safetensors(out, result)


def sgd(out):
    generator = torch.Generator().manual_seed(3)
    weight = torch.randn(300, 7, generator=generator).requires_grad_()
    optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9, weight_decay=0.01)
    result = {"start": weight.detach().clone()}
    for step in range(5):
        gradient = torch.randn(300, 7, generator=generator)
        result[f"gradient{step}"] = gradient
        weight.grad = gradient.clone()
        optimizer.param_groups[0]["lr"] = 0.1 / (step + 1)
        optimizer.step()
        result[f"weight{step}"] = weight.detach().clone()
    write_safetensors(out, result)


def mnist(folder):
    with gzip.open(folder + "/train-images-idx3-ubyte.gz") as file:
        images = np.frombuffer(file.read()[16:], np.uint8).reshape(-1, 1, 28, 28)
    with gzip.open(folder + "/train-labels-idx1-ubyte.gz") as file:
        labels = np.frombuffer(file.read()[8:], np.uint8)
    return torch.from_numpy(images.copy()), torch.from_numpy(labels.astype(np.int64))


def sampler(length, replicas, rank, seed, epoch):
    order = torch.utils.data.DistributedSampler(range(length), replicas, rank, shuffle=True, seed=seed)
    order.set_epoch(epoch)
    return list(order)


def train(folder, steps, batch, lr, world, weights):
    """Every rank's replica runs here, one after the other; gradients are averaged by hand."""
    steps, batch, lr, world = int(steps), int(batch), float(lr), int(world)
    torch.manual_seed(11)
    replicas = [resnet("resnet18", 1, "imagenet") for _ in range(world)]
    state = replicas[0].state_dict()
    write_safetensors(weights, state)
    optimizers = []
    for net in replicas:
        net.load_state_dict(state)
        # Fused as ours is: the other implementations round differently, and 30 steps of a small
        # batch can magnify one bit to percents.
        optimizers.append(torch.optim.SGD(net.parameters(), lr, momentum=0.9, weight_decay=1e-4,
                                          fused=True))
    images, labels = mnist(folder)
    orders = [sampler(len(labels), world, rank, 0, 0) for rank in range(world)]
    for step in range(steps):
        losses = []
        for net, order in zip(replicas, orders):
            chosen = order[step * batch:(step + 1) * batch]
            x = (images[chosen].float() / 255 - 0.1307) / 0.3081
            net.zero_grad()
            loss = torch.nn.functional.cross_entropy(net(x), labels[chosen])
            loss.backward()
            losses.append(loss.item())
        for parameters in zip(*(net.parameters() for net in replicas)):
            mean = sum(p.grad for p in parameters) / world
            for p in parameters:
                p.grad = mean.clone()
        for optimizer in optimizers:
            optimizer.step()
        print(losses[0])


def order(length, replicas, rank, seed, epoch):
    print(*sampler(int(length), int(replicas), int(rank), int(seed), int(epoch)), sep="\n")


def give(name, folder):
    torch.manual_seed(9)
    net = resnet(name, 3, "imagenet", classes=1000)
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        for module in net.modules():  # As after training: a fresh net multiplies its logits to 1e5.
            if isinstance(module, torch.nn.BatchNorm2d):
                module.running_mean.normal_(0, 0.1)
                module.running_var.uniform_(1, 2)
                module.num_batches_tracked.fill_(7)
        net.eval()
        logits = net(images)
    write_safetensors(folder + "/weights.safetensors", net.state_dict())
    torch.save(net.state_dict(), folder + "/weights.pth")
    write_safetensors(folder + "/logits", {"images": images, "logits": logits})


def take(name, folder):
    images = read_safetensors(folder + "/logits")["images"]
    net = getattr(torchvision.models, name)(num_classes=10)
    net.load_state_dict(read_safetensors(folder + "/ours.safetensors"), strict=True)
    net.eval()
    with torch.no_grad():
        write_safetensors(folder + "/logits", {"logits": net(images)})


def torch_files(folder):
    torch.manual_seed(2)
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4))
    state = net.state_dict()
    state["turned"] = torch.arange(6.0).reshape(2, 3).t()
    state["part"] = torch.arange(10)[3:7]
    state["scalar"] = torch.tensor(3, dtype=torch.int64)
    write_safetensors(folder + "/expected", state)
    torch.save(state, folder + "/plain.pth")
    torch.save({"epoch": 3, "arch": "resnet18", "state_dict": state, "best_acc1": torch.tensor(7.0),
                "optimizer": torch.optim.SGD(net.parameters(), 0.1, momentum=0.9).state_dict()},
               folder + "/wrapped.pth")
    torch.save({"model": dict(state), "args": argparse.Namespace(lr=0.1)},
               folder + "/model_key.pth")
    torch.save({"module." + key: torch.nn.Parameter(value, requires_grad=False)
                for key, value in state.items()}, folder + "/ddp.pth")
    torch.save(net, folder + "/whole_model.pth")
    torch.save({"a": 1, "b": 2.5}, folder + "/numbers.pth")
    torch.save(state, folder + "/old.pth", _use_new_zipfile_serialization=False)


def load(path):
    net = resnet("resnet18", 3, "imagenet")
    net.load_state_dict(read_safetensors(path), strict=True)
    print("loaded")


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
