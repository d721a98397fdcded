"""scripts/bench scaling and modes: the numbers, the chart, and what happens when a run fails.

  bench_charts_test.py SOURCE_DIR BIN_DIR     BIN_DIR: where ddprun and train are
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

SOURCE, BIN = pathlib.Path(sys.argv[1]), sys.argv[2]
sys.path.insert(0, str(SOURCE / "benchmarks"))
import line_chart  # noqa: E402
import metrics_lines  # noqa: E402
import modes  # noqa: E402
import scaling  # noqa: E402

SVG = "{http://www.w3.org/2000/svg}"
# Writes the metrics of a program that loses a tenth of its speed with each worker that is added.
FAKE = """python3 -c '
import json, sys
n = int(sys.argv[1])
rate = n * 100 * (1.1 - 0.1 * n)
out = open(sys.argv[2], "w")
print(json.dumps({"event": "start", "world_size": n}), file=out)
for step in range(10, 60, 10):
    print(json.dumps({"event": "train", "step": step, "images_per_s": 1 if step == 10 else rate,
                      "step_s": 0.5}), file=out)
' {workers} {metrics}"""


def bench(name, *arguments):
    return subprocess.run([sys.executable, "-B", str(SOURCE / "benchmarks" / f"{name}.py"), *arguments], text=True,
                          env={**os.environ, "DDPRUN_BIN_DIR": BIN}, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=100)


def numbers(text):
    return [float(part) for part in text.replace(",", " ").split()]


class Speed(unittest.TestCase):
    def test_lines_that_reach_into_the_first_steps_do_not_count(self):
        lines = [{"event": "start", "resumed_from_step": 100}]
        lines += [{"event": "train", "step": 100 + step, "images_per_s": step, "data_s": 1} for step in (10, 20, 30)]
        self.assertEqual(metrics_lines.speed(lines, 10), {"images_per_s": 25, "data_s": 1})
        self.assertEqual(metrics_lines.speed(lines, 11)["images_per_s"], 30)

    def test_too_few_lines_are_told(self):
        with self.assertRaisesRegex(metrics_lines.NoMetrics, "--warmup-steps"):
            metrics_lines.speed([{"event": "train", "step": 10, "images_per_s": 1}], 10)
        with self.assertRaisesRegex(metrics_lines.NoMetrics, "no line"):
            metrics_lines.speed([{"event": "start"}], 10)

    def test_efficiency_is_measured_against_the_smallest_number_of_workers(self):
        rows = scaling.summarise({4: [{"images_per_s": 300}], 2: [{"images_per_s": 200}, {"images_per_s": 100},
                                                                  {"images_per_s": 900}]})
        self.assertEqual([row["images_per_s"] for row in rows], [200, 300])
        self.assertEqual([row["speedup"] for row in rows], [2, 3])
        self.assertEqual([row["efficiency"] for row in rows], [1, 0.75])

    def test_an_epoch_is_the_sum_of_its_steps_without_the_first_epoch(self):
        lines = [{"event": "train", "epoch": epoch, "step_s": 9 if epoch == 0 else step}
                 for epoch in range(3) for step in (1, 2, 6)]
        self.assertEqual(modes.epoch_times(lines), {"epoch_s": 9, "batch_s": 2})
        with self.assertRaises(metrics_lines.NoMetrics):
            modes.epoch_times(lines[:3])


