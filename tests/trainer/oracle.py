"""What PyTorch and torchvision compute, for the tests of trainer/ to compare with.

  oracle.py models FOLDER NAME:CHANNELS:STEM ...   seeded weights, an input and its logits, a file NAME each
  oracle.py sgd OUT                          five steps of torch.optim.SGD
  oracle.py nesterov OUT | average OUT | clip OUT      SGD with nesterov, AveragedModel, clip_grad_norm_
  oracle.py recipes MNIST OUT                folder: 400 images, weights, and a ConvNet's losses by
                                             recipe and number of workers as JSON
  oracle.py train MNIST STEPS BATCH LR WORLD WEIGHTS [DEVICE [channels-last]]   losses of a ResNet-18, one a line
  oracle.py workers MNIST STEPS LR FOLDER WORLD:BATCH ...   folder: a ResNet-18's weights, and its losses
                                             by number of workers as JSON
  oracle.py double FOLDER STEPS BATCH LR  weights, images and labels, and a ResNet-18's losses in double
                                             precision with 1 and 2 workers as JSON
  oracle.py order LENGTH REPLICAS RANK SEED EPOCH      DistributedSampler's indices, one a line
  oracle.py load FILE                        loads our ResNet-18 weights with strict=True
  oracle.py exchange FOLDER NAME ...         for the images in the file images: torchvision's weights in
                                             two formats with their logits, NAME.given, and those of our
                                             weights, of NAME.ours in NAME.taken
  oracle.py shapes NAME ...                  NAME, entry and size of everything in torchvision's state_dict
  oracle.py torch_files FOLDER               files of torch.save in several forms
"""

import argparse
import copy
import gzip
import json
import struct
import sys

import numpy as np
import torch

from torchvision_parts import resnets

DTYPES = {torch.float32: "F32", torch.int64: "I64"}


def write_safetensors(path, tensors):
    header, parts, length = {}, [], 0
    for name, tensor in tensors.items():
        parts.append(tensor.detach().contiguous().numpy().tobytes())
        header[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape),
                        "data_offsets": [length, length + len(parts[-1])]}
        length += len(parts[-1])
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.writelines(parts)


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
    net = getattr(resnets, name)(num_classes=classes)
    if stem == "small":
        net.conv1 = torch.nn.Conv2d(channels, 64, 3, 1, 1, bias=False)
        net.maxpool = torch.nn.Identity()
    elif channels != 3:
        net.conv1 = torch.nn.Conv2d(channels, 64, 7, 2, 3, bias=False)
    return net


def models(folder, *specifications):
    for specification in specifications:
        name, channels, stem = specification.split(":")
        model(name, channels, stem, f"{folder}/{name}")


def model(name, channels, stem, out):
    torch.manual_seed(7)
    net = resnet(name, int(channels), stem)
    result = {"weights/" + key: value.clone() for key, value in net.state_dict().items()}
    generator = torch.Generator().manual_seed(1)
    # So large that the last BatchNorm sees 2 x 2 values of 4 images: of two values a channel it makes
    # +1 and -1, and which is which then hangs on the last bit of their difference.
    side = 16 if stem == "small" else 40
    images = torch.randn(4, int(channels), side, side, generator=generator)
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


def nesterov(out):
    generator = torch.Generator().manual_seed(3)
    start = torch.randn(300, 7, generator=generator)
    weight, bias = start.clone().requires_grad_(), start.clone().requires_grad_()
    optimizer = torch.optim.SGD([{"params": [weight]}, {"params": [bias], "weight_decay": 0.0}],
                                lr=0.1, momentum=0.9, weight_decay=0.01, nesterov=True)
    result = {"start": start}
    for step in range(5):
        gradient = torch.randn(300, 7, generator=generator)
        result[f"gradient{step}"] = gradient
        for group in optimizer.param_groups:
            group["lr"] = 0.1 / (step + 1)
        weight.grad, bias.grad = gradient.clone(), gradient.clone()
        optimizer.step()
        result[f"weight{step}"] = weight.detach().clone()
        result[f"bias{step}"] = bias.detach().clone()
    write_safetensors(out, result)


