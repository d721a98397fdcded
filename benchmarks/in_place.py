"""in-place: what train --recover in-place costs in a step while nothing fails, beside --recover restart, A B A B.

The same two workers and two shards on both sides, in a job that may have another attempt: all that differs is that
workers listen to the launcher, in a thread that sleeps. The second row of a case has each round's own ratio, so that
what a busy machine does to both sides of a round does not look like a cost.
"""
import measure
import shards

PEER_NAME = "--recover restart"
CASES = {
    "ResNet-18, 16 images a worker": ["--model", "resnet18", "--batch-size", "16", "--steps", "25"],
    "ResNet-20, 16 images a worker": ["--model", "resnet20", "--batch-size", "16", "--steps", "100"],
}
LAUNCHER = ["--max-restarts", "3"]  # Or there is nothing to listen to.


def run(rounds):
    rows = []
    for name, arguments in CASES.items():
        def side(recover, arguments=arguments):
            return shards.step_ms([*arguments, "--shards", "2", "--recover", recover], LAUNCHER)
        samples = measure.alternate({"ours": lambda: side("in-place"), "peer": lambda: side("restart")}, rounds)
        ours, peer = samples["ours"]["step_ms"], samples["peer"]["step_ms"]
        rows.append(measure.row(name, "ms a step", ours, peer, lower_is_better=True))
        rows.append(measure.row(f"{name}: in place takes more, each round for itself", "%",
                                [100 * (mine / other - 1) for mine, other in zip(ours, peer, strict=True)], None,
                                lower_is_better=True))
    return rows, {"rounds": rounds, "warm_up_steps": shards.WARM_UP}
