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

from free_port import free_port
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


# Trains until the test says which ranks are to stand; the others wait for them. If it `parks`, the
# next attempt may have its process. A second attempt ends well.
PACED = """
import os, sys, time
sys.path[:0] = [{examples!r}]
from progress_page import report
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "1":
    sys.exit()
rank, parks, hang, step = os.environ["RANK"], {parks}, {hang!r}, 0
channel = int(os.environ["DDPRUN_RANK_FD"])
if parks:
    os.write(channel, b"k")

def message():
    text = b""
    while not text.endswith(bytes(2)):
        byte = os.read(channel, 1)
        if not byte:
            sys.exit(1)
        text += byte
    return text

def load_batch(fifo):
    with open(fifo) as file:
        file.read()

known = time.monotonic() + {seconds}
while time.monotonic() < known or not os.path.exists(hang):
    step += 1
    report(step, "train")
    time.sleep(0.005)
if rank in open(hang).read().split():
    load_batch({batch!r})
else:
    report(step, "all-reduce")
    if not parks:
        load_batch({reduced!r})
    else:
        assert message().startswith(b"DDPRUN_ATTEMPT_OVER=")
        os.write(channel, bytes([10]))
        assert b"TORCHELASTIC_RESTART_COUNT=1" + bytes(1) in message()
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


class StallCase(unittest.TestCase):
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

    def write_worker(self, text, **words):
        worker = self.folder / "worker.py"
        worker.write_text(text.format(examples=str(SOURCE / "examples"), folder=str(self.folder),
                                      batch=str(self.folder / "batch"), reduced=str(self.folder / "reduced"), **words))
        return str(worker)

    def launch(self, *words, output=subprocess.PIPE):
        job = subprocess.Popen([DDPRUN, *words], env=self.environment, cwd=self.folder, stdin=subprocess.DEVNULL,
                               stdout=output, stderr=subprocess.STDOUT, text=True)

        def end():
            if job.poll() is None:
                job.kill()
            if job.stdout:
                job.stdout.close()
            job.wait()
        self.stack.callback(end)
        return job

    def until(self, look, what):
        end = time.monotonic() + patience(60)
        while time.monotonic() < end:
            found = look()
            if found:
                return found
            time.sleep(0.05)
        self.fail(f"{what} did not come")

    def release(self, *jobs):
        """Lets whoever waits go on, and who comes to wait later, until the jobs have ended."""
        def ended():
            for name in ("batch", "reduced"):
                with contextlib.suppress(OSError):  # Nobody waits there now.
                    os.close(os.open(self.folder / name, os.O_WRONLY | os.O_NONBLOCK))
            return all(job.poll() is not None for job in jobs)
        self.until(ended, "the end")

    def seconds(self):
        """A limit that the workers' own start does not reach on this machine."""
        return f"{patience(1):.1f}"


class Stalls(StallCase):
    def start(self, *options, tells=True):
        return self.launch("--nproc-per-node", "3", "--event-log", str(self.events), "--report", str(self.report_file),
                           *options, self.write_worker(WORKER, tells=tells))

    def report(self):
        return json.loads(self.report_file.read_text())

    def told(self):
        """The events of stalls so far."""
        lines = self.events.read_text().splitlines() if self.events.exists() else []
        return [event for event in map(json.loads, lines) if event["event"] == "stalled"]

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

    def test_a_rank_that_has_left_is_named_beside_those_that_wait_for_it(self):
        batch = self.folder / "batch"
        job = self.launch("--nproc-per-node", "3", "--event-log", str(self.events), "--report", str(self.report_file),
                          "--stall-timeout", self.seconds(), "/bin/sh", "-c",
                          f"test $RANK = 1 || read line < {batch}")
        self.until(self.told, "the stall")
        self.release(job)
        output, _ = job.communicate(timeout=patience(60))
        self.assertRegex(output, r"(?m)^rank 1 has ended with exit code 0$")
        self.assertIn("rank 1 has ended with exit code 0\n", self.report()["stalls"][0]["stacks"])

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


class Node:
    """One of the two of a job, with two workers."""

    def __init__(self, case, rank, port, *options):
        self.events, self.report_file, self.output_file = (
            case.folder / f"{name}{rank}" for name in ("events", "report", "output"))
        with open(self.output_file, "w") as output:
            self.job = case.launch("--nnodes", "2", "--node-rank", str(rank), "--master-addr", "127.0.0.1",
                                   "--master-port", str(port), "--nproc-per-node", "2", "--max-restarts", "1",
                                   "--event-log", str(self.events), "--report", str(self.report_file), *options,
                                   output=output)

    def output(self):
        return self.output_file.read_text()

    def named(self, name):
        """The events of this name so far."""
        lines = self.events.read_text().splitlines(keepends=True) if self.events.exists() else []
        return [event for event in (json.loads(line) for line in lines if line.endswith("\n")) if event["event"] == name]

    def stalls(self):
        return json.loads(self.report_file.read_text())["stalls"]