def average(out):
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
    norm = torch.nn.BatchNorm2d(3)
    averaged = AveragedModel(norm, multi_avg_fn=get_ema_multi_avg_fn(0.8), use_buffers=True)
    result = {}
    for step in range(5):
        with torch.no_grad():
            norm.weight.copy_(torch.randn(3))
            norm.running_mean.copy_(torch.randn(3))
        result[f"weight{step}"] = norm.weight.detach().clone()
        result[f"mean{step}"] = norm.running_mean.clone()
        averaged.update_parameters(norm)
    result["weight"], result["mean"] = averaged.module.weight.detach(), averaged.module.running_mean
    write_safetensors(out, result)


def clip(out):
    generator = torch.Generator().manual_seed(3)
    a, b = torch.randn(5, 4, generator=generator), torch.randn(9, generator=generator)
    result = {"a": a, "b": b}
    for limit in ("0.5", "100"):
        parameters = [torch.zeros_like(a).requires_grad_(), torch.zeros_like(b).requires_grad_()]
        parameters[0].grad, parameters[1].grad = a.clone(), b.clone()
        result["norm"] = torch.nn.utils.clip_grad_norm_(parameters, float(limit)).reshape(1)
        result["a" + limit], result["b" + limit] = parameters[0].grad, parameters[1].grad
    write_safetensors(out, result)


