"""A training job on three hosts that can be struck, and what must be true of it afterwards.

Two workers on each host, six virtual shards, BatchNorm, a checkpoint now and then: small enough for two cores. The workers
are tests/end_to_end/gated_train.cpp, which trains as `train` does.
"""
import json
import os
import pathlib
import re
import signal
import subprocess
import time

import measure

NODES, WORKERS, SHARDS = 3, 2, 6
MODES = ("elastic", "static")
PORT = "29500"
LIMIT_S = 240  # For whatever comes by itself, on a busy machine.
HEARTBEAT_S = 1.0
CHECKPOINT_EVERY = 5


class Broken(Exception):
    """The job did what none may; the text says what."""


def training(folder, steps, recover="in-place"):
    return [measure.ours("gated_train"), "--dataset", "synthetic", "--image-size", "16", "--synthetic-images", "1920",
            "--synthetic-classes", "10", "--model", "resnet20", "--batch-size", "4", "--shards", str(SHARDS), "--seed", "3",
            "--device", "cpu", "--no-validation", "--print-freq", "1000", "--recover", recover, "--resume", "auto",
            "--checkpoint-every", str(CHECKPOINT_EVERY), "--checkpoint-dir", str(folder / "saved"), "--steps", str(steps),
            "--epochs", "1000000"]


def newest_tensors(folder):
    """The bytes of the newest checkpoint's tensors, without the header, which holds times."""
    files = sorted((folder / "saved").glob("*.safetensors"), key=lambda path: path.stat().st_mtime_ns)
    if not files:
        raise Broken("there is no checkpoint")
    data = files[-1].read_bytes()
    return data[8 + int.from_bytes(data[:8], "little"):]


class Golden:
    """A run of one worker that nobody disturbs: the hash of its state after each step, and what it saved last."""

    def __init__(self, gate, folder, steps):
        folder.mkdir()
        before = time.monotonic()
        with open(folder / "output", "w") as output:
            done = subprocess.run(training(folder, steps), stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                                  env=measure.environment(OMP_NUM_THREADS="1", TRAIN_GATE=gate.path))
        if done.returncode:
            raise Broken(f"the undisturbed run ended with {done.returncode}: {(folder / 'output').read_text()[-2000:]}")
        self.hashes = {event.step: event.hash for event in gate.since(before, phase="report")}
        self.tensors = newest_tensors(folder)
        self.saved_names = self.kinds_of_files(folder)
        if len(self.hashes) != steps or len(set(self.hashes.values())) != steps:
            raise Broken("the undisturbed run did not go through its steps")

    @staticmethod
    def kinds_of_files(folder):
        """Names without their numbers."""
        return {re.sub(r"\d+", "N", path.name) for path in (folder / "saved").rglob("*")}


