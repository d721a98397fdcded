"""recovery chaos: a job that loses something at random every so often. What share of its time was useful, and are its bits right?

Goodput: the time of as many steps as were done, each as long as a step is within an attempt, of the time from the first
step to the last. A host that was lost comes back at once, so that there is always something to lose; while it is away the
others do its shards, which is slower on real hosts, and not on one machine.
"""
import random
import shutil
import signal
import statistics
import subprocess
import tempfile
import time

import measure
from hosts import Hosts
from recovery_job import LIMIT_S, NODES, WORKERS, Broken, Golden, Job

KINDS = ("worker", "two", "agent", "cut", "frozen")
AWAY_S = 2.5  # Two heartbeat timeouts and a half.
ENDLESS = 10**9
AGAIN_S = 3.0
CALM_S = 5.0  # Without a loss, before the job is told to stop.


class Losses:
    def __init__(self, job, kinds, seed):
        self.job, self.kinds, self.random = job, kinds, random.Random(seed)
        self.away = []  # (until when, what brings it back)
        self.happened = []  # (when, what)

    def strike(self):
        kind = self.random.choice(self.kinds)
        host = self.random.randrange(NODES)
        places = self.random.sample([(h, local) for h in range(NODES) for local in range(WORKERS)], 2)
        what = {"worker": f"worker {places[0]}", "two": f"workers {places}"}.get(kind, f"{kind} of host {host}")
        self.happened.append((time.monotonic(), what))
        if kind in ("worker", "two"):
            for place in places[: 2 if kind == "two" else 1]:
                self.job.kill_worker(place)
        elif kind == "agent":
            self.job.kill_launcher(host)
        elif kind == "cut":
            self.job.hosts.plug(host, False)
            self.away.append((time.monotonic() + AWAY_S, lambda: self.job.hosts.plug(host, True)))
        else:
            self.job.hosts.signal(host, signal.SIGSTOP)
            self.away.append((time.monotonic() + AWAY_S, lambda: self.job.hosts.signal(host, signal.SIGCONT)))

    def heal(self, all_of_them=False):
        for until, bring_back in list(self.away):
            if all_of_them or time.monotonic() >= until:
                self.away.remove((until, bring_back))
                bring_back()


def train_through(job, losses, options):
    """Until the time is over, and then to a checkpoint on which all workers agree."""
    job.wait("the first step", lambda: job.gate.events and job.gate.events[-1].phase == "report")
    end, due = time.monotonic() + 60 * options.minutes, time.monotonic() + options.every
    while time.monotonic() < end:
        time.sleep(0.02)
        job.look()
        losses.heal()
        if time.monotonic() >= due:
            losses.strike()
            due += options.every
    losses.heal(all_of_them=True)
    calm = time.monotonic() + CALM_S
    job.wait("a calm moment", lambda: time.monotonic() > calm and job.gate.events[-1].phase == "report", LIMIT_S)
    job.comes_back = False
    asked = {"when": 0}

    def ended():  # Who is asked while it goes from one attempt to the next has nobody to agree with, and forgets it.
        if job.launchers and time.monotonic() > asked["when"] + AGAIN_S:
            asked["when"] = time.monotonic()
            newest = job.gate.events[-1].attempt
            for pid in {event.pid for event in job.gate.events[-1000:] if event.attempt == newest}:
                job.signal_worker(pid, signal.SIGTERM)
        return not job.launchers

    job.wait("the end", ended)
    job.ended = time.monotonic()


def first_reports(job):
    """Of each step, when it was done first, and in which attempt."""
    first = {}
    for event in job.events(phase="report"):
        first.setdefault(event.step, event)
    return [first[step] for step in sorted(first)]


def standstills(steps, strikes, step_s):
    """Of each strike, how long no new step was done: the longest pause until the next strike, without the step itself. A
    pause that the next strike falls into is that one's, unless the job stood still by then: for over two steps. A launcher
    that stands by can be struck too, and the others train on."""
    pauses = list(zip(steps, steps[1:]))
    ends = [*strikes[1:], float("inf")]
    return [max((after - before - step_s for before, after in pauses if after > strike and before + 2 * step_s < end),
                default=0.0)
            for strike, end in zip(strikes, ends)]


def print_story(job, losses, spares):
    steps = first_reports(job)
    gaps = [(after.when - before.when, after.attempt == before.attempt) for before, after in zip(steps, steps[1:])]
    step_s = statistics.mean(gap for gap, calm in gaps if calm)
    stood = [1e3 * seconds for seconds in standstills([step.when for step in steps], [when for when, _ in losses.happened], step_s)]
    for (when, what), ms in zip(losses.happened, stood):
        print(f"{when - steps[0].when:8.1f} s  {what:28} {ms:7.0f} ms without a step")
    wall = steps[-1].when - steps[0].when
    goodput = len(gaps) * step_s / wall
    attempts = len({step.attempt for step in steps})
    print(f"\n{len(steps)} steps in {wall:.0f} s, {1e3 * step_s:.1f} ms each within an attempt; {len(stood)} losses, "
          f"{attempts} attempts that did steps, {spares} spares on each host")
    if stood:
        stood.sort()
        print(f"without a step after a loss: median {measure.number(statistics.median(stood))} ms, 99th percentile "
              f"{measure.number(stood[min(len(stood) - 1, int(0.99 * len(stood)))])} ms, maximum {measure.number(stood[-1])} ms")
    print(f"goodput {100 * goodput:.2f} %")
    return steps[-1].step


def start_etcd(hosts, folder):
    """On a host of its own, since of two nodes that are left one may be lost; without etcd a file decides."""
    if not shutil.which("etcd"):
        return str(folder / "tie")
    urls = [f"http://{hosts.address(NODES)}:{port}" for port in (2379, 2380)]
    argv = ["etcd", "--data-dir", str(folder / "etcd"), "--listen-client-urls", urls[0], "--advertise-client-urls", urls[0],
            "--listen-peer-urls", urls[1], "--initial-advertise-peer-urls", urls[1], "--initial-cluster", f"default={urls[1]}"]
    with open(folder / "etcd.log", "w") as log:
        subprocess.Popen(hosts.on(NODES, argv), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    return urls[0]


def run(options, place_of):
    seed = random.randrange(10**6) if options.seed is None else options.seed
    print(f"{measure.machine()}; --seed {seed}", flush=True)
    with tempfile.TemporaryDirectory() as name, place_of(name) as place:
        folder = place.job_folder()
        with Hosts(NODES + 1, folder) as hosts:
            job = None
            try:
                job = Job(hosts, place.gate, folder, "elastic", ENDLESS, spares=options.spares, comes_back=True,
                          tie_breaker=start_etcd(hosts, folder))
                losses = Losses(job, options.losses.split(","), seed)
                train_through(job, losses, options)
                hosts.signal(NODES, signal.SIGKILL)
                job.steps = print_story(job, losses, options.spares)
                print(f"the undisturbed run of {job.steps} steps ...", flush=True)
                golden = Golden(place.gate, place.folder / "golden", job.steps)
                job.check_bits(golden)
                job.check_order()
                job.check_nothing_left(golden)
                print("after each step of each rank, and in the last checkpoint, the bits of the undisturbed run")
                return 0
            except Broken as broken:
                print(f"FAILED: {broken}\n{job.story() if job else ''}")
                return 1
            finally:
                place.gate.release()
                if job:
                    job.end()
