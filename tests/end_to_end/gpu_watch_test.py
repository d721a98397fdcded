"""The GPUs of a running job, from a driver of the test's own: tests/launcher/status/fake_nvml.cpp.

  gpu_watch_test.py SOURCE_DIR BIN_DIR FOLDER_OF_THE_FAKE
"""
import contextlib
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import unittest

from patience import patience

BIN, FAKE = pathlib.Path(sys.argv[2]).resolve(), os.path.abspath(sys.argv[3])
DDPRUN = str(BIN / "ddprun")
GIB = 1 << 30


class Gpus(unittest.TestCase):
    def setUp(self):
        stack = contextlib.ExitStack()
        self.addCleanup(stack.close)
        self.folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        self.driver = self.folder / "driver"
        self.environment = {name: value for name, value in os.environ.items()
                            if not re.match("PET_|SLURM_|DDPRUN_|RANK$|WORLD_SIZE$|TORCHELASTIC|CUDA_VISIBLE", name)}
        self.environment.update(DDPRUN_RUN_DIR=str(self.folder / "run"), TMPDIR=str(self.folder),
                                LD_LIBRARY_PATH=FAKE, FAKE_NVML=str(self.driver))
        self.metrics = self.folder / "metrics.prom"
        job = subprocess.Popen(
            [DDPRUN, "--nproc-per-node", "2", "--no-python", "--metrics-file", str(self.metrics), "sleep", "3600"],
            env=self.environment, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL)

        def end():
            job.terminate()
            job.wait(patience(30))
        stack.callback(end)

    def tell(self, *lines):
        """What the driver tells from now on: a whole file at any moment."""
        new = self.folder / "driver.new"
        new.write_text("".join(line + "\n" for line in lines))
        new.rename(self.driver)

    def ask(self, *words):
        done = subprocess.run([DDPRUN, "status", *words], env=self.environment, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=patience(30))
        return done.stdout

    def until(self, look, what):
        end = time.monotonic() + patience(30)
        while time.monotonic() < end:
            if found := look():
                return found
            time.sleep(0.02)
        self.fail(f"{what} did not come")

    def ranks(self):
        """Both workers, once they run."""
        def look():
            jobs = json.loads(self.ask("--json"))
            ranks = jobs[0]["ranks"] if jobs else []
            return ranks if len(ranks) == 2 and all(rank["processes"] > 0 for rank in ranks) else None
        return self.until(look, "two ranks")

    def test_a_rank_is_shown_with_its_gpu_as_soon_as_the_driver_tells(self):
        ranks = self.ranks()  # There is no GPU so far: the driver refuses.
        self.assertEqual([rank["gpu"] for rank in ranks], [None, None])
        self.assertIn("   RSS\n", self.ask())
        strangers = " ".join(f"{pid}:1" for pid in range(500_000, 500_040))  # More than fit at first.
        self.tell(f"GPU-aa 12 {5 * GIB} {80 * GIB} {strangers} {ranks[1]['pid']}:{3 * GIB} "
                  "reasons=44 clock=780 clock_max=1980 celsius=92",
                  f"GPU-bb - - - {ranks[0]['pid']}:-")
        seen = self.until(lambda: (lambda now: now if all(rank["gpu"] for rank in now) else None)(self.ranks()),
                          "the GPUs of both")
        self.assertEqual(seen[1]["gpu"], {"index": 0, "busy": 0.12, "memory_used_bytes": 5 * GIB,
                                          "memory_total_bytes": 80 * GIB, "own_bytes": 3 * GIB, "slowed_by": "heat",
                                          "clock_mhz": 780, "clock_max_mhz": 1980, "temperature_c": 92})
        self.assertEqual(seen[0]["gpu"], {"index": 1, "busy": None, "memory_used_bytes": None,
                                          "memory_total_bytes": None, "own_bytes": None, "slowed_by": None,
                                          "clock_mhz": None, "clock_max_mhz": None, "temperature_c": None})
        text = self.ask()
        self.assertIn("\n  slowed down: GPU 0 of rank 1, by heat: 780 of 1980 MHz, 92 C\n", text)
        self.assertRegex(text, r"(?m) CPU +GPU +GMEM$")
        self.assertRegex(text, rf"(?m)^ +1 +{ranks[1]['pid']} .* 12% +3\.0G$")
        self.assertRegex(text, rf"(?m)^ +0 +{ranks[0]['pid']} .* - +-$")
        self.until(lambda: self.metrics.exists() and re.search(
            r'ddprun_rank_gpu_bytes\{.*rank="1".*\} ' + str(3 * GIB), self.metrics.read_text()), "the metrics")
        metrics = self.metrics.read_text()
        for name, value in (("temperature_celsius", 92), ("clock_ratio", "0.39"), ("slowed", 1)):
            self.assertRegex(metrics, rf'ddprun_rank_gpu_{name}\{{.*rank="1".*\}} {value}')
            self.assertNotRegex(metrics, rf'ddprun_rank_gpu_{name}\{{.*rank="0"')

    def test_a_driver_that_hangs_holds_up_nobody(self):
        self.tell("hang")
        ranks = self.ranks()
        self.assertEqual([rank["gpu"] for rank in ranks], [None, None])
        self.assertIn("sleep", self.ask())


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
