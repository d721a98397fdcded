"""Looking at a job, with the real ddprun: status, top, logs and stacks, as people type them.

  watching_test.py SOURCE_DIR BIN_DIR
"""
import contextlib
import fcntl
import json
import os
import pathlib
import pty
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
import unittest

from patience import patience

SOURCE, BIN = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
DDPRUN = str(BIN / "ddprun")


# Reports a step and waits to be told the next one by a file; rank 1 fails once.
WORKER = """
import os, sys, time
sys.path.insert(0, {examples!r})
from progress_page import report
rank, attempt = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
if rank == 1 and attempt == 0:
    sys.exit("the data ran out")
print("attempt", attempt, "of rank", rank, flush=True)
step = 0
while not os.path.exists({stop!r}):
    step += 1
    report(step, "train" if step > 1 else "warm up", loss=0.5, images_per_s=128)
    time.sleep(0.02)
print("rank", rank, "is done", flush=True)
"""


class WithJob(unittest.TestCase):
    def setUp(self):
        self.stack = contextlib.ExitStack()
        self.addCleanup(self.stack.close)
        self.folder = pathlib.Path(self.stack.enter_context(tempfile.TemporaryDirectory()))
        self.environment = {name: value for name, value in os.environ.items()
                            if not re.match("PET_|SLURM_|DDPRUN_|RANK$|WORLD_SIZE$|TORCHELASTIC", name)}
        self.environment.update(DDPRUN_RUN_DIR=str(self.folder / "run"), TMPDIR=str(self.folder), TZ="UTC")
        self.stop = self.folder / "stop"

    def start(self, *words, open_files=None):
        limited = ["sh", "-c", f'ulimit -n {open_files}; exec "$@"', "sh"] if open_files else []
        process = subprocess.Popen([*limited, DDPRUN, *words], env=self.environment, cwd=self.folder, stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

        def end():
            if process.poll() is None:
                process.kill()
            process.stdout.close()
            process.wait()
        self.stack.callback(end)
        return process

    def start_job(self, *options):
        worker = self.folder / "worker.py"
        worker.write_text(WORKER.format(examples=str(SOURCE / "examples"), stop=str(self.stop)))
        return self.start("--nproc-per-node", "2", "--max-restarts", "1", "--rdzv-id", "night", *options, str(worker))

    def ask(self, *words):
        done = subprocess.run([DDPRUN, *words], env=self.environment, cwd=self.folder, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=patience(30))
        return done.returncode, done.stdout, done.stderr

    def until(self, look, what):
        end = time.monotonic() + patience(30)
        while time.monotonic() < end:
            found = look()
            if found:
                return found
            time.sleep(0.02)
        self.fail(f"{what} did not come")

    def snapshot(self, *words):
        status, text, _ = self.ask("status", "--json", *words)
        jobs = json.loads(text)
        self.assertEqual(status, 0 if jobs else 1)
        return jobs

    def steps_told(self):
        """The job's snapshot once both ranks of its second attempt have told steps."""
        def look():
            jobs = self.snapshot()
            told = jobs and jobs[0]["attempt"] == 1 and len(jobs[0]["ranks"]) == 2 and all(
                rank["progress"] and (rank["progress"]["step"] or 0) > 1 for rank in jobs[0]["ranks"])
            return jobs[0] if told else None
        return self.until(look, "a step of both ranks")


class Watching(WithJob):
    def test_a_python_program_tells_steps_and_a_failure_stays_visible(self):
        job = self.start_job()
        seen = self.steps_told()
        self.assertEqual(seen["run_id"], "night")
        self.assertEqual(seen["launcher_pid"], job.pid)
        self.assertEqual([rank["rank"] for rank in seen["ranks"]], [0, 1])
        for rank in seen["ranks"]:
            self.assertEqual(rank["state"], "running")
            self.assertGreater(rank["rss_bytes"], 1 << 20)
            self.assertEqual(rank["progress"]["phase"], "train")
            self.assertEqual(rank["progress"]["loss"], 0.5)
        self.assertEqual(seen["failures_total"], 1)
        self.assertEqual(seen["failures"][0]["rank"], 1)
        self.assertIn("exit code 1", seen["failures"][0]["text"])

        status, text, _ = self.ask("status", "night")
        self.assertEqual(status, 0)
        self.assertIn("attempt 1 (--max-restarts 1), ranks 0-1 of 2", text)
        self.assertRegex(text, r"(?m)^ +1 +\d+ +\d+ train ")
        self.assertIn("the data ran out", text)
        self.assertEqual(self.ask("status", "day")[0], 1)
        # The folder is this user's alone.
        self.assertEqual((self.folder / "run").stat().st_mode & 0o777, 0o700)

        status, text, _ = self.ask("stacks", "--rank", "1", "night")
        self.assertEqual(status, 0)
        self.assertIn(f"rank 1 (pid {seen['ranks'][1]['pid']})", text)
        self.assertNotIn("rank 0", text)
        self.stop.touch()
        self.assertEqual(job.wait(patience(30)), 0)
        self.assertFalse((self.folder / "run").exists())
        status, text, error = self.ask("status")
        self.assertEqual((status, text), (1, ""))
        self.assertIn("no job of yours runs", error)

    def test_a_node_that_is_being_checked_is_shown_as_that(self):
        fit = self.folder / "fit"
        job = self.start("--node-check", f"until test -e {fit}; do sleep 0.02; done", "sleep", "1000")
        seen = self.until(self.snapshot, "the job")
        self.assertEqual(seen[0]["state"], "checking")
        self.assertIn("waiting for its --node-check for", self.ask("status")[1])
        fit.touch()
        self.until(lambda: self.snapshot()[0]["state"] == "running", "the job after the check")
        job.send_signal(signal.SIGTERM)
        self.assertEqual(job.wait(patience(30)), 75)

    def test_a_job_whose_socket_was_removed_is_found_again(self):
        job = self.start_job()
        seen = self.steps_told()
        run = self.folder / "run"
        run.rename(self.folder / "gone")
        found = self.until(self.snapshot, "the job")
        self.assertEqual(found[0]["launcher_id"], seen["launcher_id"])
        # The guard knows the new one.
        job.kill()
        job.wait(patience(30))
        self.until(lambda: not run.exists(), "the end of the guard")

    def test_a_killed_launcher_is_not_shown_and_a_halted_one_is_named(self):
        killed = self.start("sleep", "1000")
        self.until(lambda: [job for job in self.snapshot() if job["ranks"]], "the job")
        self.assertEqual(self.ask("logs")[0], 1)  # It writes no files.
        killed.send_signal(signal.SIGSTOP)
        status, text, _ = self.ask("status")
        self.assertEqual(status, 0)
        self.assertIn(f"launcher {killed.pid} does not answer", text)
        killed.kill()
        killed.wait()
        self.assertEqual(self.snapshot(), [])  # Whether its guard process has removed the socket or not yet.
        self.until(lambda: not list((self.folder / "run").glob("*")), "the socket's end")

    def test_stacks_of_a_job_in_a_pid_namespace_are_not_those_of_strangers(self):
        namespace = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
        if subprocess.run([*namespace, "true"], stderr=subprocess.DEVNULL).returncode != 0:
            self.skipTest("this user may not make a PID namespace (unshare --pid)")
        job = subprocess.Popen([*namespace, DDPRUN, "--rdzv-id", "contained", "sh", "-c", "exec sleep 1000"],
                               env=self.environment, cwd=self.folder, stdin=subprocess.DEVNULL)
        self.stack.callback(lambda: (job.kill(), job.wait()))
        self.until(lambda: [each for each in self.snapshot() if each["ranks"]], "the job")
        status, text, error = self.ask("stacks", "contained")
        self.assertEqual(status, 0, error)
        self.assertIn("sleep: in ", text)

    def test_what_cannot_be_said_is_an_error(self):
        for words in (["status", "--json"], ["env"], ["--help"], ["--dry-run", "true"]):
            with open("/dev/full", "w") as full:
                done = subprocess.run([DDPRUN, *words], env=self.environment, cwd=self.folder, stdout=full,
                                      stderr=subprocess.PIPE, text=True, timeout=patience(30))
            self.assertNotEqual(done.returncode, 0, words)
            why = "a part of it was refused" if words == ["--help"] else "No space left on device"  # Of many buffers.
            self.assertIn(f"cannot write to standard output: {why}", done.stderr)

    def test_a_reader_that_is_late_is_waited_for_whatever_others_have_made_of_its_pipe(self):
        commands = [[DDPRUN, "--help"]]
        if (BIN / "train").exists():
            commands.append([str(BIN / "train"), "--data", str(SOURCE / "data/mnist"), "--print-sample-order"])
        for words in commands:
            whole = subprocess.run(words, env=self.environment, stdout=subprocess.PIPE, timeout=patience(30)).stdout
            reader, writer = os.pipe()
            capacity = fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
            self.assertGreater(len(whole), capacity)
            os.set_blocking(writer, False)
            process = subprocess.Popen(words, env=self.environment, stdout=writer, stderr=subprocess.PIPE)
            waiting = lambda: struct.unpack("i", fcntl.ioctl(reader, termios.FIONREAD, bytes(4)))[0]
            self.until(lambda: waiting() >= capacity or process.poll() is not None, "a full pipe")
            self.assertFalse(os.get_blocking(writer), "the others' end is theirs")
            os.close(writer)
            with open(reader, "rb") as pipe:
                self.assertEqual(pipe.read(), whole)
            self.assertEqual((process.wait(patience(30)), process.stderr.read()), (0, b""))
            process.stderr.close()

    def test_a_program_of_a_commands_name_is_run(self):
        program = self.folder / "status"
        program.write_text("#!/bin/sh\necho \"the program has $*\"\n")
        program.chmod(0o755)
        for words in (["--", "status", "x"], ["./status", "x"], ["--nproc-per-node", "1", "status", "x"]):
            status, text, error = self.ask(*words)
            self.assertEqual((status, text), (0, "the program has x\n"), error)
        self.assertEqual(self.ask("status")[0], 1)
        status, text, error = self.ask("status", "--rank", "1")
        self.assertEqual((status, text), (2, ""))
        self.assertIn("unknown option --rank", error)

    def test_logs_are_followed_over_a_restart_to_the_end_of_the_job(self):
        job = self.start_job("--redirects", "3", "--log-dir", str(self.folder / "logs"))
        self.steps_told()
        status, text, _ = self.ask("logs")
        self.assertEqual(status, 0)
        self.assertEqual(sorted(text.splitlines()), ["[0]: attempt 1 of rank 0", "[1]: attempt 1 of rank 1"])
        follower = self.start("logs", "-f", "--rank", "0", "night")
        self.assertEqual(follower.stdout.readline(), "attempt 1 of rank 0\n")
        self.stop.touch()
        self.assertEqual(follower.stdout.readline(), "rank 0 is done\n")
        self.assertEqual(follower.wait(patience(30)), 0)
        self.assertEqual(job.wait(patience(30)), 0)

    def read_files_job(self, script, *options):
        """A job of one worker that is called "night" and writes files; it ends when `stop` is there."""
        # Whole at any moment: the shell of an earlier job may be about to read it.
        (self.folder / "worker.new").write_text(script)
        (self.folder / "worker.new").rename(self.folder / "worker.sh")
        return self.start("--rdzv-id", "night", "--redirects", "3", "--log-dir", str(self.folder / "logs"), *options, "sh", "worker.sh")

    def test_logs_of_attempts_that_nobody_saw_are_followed_to_the_last_line(self):
        # The first attempt waits for a follower, the others are over between two looks at the job.
        job = self.read_files_job(f"echo attempt $TORCHELASTIC_RESTART_COUNT; echo error $TORCHELASTIC_RESTART_COUNT >&2\n"
                                  f"until [ -e {self.stop} ]; do sleep 0.05; done; exit 1\n",
                                  "--max-restarts", "3", "--restart-backoff", "0")
        self.until(lambda: "error 0" in self.ask("logs", "night")[1], "the first attempt's lines")
        follower = self.start("logs", "-f", "night")
        self.assertIn(" 0", follower.stdout.readline() + follower.stdout.readline())
        self.stop.touch()
        rest = follower.stdout.read()
        self.assertEqual(follower.wait(patience(30)), 0)
        self.assertEqual(job.wait(patience(30)), 1)
        self.assertEqual(sorted(rest.split("\n")[:-1]), sorted(f"{what} {i}" for i in (1, 2, 3) for what in ("attempt", "error")))

    def test_logs_are_followed_over_restarts_with_few_descriptors(self):
        attempts = 8
        script = (f"i=$TORCHELASTIC_RESTART_COUNT; echo attempt $i\n"
                  f"until [ -e {self.folder}/go.$i ]; do sleep 0.02; done\n[ $i = {attempts - 1} ]\n")
        job = self.read_files_job(script, "--nproc-per-node", "2", "--max-restarts", str(attempts), "--restart-backoff", "0",
                                  "--max-same-failures", "0")
        self.until(lambda: "[1]: attempt 0" in self.ask("logs", "night")[1], "the first attempt's lines")
        # Two ranks of two files each: not enough for those of all attempts at once.
        follower = self.start("logs", "-f", "night", open_files=28)
        for i in range(attempts):
            self.assertEqual(sorted(follower.stdout.readline() for _ in range(2)),
                             [f"[{rank}]: attempt {i}\n" for rank in range(2)])
            (self.folder / f"go.{i}").touch()
        self.assertEqual(follower.stdout.read(), "")
        self.assertEqual((follower.wait(patience(30)), job.wait(patience(30))), (0, 0))

        # Where not even one attempt's can be open it is said, and no end of the job.
        self.start("--nproc-per-node", "8", "--redirects", "3", "--log-dir", str(self.folder / "logs"), "sleep", "1000")
        self.until(lambda: any(len(job["ranks"]) == 8 for job in self.snapshot()), "eight ranks")
        follower = self.start("logs", "-f", "sleep", open_files=16)
        self.assertIn("Too many open files", follower.stdout.read())
        self.assertEqual(follower.wait(patience(30)), 70)

    def test_a_progress_bar_is_followed_by_its_states(self):
        job = self.read_files_job(f"echo begin; i=0\nuntil [ -e {self.stop} ]; do i=$((i + 1)); printf '\\rstep %d' $i >&2; sleep 0.02; done\n"
                                  f"printf '\\rstep %d\\n' $i >&2; echo end\n")
        self.until(lambda: "begin" in self.ask("logs", "night")[1], "the first line")
        follower = self.start("logs", "-f", "night")
        self.assertEqual(follower.stdout.readline(), "begin\n")
        limit = threading.Timer(patience(30), self.stop.touch)  # Its end would come to a follower in any case.
        limit.start()
        self.stack.callback(limit.cancel)
        seen = [int(re.fullmatch(r"step (\d+)\n", follower.stdout.readline()).group(1)) for _ in range(2)]
        self.assertLess(seen[0], seen[1])
        self.assertFalse(self.stop.exists())
        self.assertRegex(self.ask("logs", "night")[1], r"\Abegin\nstep \d+\n\Z")
        self.stop.touch()
        self.assertRegex(follower.stdout.read(), r"\A(step \d+\n)*end\n(step \d+\n)?\Z")
        self.assertEqual((follower.wait(patience(30)), job.wait(patience(30))), (0, 0))

    def test_logs_are_read_over_rotated_files_from_the_first_and_from_the_last(self):
        numbers = [str(1000 + i) for i in range(3000)]
        more = [str(4000 + i) for i in range(3000)]
        job = self.read_files_job(f"seq 1000 3999; echo whole >&2; until [ -e {self.stop} ]; do sleep 0.05; done; seq 4000 6999\n",
                                  "--log-rotate", "4096")
        self.until(lambda: "whole" in self.ask("logs", "night")[1], "the worker's last word")
        self.until(lambda: "3999" in self.ask("logs", "night")[1], "the worker's last number")
        self.assertEqual([line for line in self.ask("logs", "night")[1].split() if line != "whole"], numbers)
        self.assertEqual([line for line in self.ask("logs", "-n", "1500", "night")[1].split() if line != "whole"], numbers[-1500:])
        follower = self.start("logs", "-f", "-n", "2500", "night")
        read = [follower.stdout.readline().strip() for _ in range(2501)]
        self.stop.touch()
        read += follower.stdout.read().split()
        self.assertEqual([line for line in read if line != "whole"], numbers[-2500:] + more)
        self.assertEqual(follower.wait(patience(30)), 0)
        self.assertEqual(job.wait(patience(30)), 0)

    def test_lines_of_several_jobs_say_whose_they_are(self):
        wait = f"echo up; until [ -e {self.stop} ]; do sleep 0.05; done\n"
        jobs = [self.read_files_job(wait, "--nproc-per-node", str(workers)) for workers in (1, 2)]
        self.until(lambda: sum(len(job["ranks"]) for job in self.snapshot()) == 3, "three workers")
        follower = self.start("logs", "-f", "night")
        text = self.ask("stacks")[1]
        for job in jobs:
            self.assertRegex(text, rf"(?m)^night: sh \(launcher {job.pid} on .*\)\nrank 0 ")
        expected = [f"[{jobs[0].pid}, 0]: up\n", f"[{jobs[1].pid}, 0]: up\n", f"[{jobs[1].pid}, 1]: up\n"]
        self.assertEqual(sorted(follower.stdout.readline() for _ in expected), sorted(expected))
        self.stop.touch()
        self.assertEqual(follower.wait(patience(30)), 0)

    def test_a_halted_launcher_is_named_by_its_jobs_name_and_its_logs_are_followed_on(self):
        job = self.start_job("--redirects", "3", "--log-dir", str(self.folder / "logs"))
        self.steps_told()
        follower = self.start("logs", "-f", "--rank", "0", "night")
        self.assertEqual(follower.stdout.readline(), "attempt 1 of rank 0\n")
        top = self.start("top", "-i", "0.1", "night")
        self.assertIn("night: ", top.stdout.readline())
        job.send_signal(signal.SIGSTOP)
        silent = f"launcher {job.pid} does not answer"
        for command in ("status", "logs", "stacks"):
            self.assertIn(silent, "".join(self.ask(command, "night")[1:]))
        for line in top.stdout:  # It has looked at the halted launcher, and so has the follower.
            if silent in line:
                break
        else:
            self.fail("top ended")
        job.send_signal(signal.SIGCONT)
        self.stop.touch()
        self.assertEqual(follower.stdout.readline(), "rank 0 is done\n")
        top.stdout.read()
        self.assertEqual((follower.wait(patience(30)), top.wait(patience(30)), job.wait(patience(30))), (0, 0, 0))

    def test_top_into_a_pipe_is_text_until_the_job_ends(self):
        job = self.start_job()
        self.steps_told()
        top = self.start("top", "-i", "0.1")
        lines = [top.stdout.readline() for _ in range(20)]
        self.assertGreaterEqual(sum("night: " in line for line in lines), 2)
        self.assertNotIn("\033", "".join(lines))
        self.stop.touch()
        top.stdout.read()
        self.assertEqual(top.wait(patience(30)), 0)
        self.assertEqual(job.wait(patience(30)), 0)


class Nodes(WithJob):
    """Two launchers that find neither each other's sockets nor files, as on two hosts."""

    def node(self, rank, *options, host=None):
        worker = self.folder / "worker.py"
        # Its rank 1 fails in the first attempt, which is of no interest here.
        worker.write_text(WORKER.format(examples=str(SOURCE / "examples"), stop=str(self.stop)).replace("rank == 1", "False"))
        self.at(rank if host is None else host)
        return self.start("--nproc-per-node", "2", "--nnodes", "2", "--node-rank", str(rank), "--master-addr", "127.0.0.1",
                          "--master-port", str(self.port), "--rdzv-id", "night", "--rdzv-conf", "heartbeat_timeout=600",
                          "--redirects", "3", "--log-dir", str(self.folder / f"logs{rank}"), *options, str(worker))

    def at(self, host):
        """What is started from here on is on this host."""
        self.environment["DDPRUN_RUN_DIR"] = str(self.folder / f"run{host}")

    def secret_file(self, name, text):
        path = self.folder / name
        path.write_text(text)
        path.chmod(0o600)
        return str(path)

    def all_tell(self, host, *words):
        """The snapshot there, once the ranks of both nodes have told steps."""
        def look():
            self.at(host)
            jobs = self.snapshot(*words)
            if not jobs or len(jobs[0]["others"]) != 1:
                return None
            ranks = jobs[0]["ranks"] + jobs[0]["others"][0]["ranks"]
            told = all(rank["progress"] and (rank["progress"]["step"] or 0) > 1 for rank in ranks)
            return jobs[0] if len(ranks) == 4 and told else None
        return self.until(look, f"all ranks at {host}")

    def setUp(self):
        super().setUp()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]

    def test_stacks_of_all_nodes_are_taken_at_the_same_time(self):
        calls = self.folder / "calls"
        calls.mkdir()
        spy = self.folder / "bin" / "py-spy"
        spy.parent.mkdir()
        # Nobody is answered before all four ranks of both nodes are looked into.
        spy.write_text(f"""#!/bin/sh
: > {calls}/$3
while [ $(ls {calls} | wc -l) -lt 4 ]; do sleep 0.02; done
echo "Process $3: one of $(ls {calls} | wc -l)"
""")
        spy.chmod(0o700)
        self.environment["PATH"] = f"{spy.parent}:{self.environment['PATH']}"
        for rank in range(2):
            self.node(rank)
        for host in (1, 0):
            seen = self.all_tell(host)
            for call in calls.iterdir():
                call.unlink()
            status, text, error = self.ask("stacks")
            self.assertEqual(status, 0, error)
            self.assertNotIn("py-spy did not", text)
            ranks = sorted(seen["ranks"] + seen["others"][0]["ranks"], key=lambda rank: rank["rank"])
            self.assertEqual(re.findall(r"(?m)^node (\d) on |^rank (\d) |^    Process (\d+): one of 4$", text),
                             [found for rank in ranks for found in
                              ([(str(rank["rank"] // 2), "", "")] if rank["rank"] % 2 == 0 else []) +
                              [("", str(rank["rank"]), ""), ("", "", str(rank["pid"]))]], text)

    def test_every_host_shows_all_nodes_to_who_has_the_secret_alone(self):
        right, wrong = self.secret_file("right", "r" * 64), self.secret_file("wrong", "w" * 64)
        metrics = self.folder / "metrics"
        secured = ["--auth", "secret", "--secret-file", right]
        jobs = [self.node(0, *secured, "--metrics-file", str(metrics)), self.node(1, *secured)]
        endpoint = ["--endpoint", f"127.0.0.1:{self.port}", "--auth", "secret"]
        asked = [*endpoint, "--secret-file", right, "night"]

        for host, first_rank in ((0, 0), (1, 2)):
            seen = self.all_tell(host)
            self.assertEqual([rank["rank"] for rank in seen["ranks"]], [first_rank, first_rank + 1])
            other = seen["others"][0]
            self.assertEqual([rank["rank"] for rank in other["ranks"]], [2 - first_rank, 3 - first_rank])
            self.assertEqual((other["node_rank"], other["launcher_pid"]), (1 - host, jobs[1 - host].pid))
            self.assertLess(other["age_s"], patience(3))
            self.assertGreater(other["ranks"][0]["rss_bytes"], 1 << 20)
        seen = self.all_tell("elsewhere", *asked)
        self.assertEqual(seen["launcher_pid"], jobs[0].pid)
        status, text, _ = self.ask("status", *asked)
        self.assertEqual(status, 0)
        self.assertRegex(text, r"(?s)node 0 on .*\n +0 .*\n +1 .*\nnode 1 on .*\n +2 .*\n +3 +\d+ +\d+ train ")

        # Logs and stacks of ranks on other hosts.
        status, text, error = self.ask("logs", "--rank", "3", *asked)
        self.assertEqual(status, 0, error)
        self.assertIn("[3]: attempt 0 of rank 3", text)
        self.at(0)
        self.assertIn("[3]: attempt 0 of rank 3", self.ask("logs", "--rank", "3")[1])
        status, text, error = self.ask("stacks", "--rank", "3", *asked)
        self.assertEqual(status, 0, error)
        self.assertIn(f"rank 3 (pid {seen['others'][0]['ranks'][1]['pid']})", text)
        self.assertNotIn("rank 2 (", text)
        self.until(lambda: metrics.exists() and 'rank="3"' in metrics.read_text(), "rank 3 in node 0's metrics")

        # Others see nothing, not even whether the job's id was right.
        for words in ([*endpoint, "--secret-file", wrong, "night"], [*endpoint, "--secret-file", right, "day"],
                      [endpoint[0], endpoint[1], "--auth", "none", "night"]):
            status, text, error = self.ask("status", *words)
            self.assertEqual((status, text), (73, ""), error)
            self.assertIn("does not tell", error)
        self.assertEqual(self.ask("status", *endpoint, "--secret-file", str(self.folder / "none"), "night")[0], 2)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            nobody = f"127.0.0.1:{free.getsockname()[1]}"
            self.assertEqual(self.ask("status", "--endpoint", nobody, "--auth", "none", "night")[0], 1)

        # A node that is cut off is shown as silent, with what it said last.
        jobs[1].send_signal(signal.SIGSTOP)
        silent = r"node 1 on \S+: silent for \d+(\.\d)? s, was running"
        self.until(lambda: re.search(silent, self.ask("status", *asked)[1]), "the silence of node 1")
        self.assertRegex(self.ask("status", *asked)[1], r"\n +3 +\d+ ")
        jobs[1].send_signal(signal.SIGCONT)
        self.until(lambda: "silent" not in self.ask("status", *asked)[1], "the end of its silence")
        self.stop.touch()
        for job in jobs:
            self.assertEqual(job.wait(patience(30)), 0)

    def test_logs_wait_for_the_nodes_and_show_all_that_are_here(self):
        self.at(0)
        first = self.node(0)
        self.until(lambda: self.snapshot(), "the first launcher")
        status, _, error = self.ask("logs", "night")
        self.assertEqual(status, 1)
        self.assertIn("has not started workers yet", error)
        follower = self.start("logs", "-f", "night")
        self.assertIn("no workers yet", follower.stdout.readline())
        second = self.node(1)  # Its socket is in another folder: the follower sees the first alone.
        self.assertEqual(sorted(follower.stdout.readline() for _ in range(2)),
                         ["[0]: attempt 0 of rank 0\n", "[1]: attempt 0 of rank 1\n"])
        self.stop.touch()
        self.assertEqual([job.wait(patience(30)) for job in (first, second, follower)], [0, 0, 0])

    def test_logs_follow_all_launchers_of_a_job_on_this_host(self):
        jobs = [self.node(rank, host=0) for rank in (0, 1)]
        self.all_tell(0)
        follower = self.start("logs", "-f", "--rank", "2", "night")
        self.assertEqual(follower.stdout.readline(), "attempt 0 of rank 2\n")
        self.assertRegex(self.ask("logs", "night")[1], r"(?m)^\[0\]: attempt 0 of rank 0$")
        self.stop.touch()
        self.assertEqual(follower.stdout.read(), "rank 2 is done\n")
        self.assertEqual([job.wait(patience(30)) for job in jobs], [0, 0])

    def test_logs_of_several_jobs_say_whose_they_are_and_who_has_none(self):
        night = [self.node(rank, host=0) for rank in (0, 1)]
        self.all_tell(0)
        waits = f"until [ -e {self.stop} ]; do sleep 0.05; done"
        plain = self.start("--rdzv-id", "plain", "sh", "-c", waits)
        self.until(lambda: self.snapshot("plain") and self.snapshot("plain")[0]["ranks"], "the other job's worker")
        status, text, error = self.ask("logs")
        self.assertEqual(status, 0, error)
        self.assertRegex(text, r"(?m)^night: .*/worker.py \(launcher \d+ on .*\)\nnode \d on ")
        self.assertRegex(error, rf"^ddprun logs: plain: sh \(launcher {plain.pid} on .*\) writes to its console alone; "
                                "start it with --tee 3 ")
        self.stop.touch()
        self.assertEqual([job.wait(patience(30)) for job in (*night, plain)], [0, 0, 0])

    def test_a_job_without_a_secret_tells_who_is_on_its_machine(self):
        jobs = [self.node(rank) for rank in (0, 1)]
        endpoint = ["--endpoint", f"127.0.0.1:{self.port}"]
        seen = self.all_tell("elsewhere", *endpoint, "night")
        self.assertEqual(len(seen["others"]), 1)
        self.assertEqual(self.ask("status", *endpoint, "day")[0], 73)

        # A coordinator that is late for a while has not ended, for who looks on.
        top = self.start("top", "-i", "0.1", *endpoint, "night")
        self.assertIn("night: ", top.stdout.readline())
        jobs[0].send_signal(signal.SIGSTOP)
        for wanted in ("does not answer", "night: "):
            for line in top.stdout:
                if wanted in line:
                    break
            else:
                self.fail(f"top ended before it said: {wanted}")
            jobs[0].send_signal(signal.SIGCONT)
        self.stop.touch()
        self.assertIn("nobody listens", top.stdout.read())
        self.assertEqual(top.wait(patience(30)), 0)
        for job in jobs:
            self.assertEqual(job.wait(patience(30)), 0)

    def test_top_goes_on_with_the_node_that_takes_the_job_over(self):
        worker = self.folder / "worker.py"
        worker.write_text(WORKER.format(examples=str(SOURCE / "examples"), stop=str(self.stop)).replace("rank == 1", "False"))
        endpoint = f"127.0.0.1:{self.port}"
        jobs = []
        for host in range(3):
            self.at(host)
            jobs.append(self.start("--nnodes", "2:3", "--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint, "--rdzv-id", "night",
                                   "--max-restarts", "1", "--rdzv-conf", "last_call_timeout=1", str(worker)))
            self.until(lambda: self.snapshot(), "the launcher")  # The first one hosts the endpoint.
        self.at("elsewhere")

        def whole():
            seen = self.snapshot("--endpoint", endpoint, "night")
            return seen and [bool(node["port"]) for node in seen[0]["others"]] == [True, True]
        self.until(whole, "the job of three")
        top = self.start("top", "-i", "0.1", "--endpoint", endpoint, "night")
        self.assertIn(f"launcher {jobs[0].pid} on", top.stdout.readline())
        jobs[0].kill()
        for line in top.stdout:
            if re.search(f"launcher ({jobs[1].pid}|{jobs[2].pid}) on", line):
                break
        else:
            self.fail("top took the job for over")
        self.stop.touch()
        self.assertIn("nobody listens", top.stdout.read())
        self.assertEqual(top.wait(patience(30)), 0)
        for job in jobs[1:]:
            self.assertEqual(job.wait(patience(30)), 0)


@unittest.skipUnless((BIN / "train").exists(), "train is not built here")
class Training(WithJob):
    def test_the_loss_that_is_shown_is_the_one_that_is_printed(self):
        """With shards, too, of which a worker has several."""
        for shards in ((), ("--shards", "4")):
            with self.subTest(shards), tempfile.TemporaryDirectory() as folder:
                shown, printed = (pathlib.Path(folder) / name for name in ("shown", "printed"))
                job = self.start("--nproc-per-node", "2", "--metrics-file", str(shown), str(BIN / "train"), "--dataset",
                                 "synthetic", "--image-size", "16", "--synthetic-images", "512", "--synthetic-classes", "10",
                                 "--model", "resnet20", "--batch-size", "8", "--device", "cpu", "--no-validation", "--steps",
                                 "6", "--print-freq", "1", "--metrics", str(printed), *shards)
                job.stdout.read()
                self.assertEqual(job.wait(patience(60)), 0)
                losses = [line["loss"] for line in map(json.loads, printed.read_text().splitlines())
                          if line["event"] == "train"]
                rank = re.search(r'ddprun_rank_loss\{.*rank="0".*\} (\S+)', shown.read_text())
                self.assertAlmostEqual(float(rank.group(1)), losses[-1], places=4)

    def test_train_tells_its_steps_and_a_rank_that_stands_is_seen(self):
        self.environment["OMP_NUM_THREADS"] = "1"
        job = self.start("--nproc-per-node", "2", str(BIN / "train"), "--dataset", "synthetic", "--image-size", "16",
                         "--synthetic-images", "512", "--synthetic-classes", "10", "--model", "resnet20", "--batch-size", "16",
                         "--device", "cpu", "--no-validation", "--epochs", "1000")

        def told():
            jobs = self.snapshot()
            ranks = [rank["progress"] for rank in jobs[0]["ranks"]] if jobs else []
            return jobs[0] if len(ranks) == 2 and all(said and (said["step"] or 0) > 3 for said in ranks) else None
        ranks = self.until(told, "steps of both ranks")["ranks"]
        for rank in ranks:
            said = rank["progress"]
            self.assertEqual(said["total_steps"], 16 * 1000)
            self.assertEqual(said["images"], 16 * said["step"])
            self.assertGreaterEqual(said["epoch"], 1)
            self.assertGreater(said["images_per_s"], 0)
            self.assertGreater(said["step_s"], said["data_s"])
            self.assertGreater(said["step_s"], said["wait_s"])
            self.assertGreater(said["wait_total_s"], 0)
            self.assertGreater(said["loss"], 0)

        # Each answers with its own stack, and trains on. Of what oneDNN has compiled while it ran, no way leads back to
        # the caller: who is met there tells an address alone.
        def stacks_of_train():
            status, text, _ = self.ask("stacks")
            self.assertEqual(status, 0)
            parts = re.split(r"(?m)^rank ", text)[1:]
            return len(parts) == 2 and all("ddprun::trainer::train(" in part for part in parts)
        self.until(stacks_of_train, "the stacks of both ranks")
        step = ranks[0]["progress"]["step"]
        self.until(lambda: self.snapshot()[0]["ranks"][0]["progress"]["step"] > step + 3, "a step behind the question")

        # Rank 0 is not blamed for waiting.
        os.kill(ranks[1]["pid"], signal.SIGSTOP)
        self.until(lambda: self.snapshot()[0]["ranks"][0]["progress"]["phase"] == "all-reduce", "rank 0's wait")
        self.until(lambda: re.search(r"(?m)^ +1 +\d+ +\d+/16000 halted", self.ask("status")[1]), "rank 1's halt")
        os.kill(ranks[1]["pid"], signal.SIGCONT)
        job.terminate()
        self.assertEqual(job.wait(patience(60)), 75)


class Terminal:
    """A program on a terminal of 24 lines and 80 columns."""

    def __init__(self, words, environment):
        self.output = b""
        begin, ready = os.pipe()
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.read(begin, 1)  # Once the terminal is as it should be found, and was looked at.
            os.execve(words[0], words, dict(environment, TERM="xterm"))
        self.resize(24, 80)
        self.flags_before = self.flags()
        os.write(ready, b".")
        os.close(begin)
        os.close(ready)

    def resize(self, rows, columns):
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def read_until(self, wanted, after=0):
        """Reads until its output from `after` on holds `wanted`; returns what came from there on."""
        end = time.monotonic() + patience(30)
        while wanted not in self.output[after:]:
            if time.monotonic() > end:
                raise AssertionError(f"{wanted} did not come: {self.output[after:][-3000:]}")
            if select.select([self.fd], [], [], 0.1)[0]:
                try:
                    self.output += os.read(self.fd, 65536)
                except OSError:  # Its end is closed.
                    break
        return self.output[after:]

    def write(self, keys):
        os.write(self.fd, keys)

    def flags(self):
        return termios.tcgetattr(self.fd)[3] & (termios.ICANON | termios.ECHO)

    def wait(self):
        self.read_until(b"\033[?1049l")
        end = time.monotonic() + patience(30)
        while time.monotonic() < end:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.pid = 0
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.01)
        raise AssertionError("top did not end")

    def close(self):
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.fd)


class OnTerminal(WithJob):
    def top(self):
        terminal = Terminal([DDPRUN, "top", "-i", "0.1", "night"], self.environment)
        self.stack.callback(terminal.close)
        self.assertEqual(terminal.flags_before, termios.ICANON | termios.ECHO)
        terminal.read_until(b"q quit")
        self.assertEqual(terminal.flags(), 0)
        return terminal

    def ended(self, terminal):
        """Its exit status, when the terminal is as it was."""
        status = terminal.wait()
        self.assertTrue(terminal.output.rstrip().endswith(b"\033[?25h\033[?1049l"), terminal.output[-200:])
        return status

    def test_top_fits_a_terminal_of_80_by_24_and_leaves_it_as_it_was(self):
        self.start_job()
        self.steps_told()
        terminal = self.top()
        drawn = len(terminal.output)
        screen = terminal.read_until(b"q quit", after=drawn)  # One more, whole.
        screen = terminal.read_until(b"\033[J", after=drawn)
        for line in re.split(rb"\r*\n", screen):
            text = re.sub(rb"\033\[[0-9;?]*[A-Za-z]", b"", line)
            self.assertLessEqual(len(text), 80, line)
        frame = terminal.output[terminal.output.rfind(b"\033[H", 0, terminal.output.rfind(b"\033[J")):]
        self.assertEqual(frame.split(b"\033[J")[0].count(b"\n"), 23)
        self.assertIn(b"the data ran out", frame)
        self.assertRegex(frame, rb"train")

        # A small window shows what fits.
        at = len(terminal.output)
        terminal.resize(4, 50)
        frames = terminal.read_until(b"lines 1-3", after=at)
        last = frames[frames.rfind(b"\033[H"):]
        for line in re.split(rb"\r*\n", last):
            self.assertLessEqual(len(re.sub(rb"\033\[[0-9;?]*[A-Za-z]", b"", line)), 50)
        terminal.resize(24, 80)

        # Stacks and back.
        at = len(terminal.output)
        terminal.write(b"s")
        self.assertIn(b"rank 1 (pid", terminal.read_until(b"any key: back", after=at))
        at = len(terminal.output)
        terminal.write(b"x")
        terminal.read_until(b"q quit", after=at)
        terminal.write(b"q")
        self.assertEqual(self.ended(terminal), 0)

    def test_top_gives_the_terminal_back_whatever_ends_it(self):
        self.start_job()
        self.steps_told()
        for cause, status in ((b"\003", 0), (signal.SIGTERM, 128 + signal.SIGTERM), (signal.SIGHUP, 128 + signal.SIGHUP)):
            terminal = self.top()
            if isinstance(cause, bytes):
                terminal.write(cause)
            else:
                os.kill(terminal.pid, cause)
            self.assertEqual(self.ended(terminal), status)
        # The end of the job is told, and the last state stays to be read.
        terminal = self.top()
        self.stop.touch()
        terminal.read_until(b"the job has ended")
        terminal.write(b"q")
        self.assertEqual(self.ended(terminal), 0)


unittest.main(argv=["watching_test.py", *sys.argv[3:]])
