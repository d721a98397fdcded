"""ddprun plot: from a job that fails once and goes on to the page, as a user does it; and in a browser.

  plot_test.py SOURCE_DIR BIN_DIR [browser]
"""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import browser
from patience import patience

BIN = pathlib.Path(sys.argv[2]).resolve()
IN_BROWSER = sys.argv[3:] == ["browser"]

# A worker that writes what `train --metrics` does: rank 1 dies at step 30 of the first attempt, and the second goes on
# from step 20.
WORKER = r"""
attempt=$TORCHELASTIC_RESTART_COUNT
from=$((attempt * 20))
out=metrics_$RANK.jsonl
echo "{\"event\":\"start\",\"model\":\"toy\",\"dataset\":\"none\",\"rank\":$RANK,\"world_size\":2,\"total_steps\":50,\"resumed_from_step\":$from,\"restart_count\":$attempt,\"time\":1000}" >> $out
step=$from
while [ $step -lt 50 ]; do
  step=$((step + 10))
  if [ $step = 40 ] && [ $attempt = 0 ]; then
    if [ $RANK = 1 ]; then kill -9 $$; fi
    sleep 300
  fi
  echo "{\"event\":\"train\",\"step\":$step,\"loss\":$((60 - step)).5,\"prec1_avg\":$step,\"lr\":0.1,\"images_per_s\":100,\"step_s\":0.1,\"data_s\":0.0$((RANK + 1)),\"exposed_comm_s\":0.02,\"time\":$((1000 + step))}" >> $out
done
echo "{\"event\":\"validation\",\"step\":50,\"loss\":11,\"prec1\":48,\"time\":1051}" >> $out
"""


def plot(*arguments, folder):
    return subprocess.run([BIN / "ddprun", "plot", *arguments], cwd=folder, capture_output=True, text=True, timeout=patience(100))


class Plot(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.place = tempfile.TemporaryDirectory(prefix="ddprun_plot_")
        cls.folder = pathlib.Path(cls.place.name)
        cls.run_folder = cls.folder / "run1"
        cls.run_folder.mkdir()
        # In a file: of an argument ddprun takes $$ for $.
        (cls.folder / "worker.sh").write_text(WORKER)
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("PET_", "SLURM_"))}
        done = subprocess.run([BIN / "ddprun", "--standalone", "--nproc-per-node", "2", "--max-restarts", "1",
                               "--event-log", "events.jsonl", "/bin/sh", "../worker.sh"], cwd=cls.run_folder, env=clean,
                              capture_output=True, text=True, timeout=patience(100))
        assert done.returncode == 0, done.stderr
        # Where checkpoints are as well: nothing to read, and nothing odd.
        (cls.run_folder / "manifest.json").write_text('{\n  "checkpoints": {}\n}\n')

    @classmethod
    def tearDownClass(cls):
        cls.place.cleanup()


