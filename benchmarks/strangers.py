"""strangers: the speed of a job while somebody without its secret attacks its port, beside the same job undisturbed.

Two hosts on one machine (network namespaces, so it needs root): `train` with one worker of one thread on the
one, tests/end_to_end/attacker.py on the other, at the lowest priority: what the attacker itself computes is not
the job's price. With as many cores as both need, what is left is the launcher's work and the kernel's.
"""
import json
import os
import pathlib
import subprocess
import tempfile
import time

import measure
import metrics_lines
from idle import counters

PEER_NAME = "undisturbed"
ATTACKER = str(measure.ROOT / "tests" / "end_to_end" / "attacker.py")
ADDRESS, PORT = "10.78.0.{}", "29500"
STEPS, WARMUP_STEPS, LIMIT_S = 300, 60, 600
ATTACKS = {
    "24,000 silent connections": ["silent", "24000", "stay=600"],
    "connections with junk, one after the other": ["junk", "600"],
    "hellos without the secret, one after the other": ["refused", "600"],
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

    def start(self, host, argv, **variables):
        return subprocess.Popen(["ip", "netns", "exec", self.names[host], *argv],
                                env=measure.environment(OMP_NUM_THREADS="1", **variables), stdin=subprocess.DEVNULL,
                                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def wait_for_steps(metrics, job):
    end = time.monotonic() + LIMIT_S
    while time.monotonic() < end:
        ended = job.poll() is not None  # Before the look, or its last lines could be missed.
        if metrics.exists() and '"event":"train"' in metrics.read_text().replace(": ", ":"):
            return
        if ended:
            break
        time.sleep(0.05)
    raise RuntimeError("train did not begin to train")


def one_run(hosts, attack):
    with tempfile.TemporaryDirectory() as folder:
        metrics = pathlib.Path(folder) / "metrics.jsonl"
        job = hosts.start(0, [
            measure.ours("ddprun"), "--nnodes", "1:2", "--rdzv-backend", "c10d", "--rdzv-endpoint",
            f"{ADDRESS.format(1)}:{PORT}", "--rdzv-conf", "last_call_timeout=0,is_host=true", measure.ours("train"),
            "--dataset", "synthetic", "--model", "resnet20", "--batch-size", "64", "--steps", str(STEPS),
            "--no-validation", "--device", "cpu", "--print-freq", "10", "--metrics", str(metrics)],
            XDG_CONFIG_HOME=folder)
        attacker = None
        try:
            wait_for_steps(metrics, job)
            if attack:
                attacker = hosts.start(1, ["nice", "-n", "19", "python3", "-B", ATTACKER, attack[0], ADDRESS.format(1), PORT,
                                           *attack[1:]])
            began, (before, _) = time.monotonic(), counters([job.pid])
            after, seconds = before, 1.0
            while job.poll() is None:  # Its counters go with it.
                after, seconds = max(after, counters([job.pid])[0]), time.monotonic() - began
                if seconds > LIMIT_S:
                    raise RuntimeError("train did not end")
                time.sleep(0.1)
            if job.returncode:
                raise RuntimeError(f"the job ended with {job.returncode} under {attack}")
            lines = [json.loads(line) for line in metrics.read_text().splitlines()]
            return {"speed": metrics_lines.speed(lines, WARMUP_STEPS)["images_per_s"],
                    "cpu": 100 * (after - before) / 1e9 / seconds}
        finally:
            for process in (attacker, job):
                if process and process.poll() is None:
                    process.kill()
                if process:
                    process.wait(timeout=60)


def run(rounds):
    rows = []
    with Hosts() as hosts:
        sides = {name: lambda attack=attack: one_run(hosts, attack) for name, attack in ATTACKS.items()}
        samples = measure.alternate({PEER_NAME: lambda: one_run(hosts, None), **sides}, rounds)
    usual = samples[PEER_NAME]
    for name in ATTACKS:
        rows.append(measure.row(name, "images/s", samples[name]["speed"], usual["speed"], lower_is_better=False))
        rows.append(measure.row("CPU of the launcher meanwhile", "% of a core", samples[name]["cpu"], usual["cpu"],
                                lower_is_better=True))
    return rows, {"rounds": rounds, "steps": STEPS}
