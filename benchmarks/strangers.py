"""strangers: the speed of a job while somebody attacks its port, beside the same job undisturbed.

Two hosts on one machine (network namespaces, so it needs root): on the one `train` with one worker of one thread, which
runs through, on the other tests/end_to_end/attacker.py, switched on and off in short slices. What is told is the ratio of a slice
with the attack and its neighbour without one: a machine's moods last longer than both.

The attacker computes on the same machine, which on another host it would not: it has the lowest priority, the last core for its
own and a bounded rate, and its time is told. So beside images/s there are images per CPU-second of the job, launcher and worker
together: what the job would lose if it had no core to spare, and the attacker's own computing took none of its.
"""
import json
import math
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import tempfile
import time

import launch
import measure
from idle import counters

PEER_NAME = "undisturbed"
ATTACKER = str(measure.ROOT / "tests" / "end_to_end" / "attacker.py")
ADDRESS, PORT = "10.78.0.{}", "29500"
BATCH, WARMUP_STEPS, LIMIT_S = 64, 30, 600
# Ten pairs of slices of each attack take nine minutes. A pair's ratio varies by 3 to 4 %, so a figure of one attack that is to be
# right within half a percent takes 55 pairs (strangers-silent), six minutes.
SLICE_S, SETTLE_S = 3.0, 0.6
# None ends by itself within a slice. Rates are a second's; a host that was refused is made to wait, and gets fewer.
ATTACKS = {
    "connections half open": ["half-open", "1000000000", "rate=10000", "from=" + ADDRESS.format(2)],
    "silent connections": ["silent", "19000", "rate=1000", "stay=600"],
    "junk": ["junk", "600", "rate=500"],
    "100 handshakes, a byte each 0.1 s": ["slow-tls", "100", "bytes=500", "rate=100000"],
    "renegotiation, oversized tickets and records": ["tls-shapes", "600", "rate=500"],
    "hellos without the secret": ["refused", "600", "rate=500"],
    "joining and dropping without the secret": ["join", "600", "rate=500", "nnodes=1:2"],
}
# Of one who has it.
WITH_SECRET = {
    "with the secret: bytes after the handshake": ["after-handshake", "1000000", "rate=20"],
    "with the secret: new keys without end": ["key-updates", "600", "again=1", "rate=20"],
}


def ip(*words):
    done = subprocess.run(["ip", *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True)
    if done.returncode:
        raise measure.Unavailable(f"ip {' '.join(words)}: {done.stdout.strip()}")


class Hosts:
    """Two namespaces with a cable between them."""

    def __enter__(self):
        self.names = [f"ddprun-{os.getpid()}-{end}" for end in "ab"]
        try:
            self.connect()
        except BaseException:  # A signal's too: no __exit__ comes after this.
            self.__exit__()
            raise
        return self

    def connect(self):
        for name in self.names:
            ip("netns", "add", name)
        ip("link", "add", "cable", "netns", self.names[0], "type", "veth", "peer", "name", "cable", "netns", self.names[1])
        for number, name in enumerate(self.names, 1):
            ip("-n", name, "addr", "add", ADDRESS.format(number) + "/24", "dev", "cable")
            for device in ("lo", "cable"):
                ip("-n", name, "link", "set", device, "up")

    def __exit__(self, *_):
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL)

    def start(self, host, argv, output=subprocess.DEVNULL, **variables):
        return subprocess.Popen(["ip", "netns", "exec", self.names[host], *argv],
                                env=measure.environment(OMP_NUM_THREADS="1", **variables), stdin=subprocess.DEVNULL,
                                stdout=output, stderr=subprocess.DEVNULL, start_new_session=True)


def end(process):
    """With all that it has started."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(timeout=60)


class Steps:
    """When each step was done, by the job's own record."""

    def __init__(self, path):
        self.path, self.times = path, []

    def read(self):
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        done = []
        for line in lines:
            try:
                record = json.loads(line)
            except ValueError:
                break  # Being written.
            if record["event"] == "train":
                done.append((record["time"], record["step"]))
        self.times = done
        return done

    def at(self, moment):
        """How many, with the share of the one that is under way."""
        after = next(i for i, (when, _) in enumerate(self.times) if when > moment)
        (begin, step), (until, following) = self.times[after - 1], self.times[after]
        return step + (following - step) * (moment - begin) / (until - begin)


class Job:
    def __init__(self, hosts, folder):
        self.folder = pathlib.Path(folder)
        self.steps = Steps(self.folder / "metrics.jsonl")
        self.process = hosts.start(0, [
            measure.ours("ddprun"), "--nnodes", "1:2", "--rdzv-backend", "c10d", "--rdzv-endpoint",
            f"{ADDRESS.format(1)}:{PORT}", "--rdzv-conf", "last_call_timeout=0,is_host=true", measure.ours("train"),
            "--dataset", "synthetic", "--model", "resnet20", "--batch-size", str(BATCH), "--steps", "100000000",
            "--no-validation", "--device", "cpu", "--print-freq", "1", "--metrics", str(self.folder / "metrics.jsonl")],
            XDG_CONFIG_HOME=folder)

    def wait_for_steps(self, enough):
        limit = time.monotonic() + LIMIT_S
        while time.monotonic() < limit and self.process.poll() is None:
            if enough(self.steps.read()):
                return
            time.sleep(0.05)
        raise RuntimeError("the job ended, or does not train")

    def processor_s(self):
        """Of the launcher, and of its worker."""
        workers = [pid for pid in launch.children_of(self.process.pid) if launch.program_of(pid) == "train"]
        return counters([self.process.pid])[0] / 1e9, counters(workers)[0] / 1e9