class Command(Plot):
    def test_a_folder_is_a_run_with_its_ranks_and_its_events(self):
        done = plot("run1", folder=self.folder)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "report.html\n", ""))
        page = (self.folder / "report.html").read_text()
        # The first attempt's step 30 is no part of the curve: 10, 20 and then 30, 40, 50 of the second one.
        self.assertIn("run1: restart 1, from step 20 (step 30 had been seen)", page)
        self.assertIn("<td>50 of 50</td><td>10.5</td><td>48.00 %</td><td>100</td>", page)
        # 3 steps of 10 in each attempt; rank 1's tell twice as much waiting for data.
        self.assertIn("rank 0: data 10.0 % of 6 s in 60 steps", page)
        self.assertIn("rank 1: data 20.0 % of 6 s in 60 steps", page)
        self.assertIn("rank 1 ended by SIGKILL", page)
        self.assertRegex(page, r"attempt 1 on \S+: [\d.]+ s to [\d.]+ s, succeeded")
        self.assertNotIn("://", page)

    def test_files_join_the_run_before_them(self):
        one = plot("-o", "one.html", "run1/metrics_0.jsonl", "run1/metrics_1.jsonl", "run1/events.jsonl", folder=self.folder)
        mark = plot("--output=mark.html", "run1/metrics_{rank}.jsonl", folder=self.folder)
        for rank in "01":
            (self.folder / f"marks_{rank}").mkdir()
            shutil.copy(self.run_folder / f"metrics_{rank}.jsonl", self.folder / f"marks_{rank}" / f"{rank}.jsonl")
        marks = plot("--output=marks.html", "marks_{rank}/{rank}.jsonl", folder=self.folder)
        two = plot("run1/metrics_0.jsonl", "run1/metrics_0.jsonl", "-o", "two.html", folder=self.folder)
        # As `tail -c` leaves it: what lacks its beginning is no part of another run.
        (self.folder / "tail.jsonl").write_text((self.run_folder / "metrics_0.jsonl").read_text()[20:])
        tail = plot("run1/metrics_0.jsonl", "tail.jsonl", "-o", "tail.html", folder=self.folder)
        for done in (one, mark, marks, two, tail):
            self.assertEqual(done.returncode, 0, done.stderr)
        pages = {name: (self.folder / f"{name}.html").read_text() for name in ("one", "mark", "marks", "two", "tail")}
        self.assertEqual({name: text.count("class=\"key\"") for name, text in pages.items()}, {"one": 1, "mark": 1, "marks": 1, "two": 2, "tail": 2})
        for name in ("mark", "marks"):
            self.assertIn("rank 1: data", pages[name])
        self.assertIn("attempt 1 on", pages["one"])
        self.assertIn("2 runs", pages["two"])

    def test_a_run_that_goes_on_is_drawn_as_far_as_it_is(self):
        whole = (self.run_folder / "metrics_0.jsonl").read_text()
        (self.folder / "half.jsonl").write_text(whole[:-20])
        done = plot("half.jsonl", "-o", "half.html", folder=self.folder)
        said = "half.jsonl: line 9, the last one, is only half there; left out"
        self.assertEqual((done.returncode, done.stderr), (0, said + "\n"))
        self.assertIn(said, (self.folder / "half.html").read_text())

    def test_what_was_given_wrong_is_said_with_what_to_do(self):
        (self.folder / "words.txt").write_text("no lines of ours\n")
        (self.folder / "empty").mkdir(exist_ok=True)
        (self.folder / "loop").symlink_to("loop")  # What the superuser cannot read either.
        for arguments, status, words in [
                ([], 2, "name the files of a run"), (["--colour", "x"], 2, "unknown option --colour"), (["-o"], 2, "-o needs a file"),
                (["-o", "-", "run1"], 2, '--output needs a file; "-" is none: /dev/stdout is standard output'),
                (["none.jsonl"], 2, "cannot read none.jsonl: there is no such file or folder"),
                (["words.txt"], 2, "words.txt has no line of train --metrics or ddprun --event-log"),
                (["empty"], 2, "empty holds no file that ends in .jsonl or .json"),
                (["m_{rank}"], 2, "no rank has a file m_{rank}"),
                (["loop"], 2, "cannot read loop: Too many levels of symbolic links"),
                (["loop/m_{rank}"], 2, "cannot read loop/m_0: Too many levels of symbolic links"),
                (["run1", "-o", "missing/report.html"], 70, "cannot write missing/report.html")]:
            with self.subTest(arguments=arguments):
                done = plot(*arguments, folder=self.folder)
                self.assertEqual(done.returncode, status, done.stderr)
                self.assertIn(("ddprun plot: error: " if status == 2 else "") + words, done.stderr)
        help_text = plot("--help", folder=self.folder)
        self.assertEqual(help_text.returncode, 0)
        self.assertIn("usage: ddprun plot", help_text.stdout)

    @unittest.skipUnless((BIN / "train").exists(), "no train in this build")
    def test_the_trainers_own_metrics_are_drawn(self):
        done = subprocess.run([BIN / "train", "--dataset", "synthetic", "--synthetic-images", "64", "--image-size", "16", "--model",
                               "convnet", "--batch-size", "16", "--epochs", "2", "--print-freq", "1", "--workers", "0",
                               "--device", "cpu", "--metrics", "m_{rank}.jsonl", "--report", "own.html"], cwd=self.folder, capture_output=True, text=True, timeout=patience(100))
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = [json.loads(line) for line in (self.folder / "m_0.jsonl").read_text().splitlines()]
        drawn = plot("m_{rank}.jsonl", "-o", "train.html", folder=self.folder)
        self.assertEqual((drawn.returncode, drawn.stderr), (0, ""))
        page = (self.folder / "train.html").read_text()
        self.assertEqual((self.folder / "own.html").read_text(), page)
        last = [line for line in lines if line["event"] == "train"][-1]
        self.assertIn(f"<td>8 of 8</td><td>{last['loss']:.4g}</td>", page)
        accuracy = [line["prec1"] for line in lines if line["event"] == "validation"]
        self.assertIn(f"validation, step 8: {accuracy[-1]:.6g}", page)
        self.assertIn("<td>done</td>", page)
        self.assertEqual(len(re.findall("<figure>", page)), 5)  # Loss, accuracy, rate, images/s, shares.