class ConvNet(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = torch.nn.Conv2d(1, 10, 5)
        self.conv2 = torch.nn.Conv2d(10, 20, 5)
        self.fc1 = torch.nn.Linear(320, 50)
        self.fc2 = torch.nn.Linear(50, 10)

    def forward(self, x):
        import torch.nn.functional as F
        x = F.relu(F.max_pool2d(self.conv1(x), 2))
        x = F.relu(F.max_pool2d(F.dropout2d(self.conv2(x), training=self.training), 2))
        x = F.relu(self.fc1(x.flatten(1)))
        return self.fc2(F.dropout(x, training=self.training))


class Lars:
    """You et al. 2017, algorithm 1; biases take the plain rate without decay."""

    def __init__(self, named_parameters, momentum, decay, trust):
        self.parameters = list(named_parameters)
        self.momentum, self.decay, self.trust = momentum, decay, trust
        self.buffers = {}

    @torch.no_grad()
    def step(self, rate):
        for name, p in self.parameters:
            if name.endswith("bias"):
                update = rate * p.grad
            else:
                local = self.trust * p.norm() / (p.grad.norm() + self.decay * p.norm())
                update = rate * local * (p.grad + self.decay * p)
            self.buffers[name] = self.momentum * self.buffers[name] + update \
                if name in self.buffers else update
            p -= self.buffers[name]


class Sgd:
    def __init__(self, named_parameters, recipe):
        groups = {False: [], True: []}
        for name, p in named_parameters:
            groups[recipe.get("no_decay", False) and name.endswith("bias")].append(p)
        self.optimizer = torch.optim.SGD(
            [{"params": groups[False]}, {"params": groups[True], "weight_decay": 0.0}], 0.1,
            momentum=0.9, weight_decay=1e-2, nesterov=recipe.get("nesterov", False))

    def step(self, rate):
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()


def train_recipe(recipe, world, state, images, labels):
    """30 steps over 400 images: every epoch ends with a smaller batch."""
    net = ConvNet()
    net.load_state_dict(state)
    micro, parts = recipe.get("batch", 16), recipe.get("accumulate", 1)
    batch = micro * parts
    if recipe.get("lars"):
        optimizer = Lars(net.named_parameters(), 0.9, 1e-2, 0.02)
    else:
        optimizer = Sgd(net.named_parameters(), recipe)
    losses, step, epoch = [], 0, 0
    while step < 30:
        orders = [sampler(len(labels), world, rank, 0, epoch) for rank in range(world)]
        for begin in range(0, len(orders[0]), batch):
            if step == 30:
                break
            rate = recipe["lr"] * 0.5 ** sum(epoch >= m for m in recipe.get("milestones", []))
            rate *= min(1.0, (step + 1) / recipe.get("warmup", 1))
            gradients, first = [torch.zeros_like(p) for p in net.parameters()], 0.0
            for rank, order in enumerate(orders):
                torch.manual_seed(step * world + rank)  # As train does with --seed 0.
                chosen = order[begin:begin + batch]
                for start in range(0, len(chosen), micro):
                    part = chosen[start:start + micro]
                    x = (images[part].float() / 255 - 0.1307) / 0.3081
                    loss = torch.nn.functional.cross_entropy(
                        net(x), labels[part], label_smoothing=recipe.get("smoothing", 0.0))
                    loss = loss * len(part) / len(chosen)
                    for total, g in zip(gradients, torch.autograd.grad(loss, list(net.parameters()))):
                        total += g / world
                    first += loss.item() if rank == 0 else 0.0
            for p, g in zip(net.parameters(), gradients):
                p.grad = g
            if "clip" in recipe:
                torch.nn.utils.clip_grad_norm_(net.parameters(), recipe["clip"])
            optimizer.step(rate)
            losses.append(first)
            step += 1
        epoch += 1
    return losses


RECIPES = {
    "plain": {"lr": 0.02},
    "rich": {"lr": 0.05, "nesterov": True, "no_decay": True, "smoothing": 0.1, "clip": 1.0,
             "milestones": [1, 2], "warmup": 5},
    "accumulate": {"lr": 0.02, "batch": 6, "accumulate": 3},
    "lars": {"lr": 0.5, "lars": True},
}


def recipes(folder, out):
    torch.manual_seed(11)
    state = ConvNet().state_dict()
    write_safetensors(out + "/weights", state)
    images, labels = mnist(folder)
    images, labels = images[:400], labels[:400]
    with open(out + "/train-images-idx3-ubyte", "wb") as file:
        file.write(struct.pack(">4I", 0x803, 400, 28, 28) + images.numpy().tobytes())
    with open(out + "/train-labels-idx1-ubyte", "wb") as file:
        file.write(struct.pack(">2I", 0x801, 400) + labels.to(torch.uint8).numpy().tobytes())
    with open(out + "/losses", "w") as file:
        json.dump({f"{name} {world}": train_recipe(recipe, world, state, images, labels)
                   for name, recipe in RECIPES.items() for world in (1, 2)}, file)


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


def gradients_of_step(net, batches):
    """Leaves in `net` the mean of its gradients over the workers' batches; returns each worker's loss.

    One network serves all workers. Their weights are equal after every step, and running statistics,
    which are not, change no loss of training.
    """
    net.zero_grad()
    losses = []
    for x, y in batches:
        loss = torch.nn.functional.cross_entropy(net(x), y)
        loss.backward()
        losses.append(loss.item())
    for p in net.parameters():
        p.grad /= len(batches)
    return losses


def train_mnist(net, images, labels, steps, batch, lr, world, device="cpu",
                memory_format=torch.contiguous_format):
    """Rank 0's loss of every step."""
    # Fused as ours is: the other implementations round differently, and 30 steps of a small
    # batch can magnify one bit to percents.
    optimizer = torch.optim.SGD(net.parameters(), lr, momentum=0.9, weight_decay=1e-4, fused=True)
    orders = [sampler(len(labels), world, rank, 0, 0) for rank in range(world)]
    losses = []
    for step in range(steps):
        batches = []
        for order in orders:
            chosen = order[step * batch:(step + 1) * batch]
            x = (images[chosen].float() / 255 - 0.1307) / 0.3081
            batches.append((x.to(device, memory_format=memory_format), labels[chosen].to(device)))
        losses.append(gradients_of_step(net, batches)[0])
        optimizer.step()
    return losses


def mnist_start():
    torch.manual_seed(11)
    net = resnet("resnet18", 1, "small")
    # Blocks start as their shortcuts. Started otherwise this network is chaotic: PyTorch beside
    # itself, with weights that differ by 1e-7, has losses that differ by 67 % within 30 steps. So
    # started they differ by 2e-5.
    for module in net.modules():
        if isinstance(module, resnets.BasicBlock):
            torch.nn.init.zeros_(module.bn2.weight)
    return net


def train(folder, steps, batch, lr, world, weights, device="cpu", layout="nchw"):
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.deterministic = True
    memory_format = torch.channels_last if layout == "channels-last" else torch.contiguous_format
    net = mnist_start()
    write_safetensors(weights, net.state_dict())
    net.to(device, memory_format=memory_format)
    print(*train_mnist(net, *mnist(folder), int(steps), int(batch), float(lr), int(world), device,
                       memory_format), sep="\n")


def workers(folder, steps, lr, out, *jobs):
    net = mnist_start()
    state = copy.deepcopy(net.state_dict())
    write_safetensors(out + "/weights", state)
    images, labels = mnist(folder)
    losses = {}
    for job in jobs:
        world, batch = job.split(":")
        net.load_state_dict(state)
        losses[world] = train_mnist(net, images, labels, int(steps), int(batch), float(lr), int(world))
    with open(out + "/losses", "w") as file:
        json.dump(losses, file)


def train_double(state, images, labels, steps, batch, lr, world):
    """Losses of all workers, step by step; rank r's batch of a step is the r-th of that step's."""
    net = resnet("resnet18", 3, "imagenet").double()
    net.load_state_dict(state)
    optimizer = torch.optim.SGD(net.parameters(), lr, momentum=0.9, weight_decay=1e-4)
    losses = []
    for step in range(steps):
        begin = step * world * batch
        parts = [slice(begin + rank * batch, begin + (rank + 1) * batch) for rank in range(world)]
        losses.append(gradients_of_step(net, [(images[part].double(), labels[part]) for part in parts]))
        optimizer.step()
    return losses


def double(folder, steps, batch, lr):
    steps, batch, lr = int(steps), int(batch), float(lr)
    torch.manual_seed(11)
    state = resnet("resnet18", 3, "imagenet").state_dict()
    write_safetensors(folder + "/weights", state)
    images = torch.randn(2 * steps * batch, 3, 32, 32)
    labels = torch.randint(0, 10, (len(images),))
    write_safetensors(folder + "/data", {"images": images, "labels": labels})
    with open(folder + "/losses", "w") as file:
        json.dump([train_double(state, images, labels, steps, batch, lr, world)
                   for world in (1, 2)], file)


def order(length, replicas, rank, seed, epoch):
    print(*sampler(int(length), int(replicas), int(rank), int(seed), int(epoch)), sep="\n")


def exchange(folder, *names):
    images = read_safetensors(folder + "/images")["images"]
    for name in names:
        give(folder, name, images)
        take(folder, name, images)


def give(folder, name, images):
    torch.manual_seed(9)
    net = resnet(name, 3, "imagenet", classes=1000)
    with torch.no_grad():
        for module in net.modules():  # As after training: a fresh net multiplies its logits to 1e5.
            if isinstance(module, torch.nn.BatchNorm2d):
                module.running_mean.normal_(0, 0.1)
                module.running_var.uniform_(1, 2)
                module.num_batches_tracked.fill_(7)
        net.eval()
        logits = net(images)
    write_safetensors(f"{folder}/{name}.safetensors", net.state_dict())
    torch.save(net.state_dict(), f"{folder}/{name}.pth")
    write_safetensors(f"{folder}/{name}.given", {"logits": logits})


def take(folder, name, images):
    net = getattr(resnets, name)(num_classes=10)
    net.load_state_dict(read_safetensors(f"{folder}/{name}.ours"), strict=True)
    net.eval()
    with torch.no_grad():
        write_safetensors(f"{folder}/{name}.taken", {"logits": net(images)})


def shapes(*names):
    for name in names:
        with torch.device("meta"):  # No memory, no numbers: resnet152 has 60 million.
            net = getattr(resnets, name)(num_classes=10)
        for entry, tensor in net.state_dict().items():
            print(name, entry, list(tensor.shape))


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
    torch.save({"model_state_dict": state, "epoch": 3, "bytes": bytearray(b"ab")},
               folder + "/tutorial.pth", pickle_protocol=5)
    torch.save({"module." + key: torch.nn.Parameter(value, requires_grad=False)
                for key, value in state.items()}, folder + "/ddp.pth")
    averaged = torch.optim.swa_utils.AveragedModel(resnet("resnet18", 3, "imagenet"), use_buffers=True)
    torch.save(averaged.state_dict(), folder + "/averaged.pth")
    torch.save({"a": torch.ones(1).expand(64)}, folder + "/expanded.pth")
    torch.save(net, folder + "/whole_model.pth")
    torch.save({"a": 1, "b": 2.5}, folder + "/numbers.pth")
    torch.save(state, folder + "/old.pth", _use_new_zipfile_serialization=False)


def load(path):
    net = resnet("resnet18", 3, "imagenet")
    net.load_state_dict(read_safetensors(path), strict=True)
    print("loaded")


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
