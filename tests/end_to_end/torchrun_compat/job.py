"""What a case is, and how one is run: start every node's launcher, wait, compare.

A case runs against `ddprun` or against torchrun itself. What both must do is said once; where they
differ, the case says what each does and why.
"""
import dataclasses
import os
import pathlib
import re
import selectors
import signal
import subprocess
import sys
import tempfile
import time
import uuid

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent))
from free_port import free_port
from patience import patience

HERE = pathlib.Path(__file__).resolve().parent
LIMIT_S = 100  # For a whole case, on an idle machine.


@dataclasses.dataclass
class Status:
    """An exit status that differs, as a documented difference."""
    ddprun: int
    torchrun: int
    why: str


def worker_failed(code):
    return Status(code, 1, "torchrun ends with 1 whatever the worker's exit code was")


CHECKED_LATE = Status(2, 1, "torchrun takes the value, and later ends with a traceback")


@dataclasses.dataclass
class Expect:
    status: "int | Status" = 0
    # The files in $OUT and what is in them, all of them. None: not looked at.
    reports: "dict[str, str] | None" = None
    # The files below --log-dir @log@ with a random part as *, and what is in them, all of them.
    logs: "dict[str, str] | None" = None
    output: tuple = ()  # Parts of what all launchers and their workers say.
    absent: tuple = ()  # Parts that are not in it.
    check: object = None  # A function of Result, for what fits none of the above.


@dataclasses.dataclass
class Case:
    name: str
    nodes: list  # The command line of each node's launcher; or one command line.
    expect: "Expect | None" = None  # Of both; or ddprun=, torchrun= and difference=.
    ddprun: "Expect | None" = None
    torchrun: "Expect | None" = None
    difference: str = ""
    env: dict = dataclasses.field(default_factory=dict)
    module: str = "torch.distributed.run"  # Of torchrun.
    ddprun_options: tuple = ()             # What ddprun needs to behave like that module.
    signal: "tuple | None" = None          # (name, what is said before it is sent to the first node)

    def __post_init__(self):
        if self.nodes and isinstance(self.nodes[0], str):
            self.nodes = [self.nodes]
        both = self.expect is not None
        assert both != (self.ddprun is not None), self.name
        assert both != bool(self.difference), self.name

    def expected_of(self, launcher):
        return self.expect or getattr(self, launcher)


@dataclasses.dataclass
class Result:
    statuses: list
    output: str
    folder: pathlib.Path
    reports: dict
    logs: dict


class Failure(Exception):
    pass


def environment(case, folder, mark, replace):
    """This process's, less what would make a launcher part of a job."""
    drop = ("PET_", "SLURM_", "OMPI_", "PMI", "TORCHELASTIC_", "TORCH_NCCL", "ROLE_", "DDPRUN_")
    exact = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR",
             "MASTER_PORT", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "PYTHON_EXEC", "VIRTUAL_ENV"}
    kept = {k: v for k, v in os.environ.items() if k not in exact and not k.startswith(drop)}
    own = {"OUT": str(folder / "out"), "TMPDIR": str(folder / "tmp"), "COMPAT_MARK": mark,
           "PYTHONDONTWRITEBYTECODE": "1"}
    return {**kept, **own, **{k: replace(v) for k, v in case.env.items()}}


