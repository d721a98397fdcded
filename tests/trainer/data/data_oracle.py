"""Computes with Pillow and torchvision what tests of trainer/data compare with.

  data_oracle.py decode OUT FILE...     Image.open().convert("RGB") of each file
  data_oracle.py resize OUT FILE        Image.resize(BILINEAR, box) for the cases of RESIZES
  data_oracle.py validation OUT RESIZE SIDE FILE...   Resize, CenterCrop, ToTensor, Normalize
  data_oracle.py crops OUT COUNT WIDTH HEIGHT [WIDTH HEIGHT ...]  RandomResizedCrop.get_params, COUNT of each

An image in OUT: width and height as int32, then its bytes; -1 -1 for one that cannot be read.
"""

import pathlib
import struct
import sys

from PIL import Image

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent))

# width, height, box (left, top, right, bottom) of a 64x48 image; ../resample_test.cpp has the same.
RESIZES = [
    (32, 24, (0, 0, 64, 48)),
    (224, 224, (0, 0, 64, 48)),
    (7, 11, (0, 0, 64, 48)),
    (64, 24, (0, 0, 64, 48)),
    (32, 48, (0, 0, 64, 48)),
    (33, 29, (3.25, 1.5, 60.75, 47.25)),
    (1, 1, (0, 0, 64, 48)),
    (64, 48, (0, 0, 64, 48)),
    (500, 3, (10.5, 0, 20.5, 48)),
    (64, 30, (1, 0, 64, 48)),
    (70, 48, (0, 1, 64, 48)),
    (40, 49, (0, 0, 64, 48)),
    (64, 48, (0, 0, 50.5, 40)),
]


def put(out, image):
    out.write(struct.pack("<ii", *image.size) + image.tobytes())


def decode(path, *files):
    with open(path, "wb") as out:
        for file in files:
            try:
                put(out, Image.open(file).convert("RGB"))
            except (OSError, SyntaxError, ValueError):
                out.write(struct.pack("<ii", -1, -1))


def resize(path, file):
    image = Image.open(file).convert("RGB")
    with open(path, "wb") as out:
        for width, height, box in RESIZES:
            put(out, image.resize((width, height), Image.Resampling.BILINEAR, box))


def validation(path, resize_side, side, *files):
    from torchvision_parts import transforms

    transform = transforms.Compose([
        transforms.Resize(int(resize_side)),
        transforms.CenterCrop(int(side)),
        transforms.ToTensor(),
        transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    ])
    with open(path, "wb") as out:
        for file in files:
            out.write(transform(Image.open(file).convert("RGB")).numpy().tobytes())


def crops(path, count, *sizes):
    import torch
    from torchvision_parts import transforms

    with open(path, "wb") as out:
        for width, height in zip(sizes[::2], sizes[1::2]):
            torch.manual_seed(1)
            image = torch.zeros(3, int(height), int(width))
            for _ in range(int(count)):
                params = transforms.RandomResizedCrop.get_params(image, [0.08, 1.0], [3 / 4, 4 / 3])
                out.write(struct.pack("<iiii", *params))


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
