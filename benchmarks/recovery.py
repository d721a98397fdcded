"""recovery: whatever a job loses, and whatever it was doing, it ends with the bits of a run that nobody disturbed.
`scripts/bench recovery --help`.

Three hosts (network namespaces, so it needs root) of two workers each. A cell is a loss at a named moment: the job is
stopped at its gate (phase_gate.py), struck, and let go on. Each ends with the hash of the state after every step of every
rank, and the last checkpoint, equal to the undisturbed run's, and no process or file left. Its time is that from the loss
to the end of the first step that had not been done before: the launchers' (heartbeat timeout 1 s, unless said), the meeting, the state,
and the step itself, which takes some ten milliseconds of each worker. A static job waits for its host, which the harness
starts again as a service would; so its time has a cold start of `train` in it, and so has the loss of a worker without spare.
"""
import argparse
import fnmatch
import functools
import os
import pathlib
import shutil
import signal
import sys
import tempfile
import time

import bench
import chaos
import measure
import recovery_peer
from hosts import Hosts
from kept_cells import KeptCells
from losses import FAULTS, PHASES, STEPS, WITH_SPARES, away_host, goes_on, hold_before, strike
from phase_gate import Gate
from recovery_job import HEARTBEAT_S, MODES, NODES, WORKERS, Broken, Golden, Job

HELP = __doc__.partition("\n\n")[2]


def joined(job):
    """How many nodes have come to the job so far."""
    return sum(job.output(host).count(" joined with ") for host in range(NODES))


def is_known_lost(job, host):
    return any("] lost " in job.output(other) for other in range(NODES) if other != host)


def check_all_spares_return(job):
    """And that who has no rank is missed by nobody."""
    job.wait("a spare in the place of the killed one", lambda: job.spares_ready() == NODES * WORKERS)
    if max(event.attempt for event in job.events()) > 0:
        raise Broken("for a spare that was killed there was another attempt")


def statuses_are_right(job, fault):
    """All end as the job did, but for a launcher that was killed and not started again."""
    for host, statuses in job.statuses.items():
        killed = host in job.ended_by_us and job.mode == "elastic"
        if statuses[-1] != (-signal.SIGKILL if killed else 0):
            raise Broken(f"host {host}'s launcher ended with {statuses}")


def run_cell(job, fault, phase, golden):
    """Seconds from the loss to the end of the next new step."""
    victims = hold_before(job, fault, phase)
    before = joined(job)
    if fault in WITH_SPARES:
        job.wait("all spares are ready", lambda: job.spares_ready() == NODES * WORKERS)
    attempt = max(event.attempt for event in job.events())
    struck = time.monotonic()
    heal = strike(job, fault, victims)
    job.gate.release()
    # A static job waits for this host, and has to know that it is gone; what stood still as rank 0 holds the checkpoints.
    if heal and (job.mode == "static" or fault == "node0-frozen"):
        job.wait("the loss is noticed", lambda: is_known_lost(job, away_host(fault)))
        heal()
    # An attempt that was struck may do a step after that.
    is_old = (lambda event: event.when <= struck) if goes_on(fault, phase) else (lambda event: event.attempt <= attempt)
    first = job.wait("a new step after the loss", lambda: job.first_new_step(is_old))
    returns = heal and job.mode == "elastic"
    if returns or goes_on(fault, phase):
        job.hold("one at the last step", lambda event: event.phase == "data" and event.step == STEPS - 1)
        if returns:
            heal()  # Twice is as good as once.
            job.wait("the host that was away is back", lambda: joined(job) > before)
        else:
            check_all_spares_return(job)
        job.gate.release()
    job.wait("the end", lambda: not job.launchers)
    statuses_are_right(job, fault)
    job.check_bits(golden)
    job.check_order()
    job.check_nothing_left(golden)
    return first.when - struck


