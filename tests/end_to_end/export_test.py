"""What a running job tells others: metrics in a file and over HTTP, its page, and Kubeflow Trainer's server.

  export_test.py SOURCE_DIR BIN_DIR [browser]
"""
import contextlib
import http.server
import json
import os
import pathlib
import re
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.error
import urllib.parse
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import browser
from patience import patience

BIN = pathlib.Path(sys.argv[2]).resolve()
IN_BROWSER = sys.argv[3:] == ["browser"]
LIMIT_S = 120  # Of each wait, on an idle machine.

# Rank 1 of the first attempt fails when the file `fail` is there, and asks to be queued again when `again` is; all end
# when `end` is.
WORKER = """
while [ ! -e end ]; do
  if [ $RANK = 1 ] && [ $TORCHELASTIC_RESTART_COUNT = 0 ] && [ -e fail ]; then echo 'no <b>luck</b>' >&2; exit 7; fi
  if [ $RANK = 1 ] && [ -e again ]; then exit 75; fi
  sleep 0.1
done
"""

# Tells its step of 80 in epoch 3, which the test has put into a file, and a loss that falls with it. Rank 1 of the first
# attempt fails when the file `fail` is there. Each ends when `end` or `end` and its rank is.
REPORTING_WORKER = f"""
import os, struct, sys, time
sys.path.insert(0, {str(pathlib.Path(sys.argv[1]).resolve() / "examples")!r})
from progress_page import page, report
while not os.path.exists("end") and not os.path.exists("end" + os.environ["RANK"]):
    if os.path.exists("fail") and os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        sys.exit(7)
    if os.path.exists("step"):
        step = int(open("step").read())
        struct.pack_into("=qq", page, 40, 80, 3)
        report(step, "forward", 100 / step, 64.0)
    time.sleep(0.05)
"""

# Its child has one that uses 0.3 s of a processor. When `leave` is there the child ends, and leaves the other behind.
LEAVING_WORKER = """
import os, time
def wait_for(name):
    while not os.path.exists(name):
        time.sleep(0.05)
child = os.fork()
if child == 0:
    if os.fork() == 0:
        while time.process_time() < 0.3:
            pass
        open("used" + os.environ["RANK"], "w").close()
        wait_for("end")
    else:
        wait_for("leave")
    os._exit(0)
os.waitpid(child, 0)
wait_for("end")
"""


class Job:
    """A ddprun that runs until its folder has a file `end`."""

    def __init__(self, *options, variables=None, program=("/bin/sh", "worker.sh")):
        self.place = tempfile.TemporaryDirectory(prefix="ddprun_export_")
        self.folder = pathlib.Path(self.place.name)
        (self.folder / "worker.sh").write_text(WORKER)
        (self.folder / "reporting.py").write_text(REPORTING_WORKER)
        (self.folder / "leaving.py").write_text(LEAVING_WORKER)
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("PET_", "SLURM_", "KUBEFLOW_"))}
        self.log = open(self.folder / "log", "w")
        self.process = subprocess.Popen(
            [BIN / "ddprun", "--nproc-per-node", "2", "--max-restarts", "1", "--restart-backoff", "0.01", *options,
             *program], cwd=self.folder, env={**clean, **(variables or {})}, stdout=self.log, stderr=self.log)

    def said(self):
        return (self.folder / "log").read_text()

    def wait_for(self, what, look):
        end = time.monotonic() + patience(LIMIT_S)
        while time.monotonic() < end:
            found = look()
            if found:
                return found
            assert self.process.poll() is None, f"ddprun ended while {what} was waited for:\n{self.said()}"
            time.sleep(0.05)
        raise AssertionError(f"{what} did not come:\n{self.said()}")

    def reach_step(self, step, metrics_url):
        """For reporting.py: all of its workers have told that step."""
        (self.folder / "step.new").write_text(str(step))
        (self.folder / "step.new").rename(self.folder / "step")
        self.wait_for(f"step {step}", lambda: all(sample(get(metrics_url), rf'ddprun_rank_step\{{.*rank="{rank}".*\}}') == step
                                                  for rank in (0, 1)))

    def url(self, what):
        return self.wait_for(f"the URL of {what}", lambda: re.search(what + r" at (http://\S+)", self.said()))[1]

    def finish(self):
        (self.folder / "end").touch()
        return self.process.wait(patience(LIMIT_S))

    def end_by(self, how):
        if how != "SIGTERM":
            return self.finish()
        self.process.terminate()
        return self.process.wait(patience(LIMIT_S))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.log.close()
        self.place.cleanup()


