"""scripts/bench recovery: rounds of several sittings are one table, and a pause is of the loss that made it.

  bench_recovery_test.py SOURCE_DIR
"""
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(sys.argv[1]).resolve() / "benchmarks"))
import chaos  # noqa: E402
from kept_cells import KeptCells  # noqa: E402

CUT, KILLED = ("elastic", "cut", "data"), ("elastic", "worker", "forward")


class Kept(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = pathlib.Path(self.folder.name) / "cells.jsonl"

    def sitting(self, machine="a machine", heartbeat_s=1.0):
        return KeptCells(str(self.path), machine, heartbeat=heartbeat_s)

    def test_adds_up(self):
        first = self.sitting()
        first.add(CUT, 1.5)
        first.add(CUT, None)
        first.add(CUT, None, "nothing for 60 s")
        first.add(KILLED, 0.5)
        self.sitting("another").add(CUT, 2.5)
        found = self.sitting().found()
        self.assertEqual(found, {CUT: ([1.5, 2.5], ["failed", "nothing for 60 s"]), KILLED: ([0.5], [])})
        self.assertRegex(self.sitting().origin(), r"^each cell 1 to 4 times, [-0-9]+, a machine and another$")

    def test_failures_alone_are_a_cell(self):
        self.sitting().add(CUT, None)
        self.assertEqual(self.sitting().found(), {CUT: ([], ["failed"])})

    def test_another_heartbeat_is_another_table(self):
        self.sitting(heartbeat_s=0.5).add(CUT, 0.6)
        self.assertEqual(self.sitting().found(), {})
        self.assertEqual(self.sitting(heartbeat_s=0.5).found(), {CUT: ([0.6], [])})

    def test_without_a_file(self):
        cells = KeptCells("", "a machine", heartbeat=1.0)
        cells.add(CUT, 1.5)
        self.assertEqual(cells.found(), {CUT: ([1.5], [])})


class Standstills(unittest.TestCase):
    """Steps of 0.1 s."""

    def steps(self, *pauses):
        """Ten steps, a pause of so many seconds, ten steps ..."""
        times = [0.1 * step for step in range(10)]
        for pause in pauses:
            times += [times[-1] + pause + 0.1 * step for step in range(10)]
        return times

    def stood(self, steps, *strikes):
        return [round(seconds, 3) for seconds in chaos.standstills(steps, list(strikes), 0.1)]

    def test_a_pause_is_of_the_loss_it_comes_after(self):
        self.assertEqual(self.stood(self.steps(0.6, 2.1), 0.95, 2.45), [0.5, 2.0])

    def test_one_in_which_another_loss_comes_is_of_both(self):
        self.assertEqual(self.stood(self.steps(2.1), 0.95, 1.6), [2.0, 2.0])

    def test_a_loss_that_nobody_noticed(self):
        self.assertEqual(self.stood(self.steps(), 0.45), [0.0])


unittest.main(argv=sys.argv[:1])
