"""gloo-restart: do Python torch workers find each other again over Gloo after a restart?

One job of two workers. In each attempt they add over Gloo, and then one of them, in turn, ends by
SIGKILL, until no restart is left. A restart counts as good when both ranks of the new attempt got the
right sum. torchrun gets few restarts, since a failing one can hang for more than a minute.
"""
import re
import subprocess
import time

import measure

PEER_NAME = "torchrun 2.11.0"
WORKER = measure.ROOT / "tests" / "end_to_end" / "gloo_worker.py"
PEER_RESTARTS_MAX = 4
RESTART_LIMIT_S = 180  # torch's import on a busy machine, and torchrun's hangs.


def one_job(launcher, restarts):
    """Returns (how many restarts were good, seconds for each)."""
    python = measure.peer("python")
    argv = [*launcher, "--standalone", "--nproc-per-node", "2", "--max-restarts", str(restarts),
            str(WORKER), "--kills", str(restarts)]
    start = time.perf_counter()
    try:
        job = subprocess.run(argv, env=measure.environment(OMP_NUM_THREADS="1", PYTHON_EXEC=python),
                             stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, text=True, errors="replace",
                             timeout=RESTART_LIMIT_S * (restarts + 1))
        output = job.stdout
    except subprocess.TimeoutExpired as late:
        output = (late.output or b"").decode(errors="replace")
    seconds = time.perf_counter() - start
    said = set(re.findall(r"attempt (\d+) rank (\d+) sum 3\b", output))
    if not {("0", "0"), ("0", "1")} <= said:
        raise RuntimeError(f"not even the first attempt worked: {output}")
    good = sum({(str(a), "0"), (str(a), "1")} <= said for a in range(1, restarts + 1))
    return good, seconds / (restarts + 1)


def run(rounds):
    """`rounds` is the number of restarts."""
    if not measure.peer("python"):
        raise measure.Unavailable(measure.NO_PEER)
    good, seconds = one_job([measure.ours("ddprun")], rounds)
    peer_restarts = min(rounds, PEER_RESTARTS_MAX)
    peer_good, peer_seconds = one_job([measure.peer("python"), "-m", "torch.distributed.run"],
                                      peer_restarts)
    # No ratio: nothing can be divided by torchrun's count.
    counts = {"what": f"good restarts (ours: {good} of {rounds}; "
                      f"torchrun: {peer_good} of {peer_restarts})",
              "unit": "%", "ours": measure.summary([100 * good / rounds]),
              "peer": measure.summary([100 * peer_good / peer_restarts]), "ratio": None}
    return [counts,
            measure.row("an attempt, with the import of torch", "s", [seconds], [peer_seconds],
                        lower_is_better=True)], {"restarts": rounds, "peer_restarts": peer_restarts}
