"""What PyTorch's mixed precision computes, for the tests of trainer/optimizer/.

  precision_oracle.py scaler STEPS SCALE GROWTH BACKOFF INTERVAL [SCALE GROWTH ...]
      STEPS: a string of 1 (finite gradients) and 0; prints scale, growth tracker and whether the
      step was taken, a line a step, of one scaler after the other
  precision_oracle.py autocast FOLDER
      weights, images and labels, and loss and gradients of a ResNet-18 under autocast in a file
      bf16 and one fp16, by the helpers of oracle.py
"""
import pathlib
import sys

import torch


def scaler(steps, *settings):
    for i in range(0, len(settings), 4):
        one_scaler(steps, *settings[i:i + 4])


def one_scaler(steps, scale, growth, backoff, interval):
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


def autocast(folder):
    sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent))
    import oracle
    torch.manual_seed(7)
    net = oracle.resnet("resnet18", 3, "imagenet")
    oracle.write_safetensors(folder + "/weights", net.state_dict())
    generator = torch.Generator().manual_seed(1)
    # The least for which the last BatchNorm sees 2 x 2 values an image.
    images = torch.randn(4, 3, 33, 33, generator=generator)
    labels = torch.randint(10, (4,), generator=generator)
    for kind, dtype in {"bf16": torch.bfloat16, "fp16": torch.float16}.items():
        net.zero_grad()
        with torch.autocast("cpu", dtype=dtype):
            loss = torch.nn.functional.cross_entropy(net(images).float(), labels)
        loss.backward()
        result = {"images": images, "labels": labels, "loss": loss.detach()}
        result |= {"gradients/" + name: p.grad for name, p in net.named_parameters()}
        oracle.write_safetensors(folder + "/" + kind, result)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