def get(url, **headers):
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=patience(LIMIT_S)) as answer:
        return answer.read().decode()


def another_user_may_read(url):
    get(url)  # Imports what it takes, which another user may be kept from.
    child = os.fork()
    if child == 0:
        code = 2
        with contextlib.suppress(BaseException):
            os.setuid(54_321)
            try:
                get(url)
                code = 0
            except urllib.error.HTTPError as refused:
                code = 1 if refused.code == 403 else 2
        os._exit(code)
    return {0: True, 1: False}[os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])]


def sample(text, name):
    """The value of the one sample whose name and labels `name` is a pattern of; None: there is none."""
    found = re.findall(rf"^{name} (\S+)$", text, re.MULTILINE)
    assert len(found) < 2, found
    return float(found[0]) if found else None


class Metrics(unittest.TestCase):
    def test_who_connects_and_says_nothing_keeps_nobody_out(self):
        with Job("--metrics-port", "0") as job, contextlib.ExitStack() as stack:
            url = urllib.parse.urlsplit(job.url("metrics"))
            for _ in range(100):
                silent = stack.enter_context(socket.create_connection((url.hostname, url.port), timeout=patience(LIMIT_S)))
                silent.sendall(b"GET /met")
            self.assertIn("ddprun_info", get(url.geturl()))
            self.assertEqual(job.finish(), 0)

    def test_the_port_of_the_metrics_has_no_page_where_another_one_has(self):
        with Job("--metrics-port", "0.0.0.0:0", "--status-page", "0") as job:
            numbers, page = (urllib.parse.urlsplit(job.url(what)).port for what in ("metrics", "status page"))
            for path in ("/", "/content", "/status.json"):
                with self.subTest(path=path):
                    get(f"http://127.0.0.1:{page}{path}")
                    with self.assertRaises(urllib.error.HTTPError) as refused:
                        get(f"http://127.0.0.1:{numbers}{path}")
                    self.assertEqual(refused.exception.code, 404)
            for port in (numbers, page):
                self.assertIn("ddprun_info", get(f"http://127.0.0.1:{port}/metrics"))
            self.assertEqual(job.finish(), 0)

    @unittest.skipUnless(os.geteuid() == 0, "to become another user one must be root")
    def test_other_users_of_the_machine_get_the_numbers_and_not_the_page(self):
        with Job("--metrics-port", "0", "--status-page", "0") as job:
            numbers, page = (urllib.parse.urlsplit(job.url(what)).netloc for what in ("metrics", "status page"))
            self.assertTrue(another_user_may_read(f"http://{numbers}/metrics"))
            for path in ("/", "/status.json", "/metrics"):
                self.assertFalse(another_user_may_read(f"http://{page}{path}"), path)
            self.assertEqual(job.finish(), 0)

    def test_metrics_in_a_file_and_over_http_follow_the_job(self):
        with Job("--metrics-file", "job.prom", "--metrics-port", "0", "--rdzv-id", "job1") as job:
            url = job.url("metrics")
            self.assertRegex(url, r"^http://127\.0\.0\.1:\d+/metrics$")
            running = r'ddprun_workers\{.*state="running"\}'
            # A worker that has just been started is hardly in memory yet.
            memory = r'ddprun_rank_resident_bytes\{.*rank="1".*\}'
            text = job.wait_for("two workers", lambda: (lambda t: t if sample(t, running) == 2 and (sample(t, memory) or 0) > 100_000
                                                        else "")(get(url)))
            self.assertIn('run_id="job1"', text)
            self.assertEqual(sample(text, r"ddprun_failures_total\{.*\}"), 0)
            (job.folder / "fail").touch()
            text = job.wait_for("the second attempt", lambda: (lambda t: t if sample(t, r"ddprun_attempt\{.*\}") == 1 else "")(get(url)))
            self.assertEqual(sample(text, r"ddprun_failures_total\{.*\}"), 1)
            file = job.wait_for("the file", lambda: (job.folder / "job.prom").exists() and (job.folder / "job.prom").read_text())
            self.assertEqual(file.count("# TYPE ddprun_attempt gauge"), 1)
            for path, status in (("/", 404), ("/status.json", 404)):
                with self.subTest(path=path), self.assertRaises(urllib.error.HTTPError) as refused:
                    get(url.removesuffix("/metrics") + path)
                self.assertEqual(refused.exception.code, status)
            with self.assertRaises(urllib.error.HTTPError) as refused:
                get(url, Host="evil.example")
            self.assertEqual(refused.exception.code, 403)
            self.assertEqual(job.finish(), 0, job.said())
            last = (job.folder / "job.prom").read_text()
            self.assertEqual(sample(last, r'ddprun_workers\{.*state="succeeded"\}'), 2)
            self.assertEqual(sample(last, r'ddprun_node_state\{.*state="running"\}'), 0)
            self.assertEqual([path.name for path in job.folder.iterdir() if "prom" in path.name], ["job.prom"])

    def test_who_asks_again_at_once_gets_the_same_metrics(self):
        with Job("--metrics-port", "0") as job:
            url = job.url("metrics")
            began = time.monotonic()
            answers = [get(url) for _ in range(100)]
            looks = 2 + (time.monotonic() - began) / 0.1
            self.assertLessEqual(len(set(answers)), looks)
            self.assertEqual(job.finish(), 0, job.said())

    def test_who_asks_without_end_is_answered_at_a_pace(self):
        with Job("--metrics-port", "0") as job:
            url = urllib.parse.urlsplit(job.url("metrics"))
            began = time.monotonic()
            for _ in range(400):
                with socket.create_connection((url.hostname, url.port), timeout=patience(LIMIT_S)) as one:
                    one.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
                    self.assertIn(b"200 OK", one.recv(15))
            self.assertGreaterEqual(time.monotonic() - began, 0.5)  # 12 bursts of 32 have gone by.
            self.assertIn("ddprun_info", get(url.geturl()))
            self.assertEqual(job.finish(), 0, job.said())

    def test_the_last_metrics_have_what_the_workers_said_last(self):
        for how in ("SIGTERM", "success"):
            with self.subTest(how=how), Job("--metrics-file", "job.prom", "--metrics-port", "0",
                                            program=(sys.executable, "reporting.py")) as job:
                job.reach_step(20, job.url("metrics"))
                self.assertEqual(job.end_by(how), 75 if how == "SIGTERM" else 0, job.said())
                last = (job.folder / "job.prom").read_text()
                for rank in (0, 1):
                    for name, value in (("up", 0), ("step", 20), ("steps_wanted", 80), ("epoch", 3), ("loss", 5)):
                        self.assertEqual(sample(last, rf'ddprun_rank_{name}\{{.*rank="{rank}",.*\}}'), value, last)
                for pace in ("images_per_second", "step_seconds", "silent_seconds"):
                    self.assertNotIn(f"ddprun_rank_{pace}{{", last)

    def test_what_a_worker_said_last_stays_while_the_job_goes_on_without_it(self):
        with Job("--metrics-port", "0", program=(sys.executable, "reporting.py")) as job:
            url = job.url("metrics")
            job.reach_step(20, url)
            (job.folder / "end1").touch()
            text = job.wait_for("the end of rank 1", lambda: (lambda t: t if sample(t, r'ddprun_rank_up\{.*rank="1".*\}') == 0 else "")(get(url)))
            for name, value in (("step", 20), ("epoch", 3), ("loss", 5), ("images_per_second", None), ("silent_seconds", None)):
                self.assertEqual(sample(text, rf'ddprun_rank_{name}\{{.*rank="1".*\}}'), value, text)
            self.assertEqual(job.finish(), 0, job.said())

    def test_who_stops_a_job_or_asks_to_be_queued_again_is_no_failure(self):
        for what in ("SIGTERM", "exit 75"):
            with self.subTest(what=what), Job("--metrics-file", "job.prom", "--status-page", "0") as job:
                url = job.url("status page")
                job.wait_for("two workers", lambda: len(json.loads(get(url + "status.json"))["ranks"]) == 2)
                if what == "SIGTERM":
                    job.process.terminate()
                else:
                    (job.folder / "again").touch()
                self.assertEqual(job.process.wait(patience(LIMIT_S)), 75, job.said())
                last = (job.folder / "job.prom").read_text()
                self.assertEqual(sample(last, r'ddprun_node_state\{.*state="done"\}'), 1, last)
                self.assertEqual(sample(last, r"ddprun_failures_total\{.*\}"), 0, last)
                self.assertNotIn("ddprun_last_failure_time_seconds{", last)

    def test_processor_time_never_goes_back_while_the_worker_lives(self):
        with Job("--metrics-port", "0", program=(sys.executable, "leaving.py")) as job:
            url = job.url("metrics")
            job.wait_for("a process that has used its time", (job.folder / "used1").exists)
            used, processes = (rf'ddprun_rank_{name}\{{.*rank="1".*\}}' for name in ("cpu_seconds_total", "processes"))
            before = sample(get(url), used)
            self.assertGreaterEqual(before, 0.29)
            (job.folder / "leave").touch()
            text = job.wait_for("the worker alone", lambda: (lambda t: t if sample(t, processes) == 1 else "")(get(url)))
            self.assertGreaterEqual(sample(text, used), before, text)
            self.assertEqual(job.finish(), 0, job.said())

    def test_a_port_that_is_taken_ends_the_job_before_it_begins(self):
        with http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as taken:
            with Job("--metrics-port", str(taken.server_port), "--report", "report.json", "--event-log", "events.jsonl") as job:
                self.assertEqual(job.process.wait(patience(LIMIT_S)), 70)
                self.assertIn(f"--metrics-port: cannot listen on 127.0.0.1 port {taken.server_port}: Address already in use; give another "
                              "port, or 0 for a free one", job.said())
                self.assertNotIn("started", job.said())
                report = json.loads((job.folder / "report.json").read_text())
                last = json.loads((job.folder / "events.jsonl").read_text().splitlines()[-1])
                self.assertEqual((report["exit_status"], last["event"], last["exit_status"]), (70, "job_ended", 70))
                self.assertIn("cannot listen on", report["why"])

    def test_a_folder_that_goes_costs_a_warning_and_no_job(self):
        with Job("--metrics-file", "metrics/job.prom") as job:
            self.assertEqual(job.process.wait(patience(LIMIT_S)), 2, "the folder is not there from the start")
        folder = tempfile.mkdtemp(prefix="ddprun_metrics_")
        with Job("--metrics-file", folder + "/job.prom") as job:
            job.wait_for("the file", (pathlib.Path(folder) / "job.prom").exists)
            shutil.rmtree(folder)
            job.wait_for("the warning", lambda: "cannot write --metrics-file" in job.said())
            self.assertEqual(job.finish(), 0, job.said())


