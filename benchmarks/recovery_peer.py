"""The same losses under torchrun: the same workers, which go on from their last checkpoint as its restarts have it.

torchrun knows no moments and no spares, so each loss happens at one of them, in the middle of a step. Its workers live on when
it is killed itself, and would train unseen; so where a launcher is lost the whole host is: what runs on it gets SIGKILL.
"""
import shutil
import signal
import time

import bench
import measure
from hosts import Hosts
from kept_cells import KeptCells
from losses import FAULTS, STEPS, WITH_SPARES, away_host, hold_before, strike
from recovery_job import MODES, NODES, PORT, WORKERS, Broken, Job, training

PHASE = "forward"
LOSSES = [name for name in FAULTS if name not in WITH_SPARES]
LIMIT_S = 60  # For the next step. Some of torchrun's own limits are minutes.


class TorchrunJob(Job):
    def command(self, host):
        nodes = f"1:{NODES}" if self.mode == "elastic" else str(NODES)
        return [measure.peer("torchrun"), "--no-python", "--nnodes", nodes, "--nproc-per-node", str(WORKERS),
                "--max-restarts", "100", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"{self.hosts.address(0)}:{PORT}",
                "--rdzv-id", "job", "--rdzv-conf", f"is_host={int(host == 0)}", "--local-addr", self.hosts.address(host),
                *training(self.folder, self.steps, recover="restart")]


def lose_host(job, host):
    job.ended_by_us.add(host)
    job.hosts.signal(host, signal.SIGKILL)


def one(place, mode, fault):
    """Seconds to the next new step, or None and a word for what came instead."""
    folder = place.job_folder()
    place.gate.events.clear()
    with Hosts(NODES, folder) as hosts:
        job = TorchrunJob(hosts, place.gate, folder, mode, STEPS, comes_back=mode == "static")
        try:
            victims = hold_before(job, fault, PHASE)
            struck = time.monotonic()
            if fault in ("agent", "node0"):
                lose_host(job, away_host(fault))
            else:
                strike(job, fault, victims)
            job.gate.release()
            try:
                found = job.gate.wait(lambda _: job.first_new_step(lambda event: event.when <= struck), LIMIT_S, job.look)
            except Broken:
                return None, f"all end after {time.monotonic() - struck:.1f} s"
            return (found.when - struck, "") if found else (None, f"nothing for {LIMIT_S} s")
        except Broken as broken:
            raise Broken(f"{broken}\n{job.story()}") from None
        finally:
            place.gate.release()
            job.end()
            shutil.rmtree(folder, ignore_errors=True)


def cell(seconds, words):
    """What came of all rounds."""
    if not seconds:
        return words[-1]
    ms = [1e3 * one for one in seconds]
    text = measure.cell(measure.summary(ms)) if len(ms) > 1 else measure.number(ms[0])
    return text + (f"; {len(words)} of {len(words) + len(seconds)}: {words[-1]}" if words else "")


def run(options, place_of):
    if not measure.peer("torchrun"):
        raise measure.Unavailable(measure.NO_PEER)
    names = [name for name in LOSSES if not options.losses or name in options.losses.split(",")]
    kept = KeptCells(options.keep, measure.machine(), limit=LIMIT_S)
    with place_of() as place:
        for name, mode in [(name, mode) for name in names for mode in MODES] * options.rounds:
            seconds, instead = one(place, mode, name)
            kept.add((mode, name, PHASE), seconds, instead)
            print(f"{mode:8} {name:12} {instead or f'{1e3 * seconds:.0f} ms to the next new step'}", flush=True)
    found = kept.found()
    rows = [name for name in LOSSES if all((mode, name, PHASE) in found for mode in MODES)]
    lines = ["| lost, in the middle of a step | elastic | static |", "|---|---:|---:|"]
    lines += [f"| {FAULTS[name][0]} | " + " | ".join(cell(*found[mode, name, PHASE]) for mode in MODES) + " |" for name in rows]
    text = "\n".join(lines)
    print(f"\nunder torchrun, milliseconds to the next new step\n\n{text}")
    if options.docs:
        bench.write_into_docs("recovery-torchrun", f"`scripts/bench recovery torchrun`, {kept.origin()}; milliseconds to the "
                              f"next new step, medians (minimum - maximum)\n\n{text}")
    return 0
