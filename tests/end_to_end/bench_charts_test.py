"""scripts/bench scaling, modes and charts: the numbers, the pictures, and what happens when a run fails.

  bench_charts_test.py SOURCE_DIR BIN_DIR     BIN_DIR: where ddprun and train are
"""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

from patience import patience

SOURCE, BIN = pathlib.Path(sys.argv[1]).resolve(), os.path.abspath(sys.argv[2])
sys.path.insert(0, str(SOURCE / "benchmarks"))
import charts  # noqa: E402
import dot_chart  # noqa: E402
import line_chart  # noqa: E402
import metrics_lines  # noqa: E402
import modes  # noqa: E402
import pair_chart  # noqa: E402
import scaling  # noqa: E402
import tables  # noqa: E402

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
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=patience(100))


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

    def test_a_figure_beyond_the_axis_makes_it_longer(self):
        """A machine six times as slow as the one before, whose table `scripts/bench --docs` would have left without pictures."""
        values = [tables.Figure(text) for text in ("34803", "16")]
        drawn = xml.etree.ElementTree.fromstring(dot_chart.chart(
            "title", "note", ["large", "small"],
            [("", dot_chart.Axis(0.2, 30000, (1, 10000), logarithmic=True), [dot_chart.Series("ours", "series0", values)])]))
        places = [float(dot.get("cx")) for dot in drawn.iter(SVG + "circle")][-2:]
        self.assertTrue(places[1] < places[0] < dot_chart.WIDTH - dot_chart.RIGHT, places)


class Pictures(unittest.TestCase):
    """docs/pictures/ and the headline tables, drawn from docs/measurements/."""

    def test_the_tree_holds_what_the_tables_say(self):
        for path, text in charts.drawn().items():
            self.assertTrue(path.exists(), f"{path} is not there: scripts/bench charts")
            self.assertEqual(path.read_text(), text, f"{path} is not what the tables say: scripts/bench charts")
        # And what scripts/bench terminal draws, of no table.
        self.assertEqual({path.stem for path in charts.PICTURES.glob("*.svg")}, {*charts.CHARTS, "terminal"})

    def test_pictures_are_svg_with_text_inside_and_colours_for_the_dark(self):
        for path in charts.PICTURES.glob("*.svg"):
            drawn = xml.etree.ElementTree.parse(path).getroot()
            width, height = float(drawn.get("width")), float(drawn.get("height"))
            self.assertIn("prefers-color-scheme: dark", drawn.find(SVG + "style").text)
            self.assertTrue(drawn.find(SVG + "title").text)
            for element in drawn.iter(SVG + "text"):
                self.assertGreaterEqual(float(element.get("font-size")), 11, element.text)
                # Lines in DejaVu Sans Bold, the widest of the usual fonts, take 0.56 of the size for a character.
                long = len(element.text) * float(element.get("font-size")) * 0.57
                left = float(element.get("x")) - {"start": 0, "middle": long / 2, "end": long}[element.get("text-anchor")]
                self.assertTrue(0 <= left and left + long <= width, f"{path.name}: {element.text!r} leaves the picture")
                self.assertTrue(0 < float(element.get("y")) < height, f"{path.name}: {element.text!r}")

    def test_the_page_shows_every_picture(self):
        page = (SOURCE / "docs" / "performance.md").read_text()
        for name in charts.CHARTS:
            self.assertEqual(page.count(f"](pictures/{name}.svg)"), 1, name)

    def test_figures_in_the_pages_sentences_are_those_of_the_tables(self):
        page = " ".join((SOURCE / "docs" / "performance.md").read_text().split())
        together = [tables.Figure(row["ratio"]).value for row in tables.rows("store-together") if row["unit"] == "1000/s"]
        self.assertIn(f"{min(together):.2f} to {max(together):.2f} times as many requests in each of the {len(together)} cases",
                      page)
        errors = [float(row["error"]) / float(row["oneDNN's"]) for row in tables.rows("winograd") if row["error"]]
        self.assertIn(f"errors are {min(errors):.1f} to {max(errors):.1f} times oneDNN's", page)
        self.assertIn(f"errors are {min(errors):.1f} to {max(errors):.1f} times oneDNN's",
                      " ".join((SOURCE / "docs" / "training.md").read_text().split()))
        ours, peer = re.findall(r"\d+ of \d+", tables.marked("gloo-restart").search(
            tables.page_with("gloo-restart").read_text())["text"])
        self.assertIn(f"{ours} restarts were good under `ddprun`. Under torchrun {peer} were", page)

    def test_tables_are_not_replaced_without_the_peer(self):
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run([sys.executable, "-B", "-c", f"""
import pathlib, sys
sys.path.insert(0, {str(SOURCE / "benchmarks")!r})
import bench, measure
measure.PEER = pathlib.Path({folder!r})
sys.argv = ["bench", "launch", "--docs"]
sys.exit(bench.main())"""], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=patience(60))
            self.assertEqual(done.returncode, 2, done.stdout)
            self.assertIn("--docs needs the peer", done.stdout)

    def test_bars_are_as_long_as_their_figures(self):
        def pair(ours, peer):
            return pair_chart.Pair("a < b", "ms", tables.Figure(ours), tables.Figure(peer), tables.Figure("4 x"))

        drawn = xml.etree.ElementTree.fromstring(pair_chart.chart(
            "t", "n", "ours", "theirs", [pair("250 (200 - 500)", "1000 (900 - 2000)"), pair("0 (0 - 0)", "3")]))
        widths = [float(bar.get("width")) for bar in drawn.iter(SVG + "rect") if float(bar.get("height")) == pair_chart.BAR]
        self.assertAlmostEqual(widths[0] / widths[1], 0.25, delta=0.001)
        self.assertAlmostEqual(widths[1], pair_chart.BARS_WIDTH / 2)
        self.assertLess(widths[2], 2)
        self.assertAlmostEqual(widths[3], pair_chart.BARS_WIDTH)
        ranges = [(float(line.get("x1")), float(line.get("x2"))) for line in drawn.iter(SVG + "line")]
        self.assertEqual([round(right - left, 1) for left, right in ranges],
                         [round(pair_chart.BARS_WIDTH * share, 1) for share in (0.15, 0.55)])
        self.assertIn("1,000 ms", [element.text for element in drawn.iter(SVG + "text")])

    def test_a_cell_that_is_no_figure_is_refused(self):
        self.assertEqual(tables.Figure("3.95 (3.81 - 4.02)").high, 4.02)
        self.assertEqual(tables.Figure("1261 (1091 - 1346)").words(), "1,261")
        self.assertEqual(tables.Figure("95.10 %").words(), "95.10")
        self.assertIsNone(tables.figure("-"))
        for cell in ("fast", "3 ms", ""):
            with self.assertRaisesRegex(ValueError, "no figure"):
                tables.Figure(cell)

    def test_tables_are_found_by_their_marks(self):
        page = "a\n<!-- t: begin -->\nwhen\n\n| what | ours |\n|---|---:|\n| x | 1 |\n<!-- t: end -->\nb\n"
        self.assertEqual(tables.parse(tables.marked("t").search(page)["text"]), [{"what": "x", "ours": "1"}])
        self.assertEqual(tables.replaced(page, "t", "new"), "a\n<!-- t: begin -->\nnew\n<!-- t: end -->\nb\n")
        with self.assertRaisesRegex(ValueError, "0 times"):
            tables.replaced(page, "u", "new")
        with self.assertRaisesRegex(ValueError, "are in 0"):
            tables.rows("no such table")
        with self.assertRaisesRegex(ValueError, "0 rows"):
            tables.row("launch", what="no such row")


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
