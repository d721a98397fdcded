"""Workers that stand still although they live: who is named, what is told, and what follows of it.

  stalls_test.py SOURCE_DIR BIN_DIR
"""
import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

from patience import patience

SOURCE, BIN = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
DDPRUN = str(BIN / "ddprun")
TOOLS = SOURCE / ".deps" / "venv" / "bin"  # Where scripts for tests are kept.


# As torch has it, where py-spy looks: all_reduce() waits for the ranks that do not come.
COLLECTIVE = """
def all_reduce(fifo):
    with open(fifo) as file:
        file.read()
"""

# Rank 1 never comes to the collective, until the test lets it. A second attempt ends well.
WORKER = """
import os, sys
sys.path[:0] = [{examples!r}, {folder!r}]
from progress_page import report
from torch.distributed.distributed_c10d import all_reduce
rank, tells = int(os.environ["RANK"]), {tells}
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "1":
    sys.exit()

def load_batch(fifo):
    with open(fifo) as file:
        file.read()

if tells:
    report(1, "train")
if rank == 1:
    load_batch({batch!r})
if tells:
    report(1, "all-reduce")
all_reduce({reduced!r})
"""


class RasServer:
    """NCCL's RAS service, as far as ddprun asks it."""

    def __init__(self):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self.listener.getsockname()[1]
        self.questions = 0
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                self.questions += 1
                with client, client.makefile("rw", newline="\n") as lines:
                    for line in lines:
                        if line.startswith("CLIENT PROTOCOL"):
                            lines.write("SERVER PROTOCOL 2\n")
                        elif line.startswith("TIMEOUT"):
                            lines.write("OK\n")
                        elif line == "VERBOSE STATUS\n":
                            lines.write("Communicator 0x12: rank 1 is missing in AllReduce 7\n")
                            break
                        lines.flush()


