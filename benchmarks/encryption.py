"""encryption: what --encrypt-gradients costs an all-reduce of two processes over TCP, beside the same in plain.

Over the loopback of one machine, where nothing else holds the bytes up and both ranks share its cores: the
highest price there is. Between hosts the network is slower, and each has its own cores.
"""
import measure
from allreduce import REPETITIONS, medians_us

PEER_NAME = "plain"
SIZES = {44_700_000: "44.7 MB", 1_000_000: "1 MB", 1_024: "1 KiB"}


def run(rounds):
    program = measure.ours("allreduce")
    samples = measure.alternate({
        "ours": lambda: medians_us([program, "--tcp", "--encrypt"], SIZES),
        "peer": lambda: medians_us([program, "--tcp"], SIZES),
    }, rounds)
    rows = [measure.row(f"{text}, encrypted", "us", samples["ours"][size], samples["peer"][size], lower_is_better=True)
            for size, text in SIZES.items()]
    return rows, {"rounds": rounds, "repetitions": REPETITIONS}
