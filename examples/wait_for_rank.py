"""A Python program that ddprun --spares can keep ready: the hook is wait_for_rank(), ten lines.

  ddprun --standalone --nproc-per-node 2 --max-restarts 3 --spares 2 examples/wait_for_rank.py

What takes long and needs no rank (imports, the model, opening data) comes before the call; what
reads files that the job itself writes, such as the newest checkpoint, comes after it.
"""
import os
import sys


def wait_for_rank():
    fd = int(os.environ.pop("DDPRUN_SPARE_FD", None) or -1)
    if fd < 0:
        return  # Not a spare: the environment holds the rank already.
    os.write(fd, b"\n")  # Ready.
    said = b""
    while not said.endswith(b"\0\0"):  # NAME=VALUE\0 ... and an empty entry.
        said += os.read(fd, 65536) or sys.exit("the job is over")
    os.close(fd)
    os.environ.update(entry.split("=", 1) for entry in os.fsdecode(said).split("\0") if entry)


if __name__ == "__main__":
    # import torch ...; LOCAL_RANK, and so the GPU, is known here already.
    warmed_by = os.getpid()
    wait_for_rank()
    rank, attempt = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    print(f"attempt {attempt}: rank {rank} of {os.environ['WORLD_SIZE']} is pid {warmed_by}", flush=True)
    # dist.init_process_group("gloo"); train() ...