class TwoNodes(StallCase):
    """Node 0 coordinates the job; ranks 2 and 3 are node 1's."""

    def start(self, *options, parks):
        # Enough for what a phase takes to be known: ddprun looks eight times in the limit.
        limit = patience(1)
        worker = self.write_worker(PACED, parks=parks, hang=str(self.folder / "hang"), seconds=3 * limit)
        port = free_port()
        return [Node(self, rank, port, "--stall-timeout", f"{limit:.1f}", *options, worker) for rank in (0, 1)]

    def hang(self, ranks):
        whole = self.folder / "hang.new"
        whole.write_text(ranks)
        whole.rename(self.folder / "hang")

    def outputs(self, nodes):
        for node in nodes:
            node.job.wait(timeout=patience(60))
        outputs = [node.output() for node in nodes]
        self.assertEqual([node.job.returncode for node in nodes], [0, 0], outputs)
        return outputs

    def check_stacks(self, stacks):
        self.assertRegex(stacks, r"(?m)^node 0 on \S+: ranks 0-1$")
        self.assertRegex(stacks, r"(?m)^node 1 on \S+: ranks 2-3$")
        # Of both nodes, and more than the names.
        for word in (r"\(pid \d+\), step \d+, train$", r"\(pid \d+\), step \d+, all-reduce, waits for others$",
                     r"^    thread \d+ |^    Thread \d+ "):
            self.assertRegex(stacks, "(?m)" + word)

    def test_a_rank_of_another_node_is_replaced_and_the_others_go_on_in_place(self):
        nodes = self.start(parks=True)
        self.hang("3")
        outputs = self.outputs(nodes)
        self.assertIn("rank 3 counts as lost: it gets SIGKILL (--on-stall auto)", outputs[1])
        self.assertNotIn("counts as lost", outputs[0])
        kept = {event["rank"]: event["was_kept"] for node in nodes for event in node.named("worker_started")
                if event["attempt"] == 1}
        self.assertEqual(kept, {0: True, 1: True, 2: True, 3: False}, outputs)
        (stall,) = nodes[1].stalls()
        self.assertEqual(stall["behind"], [3])
        self.assertIn("rank 2 (pid ", stall["stacks"])
        self.assertNotIn("rank 0 (pid ", stall["stacks"])
        self.check_stacks(stall["job_stacks"])
        self.assertIn("rank 3 (pid ", stall["job_stacks"])
        self.assertEqual([(event["behind"], event["counts_as_lost"]) for event in nodes[1].named("stalled")],
                         [([3], False), ([3], True)])
        self.assertEqual(nodes[0].named("stalled"), [])

    def test_where_the_others_would_not_go_on_in_place_it_is_only_told(self):
        nodes = self.start(parks=False)
        self.hang("3")
        self.until(lambda: "nobody is killed for it" in nodes[1].output(), "the word that nobody is killed")
        self.release(*[node.job for node in nodes])
        outputs = self.outputs(nodes)
        self.assertIn("(--on-stall auto): rank 2 would not go on in place", outputs[1])
        self.assertEqual([(event["behind"], event["counts_as_lost"]) for event in nodes[1].named("stalled")], [([3], False)])

    def test_two_nodes_that_stall_at_once_have_the_stacks_of_both(self):
        nodes = self.start("--on-stall", "report", parks=False)
        self.hang("1 3")
        for node in nodes:
            self.until(lambda: "stacks of the job's other nodes" in node.output(), "the report")
        self.release(*[node.job for node in nodes])
        self.outputs(nodes)
        for node, rank in zip(nodes, (1, 3)):
            (stall,) = node.stalls()
            self.assertEqual(stall["behind"], [rank])
            self.check_stacks(stall["job_stacks"])
            self.assertRegex(stall["job_stacks"], r"(?m)^rank 1 |^ranks 1, 3, 2 that stand alike")

    def test_a_coordinator_that_does_not_answer_is_named_in_the_report(self):
        nodes = self.start("--rdzv-conf", "heartbeat_timeout=600", "--on-stall", "fail", parks=True)
        for node in nodes:
            self.until(lambda: len(node.named("worker_started")) == 2, "the workers")
        nodes[0].job.send_signal(signal.SIGSTOP)
        self.hang("3")
        # It is lost all the same, and does not wait for ever.
        self.until(lambda: "rank 3 counts as lost" in nodes[1].output(), "the loss")
        nodes[0].job.send_signal(signal.SIGCONT)
        self.outputs(nodes)
        (stall,) = nodes[1].stalls()
        self.assertIn("the other nodes' stacks are missing: ", stall["job_stacks"])


unittest.main(argv=sys.argv[:1])