class TrainerServer:
    """An HTTPS server of this test's own that keeps what it is sent."""

    def __init__(self, folder):
        self.posts, self.news = [], threading.Condition()
        self.status, self.words = 200, b""  # What it answers.
        self.answers = threading.Event()  # Until it is set, nobody is answered.
        self.answers.set()
        authority = folder / "ca.pem"
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
                        "-subj", "/CN=trainer", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", folder / "key.pem", "-out", authority],
                       check=True, capture_output=True)
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                with outer.news:
                    outer.posts.append((self.path, dict(self.headers), json.loads(body)))
                    outer.news.notify_all()
                outer.answers.wait(patience(LIMIT_S))
                self.send_response(outer.status)
                # Without it the end of the answer would be that of TLS, which this server does not say: newer libcurls
                # take that for an answer cut off.
                self.send_header("Content-Length", str(len(outer.words)))
                self.end_headers()
                self.wfile.write(outer.words)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(authority, folder / "key.pem")
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()
        self.url = f"https://127.0.0.1:{self.server.server_port}/apis/trainer.kubeflow.org/v1alpha1/namespaces/a/trainjobs/b/status"

    def wait_for(self, count):
        with self.news:
            return self.news.wait_for(lambda: len(self.posts) >= count, patience(LIMIT_S))

    def close(self):
        self.answers.set()
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@unittest.skipUnless(shutil.which("openssl"), "no openssl to make a certificate with")
class Trainer(unittest.TestCase):
    def setUp(self):
        self.place = tempfile.TemporaryDirectory(prefix="ddprun_trainer_")
        self.folder = pathlib.Path(self.place.name)
        self.server = TrainerServer(self.folder)
        self.token = self.folder / "token"
        self.token.write_text("first\n")
        self.variables = {"KUBEFLOW_TRAINER_SERVER_URL": self.server.url, "KUBEFLOW_TRAINER_SERVER_TOKEN": str(self.token),
                          "KUBEFLOW_TRAINER_SERVER_CA_CERT": str(self.folder / "ca.pem")}

    def tearDown(self):
        self.server.close()
        self.place.cleanup()

    def test_progress_is_posted_with_the_token_of_the_moment(self):
        with Job(variables=self.variables) as job:
            self.assertTrue(self.server.wait_for(1), job.said())
            self.token.write_text("second\n")
            self.assertEqual(job.finish(), 0, job.said())
            self.assertNotIn("cannot tell", job.said())
        path, headers, body = self.server.posts[0]
        self.assertTrue(path.endswith("/trainjobs/b/status"))
        self.assertEqual(headers["Authorization"], "Bearer first")
        self.assertEqual(headers["Content-Type"], "application/json")
        status = body["trainerStatus"]
        self.assertNotIn("progressPercentage", status)  # These workers say nothing of themselves.
        self.assertIn({"name": "world_size", "value": "2"}, status["metrics"])
        self.assertRegex(status["lastUpdatedTime"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")
        _, headers, body = self.server.posts[-1]
        self.assertEqual(headers["Authorization"], "Bearer second")
        self.assertEqual(body["trainerStatus"]["progressPercentage"], 100)

    def test_a_job_that_ends_during_a_report_reports_its_end_too(self):
        self.server.answers.clear()
        with Job("--metrics-port", "0", "--metrics-file", "job.prom", variables=self.variables) as job:
            url = job.url("metrics")
            self.assertTrue(self.server.wait_for(1), job.said())
            (job.folder / "end").touch()
            succeeded = r'ddprun_workers\{.*state="succeeded"\}'
            end = time.monotonic() + patience(LIMIT_S)
            try:
                while sample(get(url), succeeded) != 2:
                    self.assertLess(time.monotonic(), end, job.said())
                    time.sleep(0.05)
            except OSError:
                pass  # So slow a machine that the report was given up: the end is told all the same.
            self.server.answers.set()
            self.assertEqual(job.process.wait(patience(LIMIT_S)), 0, job.said())
            self.assertEqual(sample((job.folder / "job.prom").read_text(), succeeded), 2)
        self.assertEqual(self.server.posts[-1][2]["trainerStatus"]["progressPercentage"], 100)

    def last_report(self):
        status = self.server.posts[-1][2]["trainerStatus"]
        return status, {metric["name"]: metric["value"] for metric in status["metrics"]}

    def test_the_last_report_has_what_the_workers_said_last(self):
        for how, percent in (("SIGTERM", 25), ("success", 100)):
            with self.subTest(how=how), Job("--metrics-port", "0", variables=self.variables,
                                            program=(sys.executable, "reporting.py")) as job:
                job.reach_step(20, job.url("metrics"))
                self.assertEqual(job.end_by(how), 75 if how == "SIGTERM" else 0, job.said())
                status, metrics = self.last_report()
                self.assertEqual(status["progressPercentage"], percent)
                self.assertEqual(metrics, {"step": "20", "epoch": "3", "loss": "5", "attempt": "0", "failures": "0", "world_size": "2"})

    def test_what_was_said_before_a_restart_is_no_word_of_the_next_attempt(self):
        with Job("--metrics-port", "0", variables=self.variables, program=(sys.executable, "reporting.py")) as job:
            url = job.url("metrics")
            job.reach_step(20, url)
            (job.folder / "step").unlink()
            (job.folder / "fail").touch()
            job.wait_for("the second attempt", lambda: (lambda text: sample(text, r"ddprun_attempt\{.*\}") == 1 and
                                                        sample(text, r'ddprun_workers\{.*state="running"\}') == 2)(get(url)))
            job.process.terminate()
            self.assertEqual(job.process.wait(patience(LIMIT_S)), 75, job.said())
        status, metrics = self.last_report()
        self.assertNotIn("progressPercentage", status)
        self.assertEqual(metrics, {"attempt": "1", "failures": "1", "world_size": "2"})

    def test_words_of_the_server_move_no_cursor(self):
        self.server.status, self.server.words = 403, b"no\033]0;title\a \302\2332J"
        with Job(variables=self.variables) as job:
            job.wait_for("the warning", lambda: "answers 403: no^[]0;title^G M-^[2J" in job.said())
            self.assertEqual(job.finish(), 0, job.said())

    def test_a_server_of_another_authority_is_told_nothing(self):
        del self.variables["KUBEFLOW_TRAINER_SERVER_CA_CERT"]
        with Job(variables=self.variables) as job:
            job.wait_for("the warning", lambda: "cannot tell Kubeflow Trainer how far the job is: " in job.said())
            self.assertEqual(job.finish(), 0, job.said())
            self.assertEqual(job.said().count("cannot tell"), 1)
        self.assertEqual(self.server.posts, [])


class Page(unittest.TestCase):
    def test_a_browser_shows_the_job_while_it_runs(self):
        with Job("--status-page", "0", "--rdzv-id", "job <1>") as job:
            url = job.url("status page")
            job.wait_for("two workers", lambda: all(rank["state"] == "running" for rank in json.loads(get(url + "status.json"))["ranks"])
                         and len(json.loads(get(url + "status.json"))["ranks"]) == 2)
            (job.folder / "fail").touch()
            job.wait_for("the second attempt", lambda: "running, attempt 1," in get(url + "content"))
            # Two looks of the page's script, by the browser's own clock, which waits for what is fetched.
            done = browser.run(["--window-size=1300,1400", "--virtual-time-budget=5000", "--dump-dom", url])
            page = done.stdout
            self.assertRegex(page, r'<p id="state">\S+ on \S+: running, attempt 1, node 0 of 1, ranks 0 to 1 of 2, 1 failure</p>', done.stderr)
            self.assertEqual(len(re.findall(r"<tr><td>[01]</td><td>[^<]+</td><td>\d+</td><td>running</td>", page)), 2)
            self.assertIn("<h1>ddprun job &lt;1&gt;</h1>", page)
            self.assertIn("attempt 0: rank 1", page)
            self.assertIn("no &lt;b&gt;luck&lt;/b&gt;", page)
            self.assertRegex(page, r'<rect class="bad"[^>]*><title>attempt 0 on ')
            self.assertRegex(page, r'<p id="word" class="note"></p>')
            self.assertEqual(job.finish(), 0, job.said())

    def test_curves_of_what_the_workers_say_are_live(self):
        with Job("--status-page", "0", program=(sys.executable, "reporting.py")) as job:
            url = job.url("status page")
            for step in (10, 20):
                (job.folder / "step.new").write_text(str(step))
                (job.folder / "step.new").rename(job.folder / "step")
                job.wait_for(f"step {step}", lambda: [rank["progress"]["step"] for rank in json.loads(get(url + "status.json"))["ranks"]
                                                      if rank.get("progress")] == [step, step])
                get(url + "content")
            self.assertEqual(sample(get(url + "metrics"), r'ddprun_rank_step\{.*rank="1".*\}'), 20)
            page = browser.run(["--window-size=1300,1400", "--virtual-time-budget=5000", "--dump-dom", url]).stdout
            # A loss of 10 at step 10 and of 5 at step 20: from the upper left corner of its picture to the lower right one.
            loss = re.search(r'aria-label="Loss: [^"]*">.*?points="([^"]*)"', page, re.DOTALL)
            self.assertEqual(loss and loss[1], "58.0,12.0 606.0,226.0", page)
            # Of both ranks together, at both steps.
            self.assertIn("<td>20 of 80</td><td>forward</td><td>64</td>", page)
            self.assertRegex(page, r'(?s)aria-label="Images per second, of all workers">.*?>128<|points="58.0,12.0 606.0,12.0"')
            self.assertEqual(job.finish(), 0, job.said())


if __name__ == "__main__":
    if IN_BROWSER and browser.PROGRAM is None:
        print("SKIPPED: " + browser.MISSING)
        sys.exit(0)
    unittest.main(argv=sys.argv[:1], defaultTest=["Page"] if IN_BROWSER else ["Metrics", "Trainer"])
