"""data: images a second that a loader delivers, without a network: `train`'s sample maker beside
torchvision's transforms under DataLoader, with as many threads here as worker processes there.

MNIST as it is; 500x375 JPEG files with random resized crop to 224 and flip, and with resize to 256
and centre crop. Files are in the page cache; the peer's processes have started before its clock does.
"""
import subprocess
import tempfile

import measure

PEER_NAME = "torchvision + DataLoader"
THREADS = 2
IMAGES = 400
# name: (kind, side, augmentation, passes here, passes of the peer)
CASES = {
    "MNIST": ("mnist", 28, "none", 20, 1),
    "JPEG 500x375, random resized crop to 224, flip": (
        "imagefolder", 224, "random-resized-crop,flip", 5, 3),
    "JPEG 500x375, resize to 256, centre crop of 224": ("imagefolder", 224, "none", 5, 3),
}


def rate(argv):
    done = subprocess.run(argv, env=measure.environment(OMP_NUM_THREADS="1"), text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=600)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(argv)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return {"images_per_s": float(done.stdout)}


def run(rounds):
    program, python = measure.ours("data_load"), measure.peer("python")
    rows = []
    with tempfile.TemporaryDirectory() as images:
        subprocess.run([program, "make", images, str(IMAGES)], check=True)
        for name, (kind, side, augment, passes, peer_passes) in CASES.items():
            folder = str(measure.ROOT / "data" / "mnist") if kind == "mnist" else images
            ours = [program, kind, folder, str(side), augment, str(THREADS), str(passes)]
            peer = [python, str(measure.ROOT / "benchmarks" / "peer_data.py"), kind, folder,
                    str(side), augment, str(THREADS), str(peer_passes)]
            samples = measure.alternate({"ours": lambda argv=ours: rate(argv),
                                         "peer": (lambda argv=peer: rate(argv)) if python else None},
                                        rounds)
            rows.append(measure.row(f"{name}, {THREADS} threads", "images/s",
                                    samples["ours"]["images_per_s"],
                                    samples.get("peer", {}).get("images_per_s", []),
                                    lower_is_better=False))
    return rows, {"rounds": rounds, "threads": THREADS, "images": IMAGES}