class Attacker:
    def __init__(self, hosts, words):
        last_core = str(max(os.sched_getaffinity(0)))
        self.began = time.monotonic()
        self.process = hosts.start(1, ["taskset", "-c", last_core, "nice", "-n", "19", "python3", "-B", ATTACKER, words[0],
                                       ADDRESS.format(1), PORT, *words[1:]], output=subprocess.PIPE)

    def stop(self):
        """What it used of a core, in percent, and how often a second it tried."""
        if self.process.poll() is not None:
            raise RuntimeError(f"an attacker ended early: {self.process.stdout.read()!r}")
        self.process.send_signal(signal.SIGTERM)
        _, status, usage = os.wait4(self.process.pid, 0)
        self.process.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.monotonic() - self.began
        try:
            os.killpg(self.process.pid, signal.SIGKILL)  # OpenSSL's clients, of whom it has not heard the end.
        except ProcessLookupError:
            pass
        said = self.process.stdout.read()
        self.process.stdout.close()
        tried = int(said.rsplit(b"tried=", 1)[1]) if b"tried=" in said else 0
        return {"attackers": 100 * (usage.ru_utime + usage.ru_stime) / seconds, "tried": tried / seconds}


def slice_of(job, hosts, words):
    """A slice's moments and processor times; what comes first is left out."""
    attacker = Attacker(hosts, words) if words else None
    try:
        time.sleep(SETTLE_S)
        begin, (launcher, worker) = time.time(), job.processor_s()
        time.sleep(SLICE_S - SETTLE_S)
        until, (launcher_after, worker_after) = time.time(), job.processor_s()
        found = {"begin": begin, "until": until, "launcher": launcher_after - launcher, "worker": worker_after - worker}
        return {**found, **(attacker.stop() if attacker else {})}
    finally:
        if attacker:
            end(attacker.process)


def figures(job, found):
    seconds = found["until"] - found["begin"]
    images = BATCH * (job.steps.at(found["until"]) - job.steps.at(found["begin"]))
    return {"images/s": images / seconds, "images per CPU-second": images / (found["launcher"] + found["worker"]),
            "launcher": 100 * found["launcher"] / seconds, **{key: found[key] for key in ("attackers", "tried") if key in found}}


def measured(hosts, rounds, only):
    """{attack: [(figures with it, figures without)]}"""
    with tempfile.TemporaryDirectory() as folder:
        job = Job(hosts, folder)
        try:
            job.wait_for_steps(lambda steps: steps and steps[-1][1] >= WARMUP_STEPS)
            attacks = dict(ATTACKS)
            if shutil.which("openssl"):
                secret = f"secret={folder}/ddprun/secret"
                attacks.update({name: [*words, secret] for name, words in WITH_SECRET.items()})
            attacks = {name: words for name, words in attacks.items() if only in (None, name)}
            found = {name: [] for name in attacks}
            for number in range(rounds):
                for name, words in attacks.items():
                    order = (True, False) if number % 2 else (False, True)
                    pair = {on: slice_of(job, hosts, words if on else None) for on in order}
                    found[name].append((pair[True], pair[False]))
            now = time.time()
            job.wait_for_steps(lambda steps: steps[-1][0] > now)
            return {name: [tuple(figures(job, each) for each in pair) for pair in pairs] for name, pairs in found.items()}
        finally:
            end(job.process)


def ratio_row(name, what, pairs):
    ratios = [100 * attacked[what] / usual[what] for attacked, usual in pairs]
    error = statistics.stdev(ratios) / math.sqrt(len(ratios)) if len(ratios) > 1 else math.nan
    return measure.row(f"{name}: {what}, mean {statistics.mean(ratios):.1f} +- {error:.1f} (standard error)",
                       "% of undisturbed", ratios, [], lower_is_better=False)


def run(rounds, only=None):
    with Hosts() as hosts:
        found = measured(hosts, rounds, only)
    rows = []
    for name, pairs in found.items():
        tried = statistics.median(attacked["tried"] for attacked, _ in pairs)
        attackers = statistics.median(attacked["attackers"] for attacked, _ in pairs)
        rows += [ratio_row(name, what, pairs) for what in ("images per CPU-second", "images/s")]
        rows.append(measure.row(f"the launcher meanwhile; {tried:.0f} attempts a second take {attackers:.0f} % of a core on the attacker's side",
                                "% of a core", [attacked["launcher"] for attacked, _ in pairs],
                                [usual["launcher"] for _, usual in pairs], lower_is_better=True))
    return rows, {"pairs": rounds, "slice_s": SLICE_S, "settle_s": SETTLE_S}