# What a reader sees: where lines lie, and in which colors.
SHAPES = """
  const box = e => { const b = e.getBoundingClientRect(); return [b.left, b.top, b.right, b.bottom]; };
  const frames = [...document.querySelectorAll('svg:not(.key)')].map(s => ({frame: box(s),
    within: [...s.querySelectorAll('polyline,rect,text,circle,path')].map(box)}));
  const style = getComputedStyle(document.body), words = getComputedStyle(document.querySelector('svg text.words'));
  return {frames, paper: style.backgroundColor, ink: style.color, words: words.fill,
          titles: [...document.querySelectorAll('figcaption')].map(e => e.textContent),
          wide: document.documentElement.scrollWidth > innerWidth, loss: box(document.querySelector('polyline'))};
"""


def brightness(color):
    red, green, blue = (int(number) for number in re.findall(r"\d+", color)[:3])
    return 0.299 * red + 0.587 * green + 0.114 * blue


class InBrowser(Plot):
    def test_the_page_shows_what_it_says_in_light_and_in_dark(self):
        plot("run1", folder=self.folder)
        for dark in (False, True):
            seen = browser.ask(self.folder / "report.html", SHAPES, dark)
            with self.subTest(dark=dark):
                self.assertEqual([title.split(":")[0] for title in seen["titles"]],
                                 ["Loss", "Top-1 accuracy in percent", "Learning rate", "Images per second, of all workers",
                                  "Where the time of steps went", "Attempts and failures"])
                self.assertFalse(seen["wide"], "the page is wider than its window")
                for picture in seen["frames"]:
                    left, top, right, bottom = picture["frame"]
                    for shape in picture["within"]:
                        self.assertTrue(left - 2 <= shape[0] and shape[2] <= right + 2 and top - 2 <= shape[1]
                                        and shape[3] <= bottom + 2, f"{shape} lies outside of {picture['frame']}")
                # A loss that falls all the way fills its picture from the upper left to the lower right.
                self.assertGreater(seen["loss"][2] - seen["loss"][0], 300)
                self.assertGreater(seen["loss"][3] - seen["loss"][1], 100)
                contrast = brightness(seen["paper"]) - brightness(seen["ink"])
                self.assertGreater(-contrast if dark else contrast, 120)
                self.assertGreater(abs(brightness(seen["paper"]) - brightness(seen["words"])), 120)


if __name__ == "__main__":
    if IN_BROWSER and browser.PROGRAM is None:
        print("SKIPPED: " + browser.MISSING)
        sys.exit(0)
    unittest.main(argv=sys.argv[:1], defaultTest="InBrowser" if IN_BROWSER else "Command")
