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
ATTEMPT_LIMIT_S = 120  # The worker gives up after 60; torch's import takes long on a busy machine.
STOP_LIMIT_S = 60      # torchrun's own grace is 30.


def output_of(argv, restarts):
    """What a job says, its end enforced."""
    job = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, text=True, errors="replace",
                           env=measure.environment(OMP_NUM_THREADS="1",
                                                   PYTHON_EXEC=measure.peer("python")))
    try:
        return job.communicate(timeout=ATTEMPT_LIMIT_S * (restarts + 1))[0]
    except subprocess.TimeoutExpired:
        job.terminate()  # Not killed: torchrun's workers would outlive it.
        return job.communicate(timeout=STOP_LIMIT_S)[0]


def one_job(launcher, restarts):
    """Returns (good restarts, restarts that began, seconds of each attempt)."""
    argv = [*launcher, "--standalone", "--nproc-per-node", "2", "--max-restarts", str(restarts),
            str(WORKER), "--kills", str(restarts)]
    start = time.perf_counter()
    output = output_of(argv, restarts)
    seconds = time.perf_counter() - start
    summed = set(re.findall(r"attempt (\d+) rank (\d+) sum 3\b", output))
    if not {("0", "0"), ("0", "1")} <= summed:
        raise RuntimeError(f"not even the first attempt worked: {output}")
    begun = max(int(attempt) for attempt in re.findall(r"attempt (\d+) rank \d+ begins", output))
    if begun == 0:
        raise RuntimeError(f"no restart began: {output}")
    good = sum({(str(a), "0"), (str(a), "1")} <= summed for a in range(1, begun + 1))
    return good, begun, seconds / (begun + 1)


def run(rounds):
    """`rounds` is the number of restarts."""
    if not measure.peer("python"):
        raise measure.Unavailable(measure.NO_PEER)
    good, begun, seconds = one_job(
        [measure.ours("ddprun"), "--restart-backoff", "0", "--max-same-failures", "0"], rounds)
    peer_good, peer_begun, peer_seconds = one_job(
        [measure.peer("python"), "-m", "torch.distributed.run"], min(rounds, PEER_RESTARTS_MAX))
    # No ratio: nothing can be divided by torchrun's count.
    counts = {"what": f"good restarts (ours: {good} of {begun}; torchrun: {peer_good} of {peer_begun})",
              "unit": "%", "ours": measure.summary([100 * good / begun]),
              "peer": measure.summary([100 * peer_good / peer_begun]), "ratio": None}
    return [counts,
            measure.row("an attempt, with the import of torch", "s", [seconds], [peer_seconds],
                        lower_is_better=True)], {"restarts": begun, "peer_restarts": peer_begun}