def processes_with(mark):
    """Living processes that were started with this mark in their environment."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if mark.encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                pass
    return found


def files_below(folder):
    return {str(path.relative_to(folder)): path.read_text(errors="replace")
            for path in sorted(folder.rglob("*")) if path.is_file()}


class Nodes:
    """The launchers of a case, and what they and their workers say."""

    def __init__(self, argvs, env, folder):
        self.limit_s = patience(LIMIT_S)
        self.deadline = time.monotonic() + self.limit_s
        self.output = ""
        self.selector = selectors.DefaultSelector()
        self.jobs = [subprocess.Popen(argv, env=env, cwd=folder, stdin=subprocess.DEVNULL,
                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
                     for argv in argvs]
        for job in self.jobs:
            os.set_blocking(job.stdout.fileno(), False)
            self.selector.register(job.stdout, selectors.EVENT_READ)
            self.selector.register(os.pidfd_open(job.pid), selectors.EVENT_READ, job)

    def pump(self, done):
        """Reads until done() or the deadline."""
        while not done():
            ready = self.selector.select(max(0, self.deadline - time.monotonic()))
            if not ready:
                raise Failure(f"not done after {self.limit_s:.0f} s; so far: {self.output}")
            for key, _ in ready:
                if key.data is not None:
                    key.data.wait()  # It has ended.
                    self.selector.unregister(key.fd)
                    os.close(key.fd)
                else:
                    self.read(key.fileobj)

    def read(self, pipe):
        while data := pipe.read(65536):
            self.output += data.decode(errors="replace")
        if data == b"":  # End of file: all writers are gone.
            self.selector.unregister(pipe)

    def wait_for(self, parts):
        self.pump(lambda: all(part in self.output for part in parts)
                  or any(job.returncode is not None for job in self.jobs))

    def wait(self):
        self.pump(lambda: all(job.returncode is not None for job in self.jobs))
        for job in self.jobs:
            self.read(job.stdout) if job.stdout in self.selector.get_map() else None
            job.stdout.close()
        return [job.returncode for job in self.jobs]


def run_case(case, launcher, command):
    """Runs a case; command starts the launcher. Raises Failure with all that is known."""
    with tempfile.TemporaryDirectory(prefix="ddprun-compat-") as name:
        folder, mark = pathlib.Path(name), uuid.uuid4().hex
        for part in ("out", "tmp", "log"):
            (folder / part).mkdir()
        words = {"@port@": str(free_port()), "@out@": str(folder / "out"), "@log@": str(folder / "log"),
                 "@dir@": name, "@workers@": str(HERE / "workers")}

        def replace(text):
            for word, value in words.items():
                text = text.replace(word, value)
            return text

        argvs = [[*command, *map(replace, node)] for node in case.nodes]
        try:
            nodes = Nodes(argvs, environment(case, folder, mark, replace), folder)
            if case.signal:
                name_of_signal, parts = case.signal
                nodes.wait_for(parts)
                nodes.jobs[0].send_signal(getattr(signal, name_of_signal))
            statuses = nodes.wait()
            left = left_behind(mark) if launcher == "ddprun" else []
        finally:
            for pid in processes_with(mark):
                os.kill(pid, signal.SIGKILL)
        logs = {re.sub(r"^[^/]+_[^/_]+/", "*/", path): text
                for path, text in files_below(folder / "log").items()}
        reports = {path: text.strip("\n") for path, text in files_below(folder / "out").items()}
        result = Result(statuses, nodes.output, folder, reports, logs)
        problems = compare(case.expected_of(launcher), result, launcher)
        if left:
            problems.append(f"processes are left: {left}")
        if problems:
            raise Failure("\n".join(problems) + f"\ncommands: {argvs}\noutput:\n{nodes.output}")


def left_behind(mark):
    """Processes of a case that are still there when its launchers have ended. Those that were killed
    by the launcher's guard may take a moment to go."""
    deadline = time.monotonic() + patience(5)
    while (left := processes_with(mark)) and time.monotonic() < deadline:
        time.sleep(0.01)
    return left


def compare(expect, result, launcher):
    problems = []
    status = expect.status
    if isinstance(status, Status):
        status = getattr(status, launcher)
    if result.statuses != [status] * len(result.statuses):
        problems.append(f"exit statuses {result.statuses}, expected {status}")
    for what in ("reports", "logs"):
        wanted, found = getattr(expect, what), getattr(result, what)
        if wanted is not None and found != wanted:
            problems.append(f"{what}: {found}\nexpected: {wanted}")
    problems += [f"not said: {part!r}" for part in expect.output if part not in result.output]
    problems += [f"said, but should not be: {part!r}" for part in expect.absent if part in result.output]
    if expect.check:
        try:
            expect.check(result)
        except (AssertionError, OSError, KeyError, ValueError) as error:
            problems.append(f"{expect.check.__name__}: {error!r}; reports: {result.reports}")
    return problems
