"""What PyTorch's mixed precision computes, for the tests of trainer/optimizer/.

  precision_oracle.py scaler STEPS SCALE GROWTH BACKOFF INTERVAL
      STEPS: a string of 1 (finite gradients) and 0; prints scale, growth tracker and whether the
      step was taken, a line a step
  precision_oracle.py autocast TYPE WEIGHTS OUT
      loss and gradients of a ResNet-18 under autocast, by the helpers of oracle.py
"""
import pathlib
import sys

import torch


def scaler(steps, scale, growth, backoff, interval):
    weight = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=1.0)
    grad_scaler = torch.amp.GradScaler("cpu", init_scale=float(scale), growth_factor=float(growth),
                                       backoff_factor=float(backoff), growth_interval=int(interval))
    for finite in steps:
        before = weight.item()
        grad_scaler.scale(weight.sum())  # Its scale exists from the first use on.
        weight.grad = torch.tensor([grad_scaler.get_scale() if finite == "1" else float("inf")])
        grad_scaler.step(optimizer)
        grad_scaler.update()
        state = grad_scaler.state_dict()
        print(repr(state["scale"]), state["_growth_tracker"], int(weight.item() != before))


def autocast(kind, weights, out):
    """WEIGHTS: where to write the weights. OUT: images, labels, loss and all gradients."""
    sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent))
    import oracle  # With torchvision, which the other command need not wait for.
    torch.manual_seed(7)
    net = oracle.resnet("resnet18", 3, "imagenet")
    oracle.write_safetensors(weights, net.state_dict())
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(4, 3, 64, 64, generator=generator)
    labels = torch.randint(10, (4,), generator=generator)
    with torch.autocast("cpu", dtype={"bf16": torch.bfloat16, "fp16": torch.float16}[kind]):
        loss = torch.nn.functional.cross_entropy(net(images).float(), labels)
    loss.backward()
    result = {"images": images, "labels": labels, "loss": loss.detach()}
    result |= {"gradients/" + name: p.grad for name, p in net.named_parameters()}
    oracle.write_safetensors(out, result)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