class Place:
    """Where all jobs of a run lie: a folder, the gate, the golden bits."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.gate = Gate(str(self.folder / "gate"))
        self.number = 0

    @functools.cached_property
    def golden(self):
        return Golden(self.gate, self.folder / "golden", STEPS)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.gate.close()

    def job_folder(self):
        self.number += 1
        folder = self.folder / f"job{self.number}"
        folder.mkdir()
        return folder

    def cell(self, mode, fault, phase, plant="", heartbeat_s=HEARTBEAT_S):
        """Its seconds. Raises Broken with what the launchers said."""
        golden, folder = self.golden, self.job_folder()
        self.gate.events.clear()
        with Hosts(NODES, folder) as hosts:
            job = None
            try:
                job = Job(hosts, self.gate, folder, mode, STEPS, spares=WORKERS if fault in WITH_SPARES else 0, plant=plant,
                          comes_back=mode == "static", heartbeat_s=heartbeat_s)
                return run_cell(job, fault, phase, golden)
            except Broken as broken:
                raise Broken(f"{broken}\n{job.story() if job else ''}") from None
            finally:
                self.gate.release()
                if job:
                    job.end()
                shutil.rmtree(folder, ignore_errors=True)


def cell_text(seconds, failed):
    if failed:
        return f"{len(failed)} of {len(failed) + len(seconds)} failed"
    ms = [1e3 * one for one in seconds]
    return measure.cell(measure.summary(ms)) if len(ms) > 1 else measure.number(ms[0])


def table(found, mode):
    phases = [phase for phase in PHASES if any(key[0] == mode and key[2] == phase for key in found)]
    lines = ["| lost | " + " | ".join(PHASES[phase] for phase in phases) + " |", "|---|" + "---:|" * len(phases)]
    for fault, (what, _) in FAULTS.items():
        cells = [cell_text(*found[mode, fault, phase]) if (mode, fault, phase) in found else "-" for phase in phases]
        if any(cell != "-" for cell in cells):
            lines.append(f"| {what} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def matrix(options):
    wanted = cells_like(options.cells)
    kept = KeptCells(options.keep, measure.machine(), heartbeat=options.heartbeat)
    broken = 0
    with tempfile.TemporaryDirectory() as folder, Place(folder) as place:
        for mode, fault, phase in wanted * options.rounds:
            began, seconds = time.monotonic(), None
            try:
                seconds = place.cell(mode, fault, phase, heartbeat_s=options.heartbeat)
                text = f"{1e3 * seconds:7.0f} ms to the next new step"
            except Broken as why:
                broken += 1
                text = f"FAILED: {why}"
            kept.add((mode, fault, phase), seconds)
            print(f"{mode:8} {fault:12} {phase:11} {text}; {time.monotonic() - began:.1f} s in all", flush=True)
    found = kept.found()
    for mode in sorted({mode for mode, _, _ in found}):
        text = table(found, mode)
        print(f"\n{mode}, milliseconds\n\n{text}")
        if options.docs:
            command = "scripts/bench recovery matrix"
            if options.heartbeat != HEARTBEAT_S:
                command += f" --heartbeat {options.heartbeat:g}"
            bench.write_into_docs(f"recovery-{mode}",
                                  f"`{command}`, {kept.origin()}; milliseconds, medians (minimum - maximum)\n\n{text}")
    every = len(wanted) * options.rounds
    print(f"\n{every - broken} of {every} cells end with the golden bits")
    return 1 if broken else 0


def beside_torchrun(options):
    with tempfile.TemporaryDirectory() as folder:
        return recovery_peer.run(options, lambda: Place(folder))


def planted(_):
    """The harness itself: what a recovery must never do is done, and has to be noticed."""
    missed = []
    with tempfile.TemporaryDirectory() as folder, Place(folder) as place:
        for plant, what in (("twice", "a step that is applied twice"), ("lost", "a shard that is left out")):
            try:
                place.cell("elastic", "worker", "forward", plant=plant)
                missed.append(what)
                print(f"NOT noticed: {what}")
            except Broken as broken:
                said = str(broken).partition("\n")[0]
                if "other bits than the undisturbed run" not in said:
                    missed.append(what)
                    said = f"for another reason: {broken}"
                print(f"noticed: {what}: {said}", flush=True)
    return 1 if missed else 0


def cells_like(patterns):
    every = [(mode, fault, phase) for mode in MODES for fault in FAULTS for phase in PHASES]
    picked = [cell for cell in every if any(fnmatch.fnmatchcase("/".join(cell), pattern) for pattern in patterns)]
    for pattern in patterns:
        if not any(fnmatch.fnmatchcase("/".join(cell), pattern) for cell in every):
            raise Broken(f"no cell is like {pattern!r}: MODE/LOSS/MOMENT of {', '.join(MODES)}; {', '.join(FAULTS)}; "
                         f"{', '.join(PHASES)}")
    return picked


def some_of(names):
    def checked(text):
        unknown = [name for name in text.split(",") if text and name not in names]
        if unknown:
            raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(names)}")
        return text
    return checked


def arguments(argv):
    parser = argparse.ArgumentParser(prog="scripts/bench recovery", description=HELP,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = parser.add_subparsers(dest="kind", required=True)
    cells = kinds.add_parser("matrix", help="every loss at every moment")
    cells.add_argument("cells", nargs="*", metavar="MODE/LOSS/MOMENT", default=["*"],
                       help=f"such as 'elastic/cut/*'; of {', '.join(MODES)}; {', '.join(FAULTS)}; {', '.join(PHASES)} [all]")
    cells.add_argument("--rounds", type=int, default=1, help="how often each cell is run [1]")
    cells.add_argument("--heartbeat", type=float, default=HEARTBEAT_S, metavar="SECONDS",
                       help="after which a silent node is lost [%(default)g]")
    cells.add_argument("--keep", default="", metavar="FILE", help="add to FILE, and show all that it holds with this heartbeat")
    cells.add_argument("--docs", action="store_true", help="also put the tables into docs/measurements/recovery.md")
    cells.set_defaults(run=matrix)
    peer = kinds.add_parser("torchrun", help="the same losses in the middle of a step under torchrun")
    peer.add_argument("--rounds", type=int, default=1, help="how often each is run [1]")
    peer.add_argument("--losses", type=some_of(recovery_peer.LOSSES), default="", help="which, with commas between; all when left out")
    peer.add_argument("--keep", default="", metavar="FILE", help="add to FILE, and show all that it holds")
    peer.add_argument("--docs", action="store_true", help="also put the table into docs/measurements/recovery.md")
    peer.set_defaults(run=beside_torchrun)
    plants = kinds.add_parser("planted", help="faults of the product that the harness has to notice")
    plants.set_defaults(run=planted)
    random_kills = kinds.add_parser("chaos", help="a loss at random every so often, and what is left of the time")
    random_kills.add_argument("--minutes", type=float, default=10, help="how long the job trains [10]")
    random_kills.add_argument("--every", type=float, default=15, metavar="SECONDS", help="between two losses [15]")
    random_kills.add_argument("--losses", type=some_of(chaos.KINDS), default=",".join(chaos.KINDS),
                              help="which there are [%(default)s]")
    random_kills.add_argument("--spares", type=int, default=WORKERS, help="on each host [%(default)s]")
    random_kills.add_argument("--seed", type=int, default=None, help="what is lost when [another one each time]")
    random_kills.set_defaults(run=lambda options: chaos.run(options, Place))
    return parser.parse_args(argv)


def main(argv):
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, bench.end_by_signal)
    options = arguments(argv)
    if os.geteuid() != 0:
        print("SKIPPED: network namespaces need root")
        return 0
    try:
        return options.run(options)
    except measure.Unavailable as reason:
        print(f"SKIPPED: {reason}")
        return 0
    except Broken as broken:
        return f"recovery: {broken}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
