"""forward: chatty workers whose output goes to files and to the console, ddprun beside torchrun.

Each of 4 workers writes the same number of 100-byte lines (a prepared block over and over) through
`--tee 3 --log-dir` to a console that is a pipe, which this program drains. Time: from the first byte
that arrives to the last, so that starting Python is in neither number. After that everything is
checked: each file byte for byte, each console line for its rank, its order and that it is whole.
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
BYTES_OURS = 100 << 20  # Of each worker.
BYTES_PEER = 10 << 20   # The peer takes long; it is a rate that is compared.
READ_BYTES = 1 << 20
F_SETPIPE_SZ = 1031

BLOCK_LINES = 5000
LINE_TAIL = "x" * (LINE_BYTES - 13) + "\\n"

# Writes a block of lines "r nnnnnnnnn xxx...x" over and over; made once, so that the worker itself
# takes little of the machine.
WORKER = f"""
import os, sys
rank, blocks = int(os.environ["RANK"]), int(sys.argv[1])
block = "".join(f"{{rank}} {{n:09d}} {LINE_TAIL}" for n in range({BLOCK_LINES})).encode()
for _ in range(blocks):
    data = memoryview(block)
    while data:
        data = data[os.write(1, data):]
"""


def block_of(rank):
    return b"".join(b"%d %09d " % (rank, n) + b"x" * (LINE_BYTES - 13) + b"\n"
                    for n in range(BLOCK_LINES))


def drain(pipe, chunks, times):
    fcntl.fcntl(pipe, F_SETPIPE_SZ, READ_BYTES)
    while chunk := os.read(pipe, READ_BYTES):
        times.append(time.perf_counter())
        chunks.append(chunk)


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


def forward(launcher, worker_bytes):
    blocks = worker_bytes // (LINE_BYTES * BLOCK_LINES)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="ddprun-forward-"))
    try:
        program = folder / "worker.py"
        program.write_text(WORKER)
        job = subprocess.Popen(
            [launcher, "--standalone", "--nproc-per-node", str(WORKERS), "--tee", "3",
             "--log-dir", str(folder / "logs"), str(program), str(blocks)],
            env=measure.environment(OMP_NUM_THREADS="1"), stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        chunks, times = [], []
        reader = threading.Thread(target=drain, args=(job.stdout.fileno(), chunks, times))
        reader.start()
        try:
            status = job.wait(timeout=300)
        finally:
            job.kill()
            reader.join()
        if status != 0:
            raise RuntimeError(f"{launcher} ended with status {status}")
        check_files(folder / "logs", blocks)
        total = WORKERS * blocks * BLOCK_LINES * LINE_BYTES
        return {"mb_per_s": total / 1e6 / max(times[-1] - times[0], 1e-9),
                "broken": broken_lines(b"".join(chunks), blocks)}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run(rounds):
    ddprun = measure.ours("ddprun")
    torchrun = measure.peer("torchrun")
    sides = {
        "ours": lambda: forward(ddprun, BYTES_OURS),
        "peer": (lambda: forward(torchrun, BYTES_PEER)) if torchrun else None,
    }
    samples = measure.alternate(sides, rounds)
    peer = samples.get("peer", {})
    if any(samples["ours"]["broken"]):
        raise RuntimeError(f"broken lines on our console: {samples['ours']['broken']}")
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
