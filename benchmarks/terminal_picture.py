"""Draws docs/pictures/terminal.svg: what a terminal shows of a real job of which one worker is killed.

  terminal_picture.py BIN_DIR

Two workers train a ResNet-20 on the MNIST files of the tree, under a pseudo-terminal of this program's own. When the
first checkpoint is there, rank 1 gets SIGKILL. What the launcher and the trainer write goes through a small terminal
(carriage return, erased lines, colours), and what that shows at the end is the picture.
"""
import fcntl
import os
import pathlib
import pty
import re
import signal
import struct
import sys
import tempfile
import termios
import time

import svg

SOURCE = pathlib.Path(__file__).resolve().parent.parent
PICTURE = SOURCE / "docs" / "pictures" / "terminal.svg"
COLUMNS = 112
OPTIONS = ["--nproc-per-node", "2", "--max-restarts", "1"]
TRAINING = ["train", "--dataset", "mnist", "--model", "resnet20", "--epochs", "1", "--checkpoint-dir", "runs/mnist",
            "--checkpoint-every", "50"]
COLUMN, LINE, SIZE, LEFT, TOP = 8.0, 19.0, 13, 20, 62
MONOSPACE = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
# Of the 256 colours those that launcher/output/color.cpp uses; others are drawn as plain words.
KINDS = {32: "series0", 166: "series1", 64: "series2", 169: "series3", 30: "series2", 99: "series0", 136: "series1",
         160: "series1", 168: "series3"}


class Screen:
    """The lines that a terminal of COLUMNS would show, as lists of (character, kind of text)."""

    def __init__(self):
        self.lines, self.column, self.kind = [[]], 0, "words"

    def put(self, character):
        if self.column == COLUMNS:
            self.lines.append([])
            self.column = 0
        line = self.lines[-1]
        line[self.column:self.column + 1] = [(character, self.kind)]
        self.column += 1

    def style(self, numbers):
        if numbers[:2] == [38, 5]:
            self.kind = KINDS.get(numbers[2], "words")
        elif numbers[0] in (0, 39):
            self.kind = "words"

    def write(self, text):
        for part in re.findall(r"\x1b\[[\d;?]*[a-zA-Z]|.", text, re.DOTALL):
            if part[0] == "\x1b":
                if part[-1] == "m":
                    self.style([int(number or 0) for number in part[2:-1].split(";")])
                elif part[-1] == "K":
                    del self.lines[-1][self.column:]
            elif part == "\r":
                self.column = 0
            elif part == "\n":
                self.lines.append([])
                self.column = 0
            elif part.isprintable():
                self.put(part)


def runs_of(line):
    """(column, text, kind) of what stands together in one colour."""
    start = 0
    for column in range(1, len(line) + 1):
        if column == len(line) or line[column][1] != line[start][1]:
            text = "".join(character for character, _ in line[start:column])
            if text.strip():
                yield start, text, line[start][1]
            start = column


def drawn(lines, title):
    shapes = [f"<circle class='{kind}' cx='{LEFT + 6 + 20 * place}' cy='22' r='6'/>"
              for place, kind in enumerate(("series1", "series3", "series2"))]
    shapes += [svg.text(LEFT + 66, 27, title, anchor="start", size=13, kind="quiet")]
    for row, line in enumerate(lines):
        for column, text, kind in runs_of(line):
            # The length is given, so that columns stay where they are in whatever font the reader has.
            shapes.append(svg.text(LEFT + column * COLUMN, TOP + row * LINE, text, anchor="start", size=SIZE, kind=kind,
                                   extra=f"xml:space='preserve' textLength='{len(text) * COLUMN:.0f}' "
                                         f"style=\"font-family:{MONOSPACE}\""))
    return svg.document(2 * LEFT + round(COLUMNS * COLUMN), round(TOP + len(lines) * LINE), title, shapes)


def worker_of(launcher, rank):
    """The process of that rank, among the children of the launcher."""
    children = pathlib.Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    for child in children:
        try:
            if f"RANK={rank}".encode() in pathlib.Path(f"/proc/{child}/environ").read_bytes().split(b"\0"):
                return int(child)
        except OSError:
            continue
    return None


def run_and_kill(programs, folder):
    """What the job wrote to its terminal."""
    launcher, terminal = pty.fork()
    if launcher == 0:
        os.chdir(folder)
        os.environ.update(PATH=f"{programs}:{os.environ['PATH']}", TERM="xterm-256color")
        os.environ.pop("NO_COLOR", None)
        os.execvp("ddprun", ["ddprun", *OPTIONS, *TRAINING])
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 30, COLUMNS, 0, 0))
    written, killed = b"", False
    while True:
        try:
            more = os.read(terminal, 65536)
        except OSError:  # EIO: nobody has the other end any more.
            break
        written += more
        if not killed and list(folder.glob("runs/mnist/epoch_*.safetensors")):
            victim = worker_of(launcher, 1)
            if victim:
                os.kill(victim, signal.SIGKILL)
                killed = True
    status = os.waitstatus_to_exitcode(os.waitpid(launcher, 0)[1])
    if status != 0 or not killed:
        sys.exit(f"terminal_picture: the job ended with {status}, a worker was {'' if killed else 'not '}killed:\n"
                 + written.decode(errors="replace"))
    return written.decode(errors="replace")


def main():
    programs = pathlib.Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "data").symlink_to(SOURCE / "data")
        began = time.monotonic()
        written = run_and_kill(programs, folder)
    screen = Screen()
    screen.kind = "quiet"
    screen.write("$ ")
    screen.kind = "words"
    screen.write(" ".join(["ddprun", *OPTIONS]) + " \\\r\n    " + " ".join(TRAINING) + "\r\n" + written)
    lines = [line for line in screen.lines if line]
    PICTURE.write_text(drawn(lines, "One of two workers is killed; the job goes on from its last checkpoint"))
    print(f"{PICTURE.relative_to(SOURCE)}: {len(lines)} lines of a job of {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
