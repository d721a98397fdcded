"""forward: chatty workers whose output goes to files and to the console, ddprun beside torchrun.

Each of 4 workers is a `cat` of a file of 100-byte lines through `--tee 3 --log-dir` to a console that is
a pipe, which this program drains. Time: from the first byte that arrives to the last, so that starting
Python is in neither number. Every log file is compared byte for byte, and the console's size is
checked; a smaller run besides, which is not timed, keeps the console's text and checks each line for
its rank, its order and that it is whole.
"""
import fcntl
import os
import pathlib
import shutil
import subprocess
import tempfile
import threading
import time

import measure

PEER_NAME = "torchrun 2.11.0"
WORKERS = 4
LINE_BYTES = 100
BYTES_OURS = 200 << 20   # Of each worker.
BYTES_PEER = 25 << 20    # The peer takes long; it is a rate that is compared.
BYTES_CHECKED = 5 << 20  # In the run whose lines are checked.
READ_BYTES = 1 << 20
F_SETPIPE_SZ = 1031

BLOCK_LINES = 5000


def block_of(rank):
    return b"".join(b"%d %09d " % (rank, n) + b"x" * (LINE_BYTES - 13) + b"\n"
                    for n in range(BLOCK_LINES))


class Drain(threading.Thread):
    """Reads a console to its end, into one buffer again and again or, when asked to, into `text`."""

    def __init__(self, pipe, keep):
        super().__init__()
        self.pipe, self.keep = pipe, keep
        self.text, self.size = b"", 0
        self.first = self.last = 0.0

    def run(self):
        fcntl.fcntl(self.pipe, F_SETPIPE_SZ, READ_BYTES)
        buffer, chunks = bytearray(READ_BYTES), []
        while count := os.readv(self.pipe, [buffer]):
            self.last = time.perf_counter()
            self.first = self.first or self.last
            self.size += count
            if self.keep:
                chunks.append(bytes(buffer[:count]))
        self.text = b"".join(chunks)


def broken_lines(console, blocks):
    """How many console lines are not the next one of their rank, or are missing."""
    expected = [[b"[default%d]:" % rank + line for line in block_of(rank).splitlines(keepends=True)]
                for rank in range(WORKERS)]
    following, broken = [0] * WORKERS, 0
    for line in console.splitlines(keepends=True):
        rank = line[8] - ord("0") if line.startswith(b"[default") and len(line) > 8 else -1
        if 0 <= rank < WORKERS and line == expected[rank][following[rank] % BLOCK_LINES]:
            following[rank] += 1
        else:
            broken += 1
    return broken + sum(blocks * BLOCK_LINES - count for count in following)


def check_files(folder, blocks):
    for rank in range(WORKERS):
        found = list(folder.glob(f"*/attempt_0/{rank}/stdout.log"))
        if len(found) != 1 or found[0].read_bytes() != block_of(rank) * blocks:
            raise RuntimeError(f"the log file of rank {rank} is not what the worker wrote: {found}")


def forward(launcher, worker_bytes, keep=False):
    """One job; returns its Drain and what the workers wrote, in blocks."""
    blocks = worker_bytes // (LINE_BYTES * BLOCK_LINES)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="ddprun-forward-"))
    try:
        for rank in range(WORKERS):
            (folder / f"lines.{rank}").write_bytes(block_of(rank) * blocks)
        job = subprocess.Popen(
            [launcher, "--standalone", "--nproc-per-node", str(WORKERS), "--tee", "3", "--log-dir",
             str(folder / "logs"), "--no-python", "/bin/sh", "-c", f"exec cat {folder}/lines.$RANK"],
            env=measure.environment(OMP_NUM_THREADS="1"), stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        console = Drain(job.stdout.fileno(), keep)
        console.start()
        try:
            status = job.wait(timeout=300)
        finally:
            job.kill()
            console.join()
            job.stdout.close()
        if status != 0:
            raise RuntimeError(f"{launcher} ended with status {status}")
        check_files(folder / "logs", blocks)
        return console, blocks
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def sample(launcher, worker_bytes):
    console, blocks = forward(launcher, worker_bytes)
    lines = WORKERS * blocks * BLOCK_LINES
    prefixed = lines * (LINE_BYTES + len("[default0]:"))
    checked, checked_blocks = forward(launcher, BYTES_CHECKED, keep=True)
    return {"mb_per_s": lines * LINE_BYTES / 1e6 / (console.last - console.first),
            "missing": prefixed - console.size,
            "broken": broken_lines(checked.text, checked_blocks)}


def run(rounds):
    ddprun = measure.ours("ddprun")
    torchrun = measure.peer("torchrun")
    sides = {
        "ours": lambda: sample(ddprun, BYTES_OURS),
        "peer": (lambda: sample(torchrun, BYTES_PEER)) if torchrun else None,
    }
    samples = measure.alternate(sides, rounds)
    peer = samples.get("peer", {})
    for quantity in ("broken", "missing"):
        if any(samples["ours"][quantity]):
            raise RuntimeError(f"{quantity} on our console: {samples['ours'][quantity]}")
    rows = [
        measure.row(f"{WORKERS} workers, --tee 3: files and prefixed console", "MB/s",
                    samples["ours"]["mb_per_s"], peer.get("mb_per_s", []), lower_is_better=False),
        # Without a ratio: ours is 0.
        {**measure.row("broken or missing console lines", "lines", samples["ours"]["broken"], [],
                       lower_is_better=True),
         "peer": measure.summary(peer["broken"]) if peer else None},
    ]
    return rows, {"rounds": rounds, "workers": WORKERS, "line_bytes": LINE_BYTES,
                  "bytes_of_each_worker_ours": BYTES_OURS, "bytes_of_each_worker_peer": BYTES_PEER}