class Stalls(unittest.TestCase):
    def setUp(self):
        self.stack = contextlib.ExitStack()
        self.addCleanup(self.stack.close)
        self.folder = pathlib.Path(self.stack.enter_context(tempfile.TemporaryDirectory()))
        self.environment = {name: value for name, value in os.environ.items()
                            if not re.match("PET_|SLURM_|DDPRUN_|NCCL_|RANK$|WORLD_SIZE$|TORCHELASTIC", name)}
        self.environment.update(DDPRUN_RUN_DIR=str(self.folder / "run"), TMPDIR=str(self.folder))
        package = self.folder / "torch" / "distributed"
        package.mkdir(parents=True)
        (package / "distributed_c10d.py").write_text(COLLECTIVE)
        # py-spy names files from their outermost package on.
        for folder in (package, package.parent):
            (folder / "__init__.py").touch()
        for name in ("batch", "reduced"):
            os.mkfifo(self.folder / name)
        self.events, self.report_file = self.folder / "events", self.folder / "report"

    def start(self, *options, tells=True):
        worker = self.folder / "worker.py"
        worker.write_text(WORKER.format(examples=str(SOURCE / "examples"), folder=str(self.folder), tells=tells,
                                        batch=str(self.folder / "batch"), reduced=str(self.folder / "reduced")))
        words = [DDPRUN, "--nproc-per-node", "3", "--event-log", str(self.events), "--report", str(self.report_file),
                 *options, str(worker)]
        job = subprocess.Popen(words, env=self.environment, cwd=self.folder, stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

        def end():
            if job.poll() is None:
                job.kill()
            job.stdout.close()
            job.wait()
        self.stack.callback(end)
        return job

    def report(self):
        return json.loads(self.report_file.read_text())

    def told(self):
        """The events of stalls so far."""
        lines = self.events.read_text().splitlines() if self.events.exists() else []
        return [event for event in map(json.loads, lines) if event["event"] == "stalled"]

    def until(self, look, what):
        end = time.monotonic() + patience(60)
        while time.monotonic() < end:
            found = look()
            if found:
                return found
            time.sleep(0.05)
        self.fail(f"{what} did not come")

    def release(self, job):
        """Lets whoever waits go on, and who comes to wait later, until the job has ended."""
        def ended():
            for name in ("batch", "reduced"):
                with contextlib.suppress(OSError):  # Nobody waits there now.
                    os.close(os.open(self.folder / name, os.O_WRONLY | os.O_NONBLOCK))
            return job.poll() is not None
        self.until(ended, "the end")

    def seconds(self):
        """A limit that the workers' own start does not reach on this machine."""
        return f"{patience(1):.1f}"

    def test_a_rank_that_never_comes_is_named_and_the_others_are_not(self):
        ras = RasServer()
        self.stack.callback(ras.listener.close)
        self.environment["NCCL_RAS_ADDR"] = ras.address
        job = self.start("--stall-timeout", self.seconds())
        self.until(lambda: ras.questions, "the question to NCCL")
        self.until(self.told, "the stall")
        # Nothing fails of it: once it is there, the job goes on to its end.
        self.release(job)
        output, _ = job.communicate(timeout=patience(60))
        self.assertEqual(job.returncode, 0, output)
        self.assertIn('rank 1 has said nothing in "train" after step 1 for ', output)
        self.assertIn("while ranks 0, 2 wait for others", output)
        self.assertRegex(output, r"(?m)^rank 1 \(pid \d+\), step 1, train  <-- behind$")
        self.assertRegex(output, r"(?m)^rank 0 \(pid \d+\), step 1, all-reduce, waits for others$")
        self.assertIn("rank 1 is missing in AllReduce 7", output)
        self.assertEqual(ras.questions, 1)
        self.assertEqual([(event["behind"], event["counts_as_lost"]) for event in self.told()], [([1], False)])
        (stall,) = self.report()["stalls"]
        self.assertEqual(stall["behind"], [1])
        self.assertIn("rank 1 is missing", stall["nccl_ras"])
        self.assertIn("rank 2 (pid ", stall["stacks"])

    def test_the_rank_behind_counts_as_lost_where_that_is_asked_for(self):
        job = self.start("--stall-timeout", self.seconds(), "--on-stall", "fail")
        output, _ = job.communicate(timeout=patience(60))
        self.assertEqual(job.returncode, 128 + signal.SIGKILL, output)
        report = self.report()
        cause = report["first_cause"]
        self.assertEqual((cause["rank"], cause["signal"], cause["oom_killed"]), (1, signal.SIGKILL, False))
        self.assertGreater(cause["hung_ms"], 900)
        self.assertIn('rank 1 has said nothing in "train"', cause["message"])
        self.assertIn("where rank 1 stood:", cause["message"])
        self.assertRegex(report["why"], r"rank 1 \(pid \d+ on .*\) stood still for .*, and was killed after")
        self.assertEqual({end["rank"]: end["stopped"] for end in report["workers"]}, {0: True, 1: False, 2: True})
        self.assertEqual([(event["behind"], event["counts_as_lost"]) for event in self.told()],
                         [([1], False), ([1], True)])

    def test_what_counts_as_lost_is_restarted_as_after_any_death(self):
        job = self.start("--stall-timeout", self.seconds(), "--on-stall", "fail", "--max-restarts", "1")
        output, _ = job.communicate(timeout=patience(60))
        self.assertEqual(job.returncode, 0, output)
        self.assertIn("rank 1 counts as lost", output)
        self.assertEqual([(stall["attempt"], stall["behind"]) for stall in self.report()["stalls"]], [(0, [1])])

    def test_python_stacks_tell_who_is_behind_where_programs_say_nothing(self):
        spy = shutil.which("py-spy", path=f"{os.environ['PATH']}:{TOOLS}")
        if not spy:
            self.skipTest("there is no py-spy, neither on PATH nor in .deps/venv")
        self.environment["PATH"] = f"{pathlib.Path(spy).parent}:{self.environment['PATH']}"
        job = self.start("--stall-timeout", self.seconds(), "--on-stall", "fail", tells=False)
        output, _ = job.communicate(timeout=patience(90))
        if "load_batch" not in output and os.geteuid() != 0:
            self.skipTest("py-spy may not look into other processes here")
        cause = self.report()["first_cause"]
        self.assertEqual(job.returncode, 128 + signal.SIGKILL, output)
        self.assertEqual(cause["rank"], 1, output)
        self.assertIn("load_batch", cause["message"])
        self.assertEqual([event["behind"] for event in self.told()], [[], [1]])
        self.assertIn("have used no processor time", self.told()[0]["why"])


unittest.main(argv=sys.argv[:1])
