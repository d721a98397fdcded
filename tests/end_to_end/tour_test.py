"""Runs the commands of README.md and docs/tour.md as somebody would who pastes them, and compares what they print.

  tour_test.py SOURCE_DIR BIN_DIR     BIN_DIR: where ddprun and train are

They run in a folder that looks like the root of the tree. Of two hosts' commands only the plan is asked for (--dry-run).
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

from free_port import free_port
from patience import patience

SOURCE, BIN = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
LIMIT_S = 280  # Of each block, on an idle machine.


def blocks(text):
    """(language, content) of the blocks of a document, in their order."""
    return re.findall(r"^```(\w+)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def commands(block):
    """The commands of a block: without comments, lines that go on put together."""
    lines = block.replace("\\\n", " ").splitlines()
    return [re.sub(r"\s+", " ", re.sub(r"(^|\s)#\s.*", "", line)).strip() for line in lines
            if re.sub(r"(^|\s)#\s.*", "", line).strip()]


def missing_lines(expected, output):
    """Lines of `expected` that `output` lacks; `...` stands for anything within a line."""
    lines = [re.sub(r"^\[default\d*\]:", "", line.rstrip()) for line in output.splitlines()]
    patterns = {line: re.compile(".*".join(re.escape(part) for part in line.split("..."))) for line in expected.splitlines()}
    return [line for line, pattern in patterns.items() if not any(pattern.fullmatch(found) for found in lines)]


class Pasted(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        root = pathlib.Path(self.folder.name)
        (root / "data").symlink_to(SOURCE / "data")
        (root / "build").mkdir()
        (root / "build" / "bin").symlink_to(BIN)
        (root / "my_training.py").write_text("import os, sys\nprint('rank', os.environ['RANK'], sys.argv[1:])\n")

    def run_there(self, script):
        environment = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "HOME": self.folder.name, "OMP_NUM_THREADS": "1"}
        for name in [name for name in environment if name.startswith(("PET_", "SLURM_", "DDPRUN_"))]:
            del environment[name]
        return subprocess.run(["bash", "-e", "-c", script], cwd=self.folder.name, text=True, env=environment,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=patience(LIMIT_S))

    def test_what_is_missing_is_noticed(self):
        self.assertEqual(missing_lines("a ... c\nd", "a b c\n[default0]:d\n"), [])
        self.assertEqual(missing_lines("a ... c\nd", "a b x\ndd"), ["a ... c", "d"])
        self.assertEqual(commands("# title\na \\\n  b   # why\n\nc '#d'\n"), ["a b", "c '#d'"])

    def test_the_tour(self):
        found = blocks((SOURCE / "docs" / "tour.md").read_text())
        self.assertGreater(len(found), 15)
        port = str(free_port())
        for place, (language, block) in enumerate(found):
            if language != "sh":
                continue
            expected = found[place + 1][1] if found[place + 1][0] == "text" else ""
            with self.subTest(block=block):
                result = self.run_there(block.replace("29517", port))
                self.assertEqual(result.returncode, 0, result.stdout)
                self.assertEqual(missing_lines(expected, result.stdout), [], result.stdout)

    def test_the_commands_of_the_readme(self):
        ran = 0
        for language, block in blocks((SOURCE / "README.md").read_text()):
            if language != "sh":
                continue
            for command in commands(block):
                if " --node-rank " in command or " -H " in command:  # Of other hosts: what it would do.
                    command = re.sub(r"^ddprun ", "ddprun --dry-run ", command).replace("host-a", "127.0.0.1")
                # The whole epoch is what scripts/quickstart trains, in a test of its own.
                command = command.replace("--epochs 1 ", "--epochs 1 --steps 2 --batch-size 8 --no-validation ")
                with self.subTest(command=command):
                    self.assertRegex(command, r"^(build/bin/)?ddprun ")
                    result = self.run_there(command)
                    self.assertEqual(result.returncode, 0, result.stdout)
                    ran += 1
        self.assertGreater(ran, 4)

    def test_scripts_of_the_readme_have_the_options_that_it_gives_them(self):
        for name, option in re.findall(r"`(scripts/\w+) (--[\w-]+)", (SOURCE / "README.md").read_text()):
            with self.subTest(script=name, option=option):
                self.assertIn(option, (SOURCE / name).read_text())


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "--verbose"])