class Job:
    """`comes_back`: a host starts its launcher again when that has ended, as a service would."""

    def __init__(self, hosts, gate, folder, mode, steps, spares=0, plant="", comes_back=False, tie_breaker=None,
                 heartbeat_s=HEARTBEAT_S):
        self.hosts, self.gate, self.folder, self.mode = hosts, gate, folder, mode
        self.steps, self.spares, self.plant = steps, spares, plant
        self.comes_back, self.tie_breaker, self.heartbeat_s = comes_back, tie_breaker, heartbeat_s
        self.began, self.ended = time.monotonic(), None
        self.launchers = {}
        self.statuses = {host: [] for host in range(NODES)}
        self.ended_by_us = set()  # Hosts whose launcher was killed, and need not tell of it.
        self.killed_pids = set()
        for name in ("config", *(f"{kind}{host}" for kind in ("tmp", "run") for host in range(NODES))):
            (folder / name).mkdir(parents=True)
        (folder / "config" / "ddprun").mkdir(mode=0o700)
        secret = folder / "config" / "ddprun" / "secret"  # One home for all hosts.
        secret.touch(mode=0o600)
        secret.write_text(os.urandom(32).hex() + "\n")
        for host in range(NODES):
            self.start(host)

    def command(self, host):
        """What starts the node's workers there."""
        conf = f"heartbeat_timeout={self.heartbeat_s},keep_alive_interval={self.heartbeat_s / 5:g},join_timeout=60"
        nodes = ["--nproc-per-node", str(WORKERS), "--max-restarts", "100000", "--spares", str(self.spares)]
        if self.mode == "elastic":
            nodes += ["--nnodes", f"1:{NODES}", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"{self.hosts.address(0)}:{PORT}",
                      "--rdzv-conf", conf, *(["--tie-breaker", self.tie_breaker] if self.tie_breaker else [])]
        else:
            nodes += ["--nnodes", str(NODES), "--node-rank", str(host), "--master-addr", self.hosts.address(0), "--master-port",
                      PORT, "--rdzv-conf", conf + ",takeover=true"]
        nodes += ["--event-log", str(self.folder / f"events{host}")]
        return [measure.ours("ddprun"), *nodes, *training(self.folder, self.steps)]

    def start(self, host):
        environment = measure.environment(
            OMP_NUM_THREADS="1", TRAIN_GATE=self.gate.path, TRAIN_HOST=str(host), TRAIN_PLANT=self.plant,
            XDG_CONFIG_HOME=str(self.folder / "config"), TMPDIR=str(self.folder / f"tmp{host}"),
            XDG_RUNTIME_DIR=str(self.folder / f"run{host}"))
        with open(self.output_path(host), "a") as output:
            self.launchers[host] = subprocess.Popen(
                self.hosts.on(host, self.command(host)), env=environment,
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True)

    def output_path(self, host):
        return self.folder / f"host{host}"

    def output(self, host):
        return self.output_path(host).read_text(errors="replace")

    def events(self, **wanted):
        return [event for event in self.gate.since(self.began, **wanted) if self.ended is None or event.when <= self.ended]

    def waiting_spares(self, host):
        """Their pids: they are ready and have no rank."""
        log = self.folder / f"events{host}"
        waiting = []
        for line in log.read_text().splitlines(keepends=True) if log.exists() else []:
            event = json.loads(line) if line.endswith("\n") else {"event": "cut"}
            if event["event"] == "spare_ready":
                waiting.append(event["spare_pid"])
            elif event["event"] == "spare_ended" or event.get("was_spare"):
                gone = event.get("spare_pid", event.get("worker_pid"))
                waiting = [pid for pid in waiting if pid != gone]
        return waiting

    def spares_ready(self):
        return sum(len(self.waiting_spares(host)) for host in range(NODES))

    def look(self):
        """Notes launchers that ended, and starts them again where that is due."""
        for host, launcher in list(self.launchers.items()):
            if launcher.poll() is None:
                continue
            del self.launchers[host]
            self.statuses[host].append(launcher.returncode)
            if self.comes_back and launcher.returncode not in (0, 75):
                if len(self.statuses[host]) > 1000:
                    raise Broken(f"host {host}'s launcher ended {len(self.statuses[host])} times: {self.statuses[host]}")
                self.start(host)
        if not self.launchers and not self.is_done():
            raise Broken(f"all launchers ended: {self.statuses}")

    def is_done(self):
        return not self.launchers and any(statuses and statuses[-1] in (0, 75) for statuses in self.statuses.values())

    def wait(self, what, found, limit_s=LIMIT_S):
        result = self.gate.wait(lambda _: found(), limit_s, self.look)
        if not result:
            raise Broken(f"not within {limit_s:.0f} s: {what}")
        return result

    def hold(self, what, which, count=1):
        """Until so many workers stand at the gate."""
        self.gate.hold(lambda event: event.when > self.began and which(event))
        self.wait(what, lambda: len(self.gate.held) >= count)
        return [event for event, _ in self.gate.held]

    def worker_at(self, place):
        """The newest process there."""
        for event in reversed(self.gate.events):
            if event.place == place and event.when > self.began:
                return event.pid
        raise Broken(f"no worker was ever at {place}")

    def first_new_step(self, is_old):
        """The first that is further than all old ones."""
        reports = self.events(phase="report")
        furthest = max((event.step for event in reports if is_old(event)), default=0)
        return next((event for event in reports if not is_old(event) and event.step > furthest), None)

    # What can happen to it.

    def kill_worker(self, place):
        self.signal_worker(self.worker_at(place), signal.SIGKILL)

    def kill_launcher(self, host):
        self.ended_by_us.add(host)
        if host in self.launchers:
            self.killed_pids.add(self.launchers[host].pid)
            self.launchers[host].kill()

    @staticmethod
    def signal_worker(pid, number):
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass

    def story(self):
        """What its launchers said last, and its workers at the gate."""
        lines = [f"host {host} said:\n" + "\n".join(self.output(host).splitlines()[-40:]) for host in range(NODES)]
        last = [f"{event.when - self.began:8.3f} host {event.host}.{event.local_rank} pid {event.pid} attempt {event.attempt} "
                f"rank {event.rank} of {event.world}: {event.phase} {event.step}" for event in self.events()[-30:]]
        return "\n".join([*lines, "the last at the gate:", *last, f"statuses: {self.statuses}"])

    def end(self):
        """Kills what is left of it."""
        for host in range(NODES):
            self.hosts.signal(host, signal.SIGKILL)
        for launcher in self.launchers.values():
            launcher.wait()

    # What must be true of it.

    def check_bits(self, golden):
        """Every step of every rank, and the last checkpoint."""
        for event in self.events(phase="report"):
            if event.hash != golden.hashes.get(event.step):
                raise Broken(f"rank {event.rank} of {event.world} holds other bits than the undisturbed run after step "
                             f"{event.step} (attempt {event.attempt})")
        done = {event.step for event in self.events(phase="report")}
        if missing := set(range(1, self.steps + 1)) - done:
            raise Broken(f"steps that nobody did: {sorted(missing)}")
        if newest_tensors(self.folder) != golden.tensors:
            raise Broken("the last checkpoint is not that of the undisturbed run")

    def check_order(self):
        """Within a process a step follows the one before, but where it takes another's state over."""
        last = {}
        for event in self.events(phase="report"):
            before = last.get((event.pid, event.attempt))
            if before is not None and event.step != before + 1:
                raise Broken(f"process {event.pid} did step {event.step} after {before} in attempt {event.attempt}")
            last[event.pid, event.attempt] = event.step

    def check_nothing_left(self, golden):
        if left := self.hosts.left_after(LIMIT_S / 4):
            names = [pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()[:80] for pid in left]
            raise Broken(f"processes were left behind: {dict(zip(left, names))}")
        for host in range(NODES):
            if files := list((self.folder / f"tmp{host}").rglob("*")):
                what = {str(path): path.read_text(errors="replace")[:400] if path.is_file() else "" for path in files}
                raise Broken(f"files were left behind on host {host}: {what}")
            # A killed launcher's socket stays until the next launcher there.
            sockets = [path for path in (self.folder / f"run{host}").rglob("*") if path.is_socket()]
            if files := [path for path in sockets if int(path.name.partition("-")[0]) not in self.killed_pids]:
                raise Broken(f"sockets were left behind on host {host}: {[str(path) for path in files]}")
        if more := Golden.kinds_of_files(self.folder) - golden.saved_names:
            raise Broken(f"beside the checkpoints were left: {sorted(more)}")