class Chart(unittest.TestCase):
    def test_ticks_are_round_and_reach_the_largest_value(self):
        for largest in (0.003, 0.9, 1, 7, 99, 100, 101, 12_345, 1e9):
            ticks = line_chart.ticks(largest)
            self.assertEqual(ticks[0], 0)
            self.assertGreaterEqual(ticks[-1], largest * (1 - 1e-9))
            self.assertLess(ticks[-2], largest)
            self.assertLessEqual(len(ticks), 8)

    def test_points_lie_where_their_numbers_say(self):
        rows = scaling.summarise({n: [{"images_per_s": 100 * n * (1.1 - 0.1 * n)}] for n in (1, 2, 4)})
        drawn = xml.etree.ElementTree.fromstring(scaling.chart(rows, "a < b & c"))
        words = [element.text for element in drawn.iter(SVG + "text")]
        self.assertIn("a < b & c", words)
        for word in ("workers", "images/s", "ideal", "measured", "280", "70.0"):
            self.assertIn(word, words)
        measured, ideal = (numbers(line.get("points")) for line in list(drawn.iter(SVG + "polyline"))[:2])
        self.assertEqual(measured[:2], ideal[:2])
        # x grows by 1 and 2 workers; the ideal line is straight; 280 of 400 is 70 % of the height.
        self.assertAlmostEqual((measured[4] - measured[2]) / (measured[2] - measured[0]), 2, delta=0.01)
        self.assertAlmostEqual((ideal[5] - ideal[1]) / (ideal[3] - ideal[1]), 3, delta=0.02)
        left, top = numbers(next(drawn.iter(SVG + "path")).get("d")[1:].split("V")[0])
        bottom = float(next(drawn.iter(SVG + "path")).get("d").split("V")[1].split("H")[0])
        self.assertAlmostEqual((bottom - measured[5]) / (bottom - ideal[5]), 0.7, delta=0.01)
        width, height = float(drawn.get("width")), float(drawn.get("height"))
        for x, y in zip(measured[::2], measured[1::2]):
            self.assertTrue(left <= x <= width and top <= y <= bottom <= height)


class Programs(unittest.TestCase):
    def test_any_command_that_writes_metrics_can_be_measured(self):
        with tempfile.TemporaryDirectory() as folder:
            done = bench("scaling", "--workers", "1,2", "--rounds", "2", "--command", FAKE, "--output", folder)
            self.assertEqual(done.returncode, 0, done.stdout)
            self.assertIn("| 2 | 180 (180 - 180) | 1.80 | 90.0 % | 500.0 | - |", done.stdout)
            rows = json.loads(pathlib.Path(folder, "scaling.json").read_text())["rows"]
            self.assertEqual([row["workers"] for row in rows], [1, 2])
            xml.etree.ElementTree.parse(pathlib.Path(folder, "scaling.svg"))
            self.assertIn("90.0 %", pathlib.Path(folder, "scaling.md").read_text())

    def test_a_command_that_fails_is_told_with_its_output(self):
        with tempfile.TemporaryDirectory() as folder:
            done = bench("scaling", "--workers", "1", "--command", "echo no luck; exit 3 # {metrics}",
                         "--output", folder)
            self.assertEqual(done.returncode, 1)
            self.assertIn("it ended with 3:\nno luck", done.stdout)
            self.assertEqual(os.listdir(folder), [])
            done = bench("scaling", "--workers", "1", "--command", "echo '{\"event\": \"train\"}' > {metrics}")
            self.assertEqual(done.returncode, 1)
            self.assertIn("line 1 of its metrics", done.stdout)

    def test_bad_options_are_refused(self):
        for arguments, words in ((["--workers", "1,x"], "no list of numbers"), (["--workers", "0"], "no list"),
                                 (["--command", "train"], "{metrics}"), (["--rounds", "0"], "1 or more"),
                                 (["--command", "{metrics}", "--model", "m"], "contradicts")):
            done = bench("scaling", *arguments)
            self.assertEqual(done.returncode, 2)
            self.assertIn(words, done.stdout)

    @unittest.skipUnless(pathlib.Path(BIN, "train").exists(), "no train in this build")
    def test_train_is_measured_in_its_modes_and_numbers_of_workers(self):
        small = ["--", "--dataset", "synthetic", "--synthetic-images", "64", "--image-size", "20", "--device", "cpu"]
        done = bench("modes", "--workers", "2", "--model", "convnet", "--rounds", "1", "--global-batch-size", "16", *small)
        self.assertEqual(done.returncode, 0, done.stdout)
        for mode in ("single, 1 process", "DataParallel, 1 process x 2 replicas", "DistributedDataParallel, 2 processes"):
            self.assertIn(f"| {mode} | ", done.stdout)
        with tempfile.TemporaryDirectory() as folder:
            done = bench("scaling", "--workers", "1,2", "--rounds", "1", "--model", "convnet", "--output", folder, *small,
                         "--steps", "30", "--batch-size", "8")
            self.assertEqual(done.returncode, 0, done.stdout)
            self.assertRegex(done.stdout, r"\| 2 \| [0-9.]+ \(")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "--verbose"])
