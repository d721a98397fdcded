"""Steps with limits, whose results are on disk as soon as they are known: for a machine that is had for minutes.

A step is a command. It runs in a session of its own, which is killed at its limit, and what follows runs all the
same, unless it needs that step. After each one both files of results, JSON and Markdown, are written anew.
"""
import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import time

PASSED, FAILED, LATE, LEFT_OUT = "passed", "failed", "over its limit", "not run"
TAIL_BYTES = 3000


@dataclasses.dataclass
class Step:
    name: str
    argv: list
    limit_s: float
    needs: tuple = ()        # Steps that must have passed.
    variables: dict = dataclasses.field(default_factory=dict)
    figures: callable = None  # Of the output: {"what": number}; what is not there is an error of the step.


@dataclasses.dataclass
class Result:
    name: str
    state: str
    seconds: float = 0.0
    why: str = ""
    figures: dict = dataclasses.field(default_factory=dict)


def tail(log):
    return pathlib.Path(log).read_bytes()[-TAIL_BYTES:].decode(errors="replace").strip()


def end_session(leader):
    """Kills all of the leader's session: ninja gives each compiler a process group of its own."""
    for entry in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if os.getsid(int(entry.name)) == leader:
                os.kill(int(entry.name), signal.SIGKILL)
        except ProcessLookupError:
            pass


def execute(step, limit_s, log):
    """Runs one step; its output goes to the file `log`."""
    begun = time.monotonic()

    def ended(state, why="", figures=None):
        return Result(step.name, state, round(time.monotonic() - begun, 1), why, figures or {})

    with open(log, "wb") as output:
        try:
            process = subprocess.Popen([str(word) for word in step.argv], stdin=subprocess.DEVNULL, stdout=output,
                                       stderr=subprocess.STDOUT, env=os.environ | step.variables,
                                       start_new_session=True)
        except OSError as error:
            return ended(FAILED, f"{step.argv[0]}: {error.strerror}")
        try:
            status = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            end_session(process.pid)
            process.wait()
            return ended(LATE, f"{limit_s:.0f} s: {tail(log)}")
    text = pathlib.Path(log).read_bytes().decode(errors="replace")
    if status != 0:
        return ended(FAILED, f"exit status {status}: {tail(log)}")
    try:
        return ended(PASSED, figures=step.figures(text) if step.figures else None)
    except (ValueError, KeyError, IndexError, TypeError, OSError) as error:
        return ended(FAILED, f"its output cannot be read ({error!r}): {tail(log)}")


def markdown(head, results):
    lines = [f"# {head['command']}", "", *(f"- {name}: {value}" for name, value in head.items() if name != "command"),
             "", "| step | result | seconds |", "|---|---|---:|"]
    for result in results:
        why = result.why.splitlines()[0] if result.why else ""
        lines.append(f"| {result.name} | {result.state}{': ' if why else ''}{why[:120]} | {result.seconds:.1f} |")
    figures = [(r.name, what, value) for r in results for what, value in r.figures.items()]
    if figures:
        lines += ["", "| step | what | figure |", "|---|---|---:|"]
        lines += [f"| {name} | {what} | {value:.6g} |" for name, what, value in figures]
    for result in results:
        if result.state in (FAILED, LATE):
            lines += ["", f"## {result.name}", "", "```", result.why, "```"]
    return "\n".join(lines) + "\n"


def write(folder, head, results):
    (folder / "results.json").write_text(
        json.dumps(head | {"steps": [dataclasses.asdict(result) for result in results]}, indent=1) + "\n")
    (folder / "results.md").write_text(markdown(head, results))


def run(steps, total_s, folder, head, tell=print):
    """Runs the steps in order, for `total_s` at most; the results, which lie in `folder` too."""
    folder.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + total_s
    results = []
    for number, step in enumerate(steps):
        states = {result.name: result.state for result in results}
        lacking = [need for need in step.needs if states.get(need) != PASSED]
        left = until - time.monotonic()
        if lacking:
            result = Result(step.name, LEFT_OUT, why=f"it needs: {lacking[0]}")
        elif left < 1:
            result = Result(step.name, LEFT_OUT, why=f"the {total_s:.0f} s were over")
        else:
            tell(f"{step.name} ...", flush=True)
            result = execute(step, min(step.limit_s, left), folder / f"{number:02}.log")
        results.append(result)
        why = f": {result.why}" if result.why else ""
        tell(f"{step.name}: {result.state}, {result.seconds:.1f} s{why}", flush=True)
        write(folder, head, results)
    return results
