"""Programs of the frameworks that docs/from_other_launchers.md and docs/faq.md name, unchanged under ddprun: whole on one node and
on two, and with a worker that is killed. Each ends with the weights that it has under torchrun, bit for bit.

  frameworks_test.py SOURCE_DIR DDPRUN

The packages come from PyPI, into a folder that goes again; without a network, or without the Python torch of
`scripts/setup --peer`, it is skipped.
"""
import os
import pathlib
import subprocess
import sys
import tempfile

from free_port import free_port
from patience import patience

# Pinned, so that a new release of theirs breaks nothing here.
PACKAGES = ["accelerate==1.15.0", "lightning==2.6.6", "transformers==5.24.0", "deepspeed==0.19.8"]
LIMIT_S = 120

# Programs and their arguments ({folder}: one of its own).
FRAMEWORKS = {
    "accelerate": [],
    "lightning": [],
    "transformers": ["{folder}"],
    "fsdp": ["{folder}"],
    "deepspeed": ["--local_rank=${{local_rank}}"],
}


def packages_of(python):
    """The folder of that interpreter's packages."""
    return subprocess.run([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], capture_output=True, text=True,
                          check=True).stdout.strip()


def install(place, peer):
    """An interpreter that has the peer's torch and PACKAGES; or why there is none."""
    subprocess.run([peer, "-m", "venv", place], check=True)
    python = place / "bin" / "python"
    pathlib.Path(packages_of(python), "peer.pth").write_text(packages_of(peer))
    pip = [python, "-m", "pip", "install", "--quiet", "--no-cache-dir", "--disable-pip-version-check"]
    # DeepSpeed is built here, of Python alone, and its build imports torch.
    for command in ([*pip, "setuptools", "wheel"], [*pip, "--no-build-isolation", *PACKAGES]):
        done = subprocess.run(command, capture_output=True, text=True, timeout=900, env={**os.environ, "DS_BUILD_OPS": "0"})
        if done.returncode != 0:
            return None, done.stderr.strip()[-300:]
    return python, ""


def run(commands, variables):
    """Each command is a node's launcher; all have to end with 0."""
    nodes = [subprocess.Popen(command, env={**os.environ, **variables}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
             for command in commands]
    try:
        said = [node.communicate(timeout=patience(LIMIT_S))[0] for node in nodes]
    finally:
        for node in nodes:
            if node.poll() is None:
                node.terminate()
                node.communicate(timeout=patience(LIMIT_S))
    ended = [node.returncode for node in nodes]
    assert ended == [0] * len(nodes), f"{commands} ended with {ended}:\n" + "\n".join(said)


class Program:
    """One of FRAMEWORKS, which is run with folders of its own each time."""

    def __init__(self, source, python, name):
        self.python = python
        self.path = source / "tests/end_to_end/frameworks" / f"{name}_worker.py"
        self.arguments = FRAMEWORKS[name]

    def told(self, launchers, **variables):
        """What each rank's file says, {rank: text}. `launchers`: a command line for each node, without the program."""
        with tempfile.TemporaryDirectory() as folder:
            arguments = [argument.format(folder=folder + "/state") for argument in self.arguments]
            os.mkdir(folder + "/out")
            run([[*launcher, self.path, *arguments] for launcher in launchers],
                {"OUT": folder + "/out", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "DS_ACCELERATOR": "cpu",
                 "PYTHON_EXEC": str(self.python), "PYTHONWARNINGS": "ignore", **variables})
            return {file.name: file.read_text() for file in pathlib.Path(folder, "out").iterdir()}


def check(program, name, ddprun):
    torchrun = [program.python, "-m", "torch.distributed.run"]
    one_node = ["--standalone", "--nproc-per-node", "2"]

    def node(launcher, rank, port):
        return [*launcher, "--nnodes", "2", "--node-rank", str(rank), "--master-addr", "127.0.0.1", "--master-port", port,
                "--nproc-per-node", "1"]

    expected = program.told([[*torchrun, *one_node]])
    assert sorted(expected) == ["rank0", "rank1"], expected
    weights = {text.split("weights ")[1] for text in expected.values()}
    assert len(weights) == 1, expected

    port = str(free_port())
    ways = {"on one node": program.told([[ddprun, *one_node]]),
            "on two nodes": program.told([node([ddprun], rank, port) for rank in range(2)]),
            "with a worker killed": program.told([[ddprun, *one_node, "--max-restarts", "1"]], DIE="1")}
    for way, told in ways.items():
        restarts = 1 if way == "with a worker killed" else 0
        wanted = {rank: f"restarts {restarts} weights {next(iter(weights))}" for rank in expected}
        assert told == wanted, f"{name}, {way}: {told}, and {wanted} was expected"
    print(f"{name}: as under torchrun {', '.join(ways)}", flush=True)


def main():
    source, ddprun = pathlib.Path(sys.argv[1]), sys.argv[2]
    peer = source / ".deps/peer/bin/python"
    if not peer.exists():
        print("SKIPPED: no Python torch in .deps/peer (scripts/setup --peer installs it)")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        python, why = install(pathlib.Path(folder), peer)
        if python is None:
            print(f"SKIPPED: pip cannot install {', '.join(PACKAGES)}: {why}")
            return 0
        for name in FRAMEWORKS:
            check(Program(source, python, name), name, ddprun)
    return 0


if __name__ == "__main__":
    sys.exit(main())
