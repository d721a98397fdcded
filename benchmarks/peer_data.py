"""The peer of `data`: torchvision's transforms on Pillow images under torch's DataLoader.

peer_data.py mnist|imagefolder FOLDER SIDE AUGMENT WORKERS PASSES: prints images/s.
"""
import gzip
import sys
import time

import torch
from PIL import Image
from torchvision import datasets, transforms


class Mnist(torch.utils.data.Dataset):
    """As torchvision.datasets.MNIST, whose files have other folders: an image of Pillow each time."""

    def __init__(self, folder, transform):
        with gzip.open(folder + "/train-images-idx3-ubyte.gz") as file:
            self.images = torch.frombuffer(bytearray(file.read()[16:]), dtype=torch.uint8)
        self.images = self.images.reshape(-1, 28, 28)
        self.transform = transform

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.transform(Image.fromarray(self.images[index].numpy(), mode="L")), 0


def main():
    kind, folder, side, augment, workers, passes = sys.argv[1:]
    side, workers, passes = int(side), int(workers), int(passes)
    torch.set_num_threads(1)
    if kind == "mnist":
        steps = [transforms.ToTensor(), transforms.Normalize((0.1307,), (0.3081,))]
        data = Mnist(folder, transforms.Compose(steps))
    else:
        cut = ([transforms.RandomResizedCrop(side), transforms.RandomHorizontalFlip()]
               if "random-resized-crop" in augment
               else [transforms.Resize(side * 8 // 7), transforms.CenterCrop(side)])
        steps = cut + [transforms.ToTensor(),
                       transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))]
        data = datasets.ImageFolder(folder + "/train", transforms.Compose(steps))
    loader = torch.utils.data.DataLoader(data, batch_size=64, shuffle=True, num_workers=workers,
                                         persistent_workers=True)
    images = 0
    for number in range(passes + 1):
        if number == 1:
            begin = time.perf_counter()  # The first pass starts the processes and fills caches.
        for batch, _ in loader:
            images += len(batch) if number else 0
    print(images / (time.perf_counter() - begin))


main()
