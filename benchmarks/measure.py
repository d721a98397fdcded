"""What every benchmark needs: where things are, A B A B runs, medians, tables, JSON.

Standard library only: the drivers run with the system's Python, whatever the peer runs with.
"""
import datetime
import json
import os
import pathlib
import platform
import select
import statistics

ROOT = pathlib.Path(__file__).resolve().parent.parent
BIN = pathlib.Path(os.environ.get("DDPRUN_BIN_DIR", ROOT / "build" / "bin"))
PEER = ROOT / ".deps" / "peer" / "bin"
RESULTS = ROOT / "build" / "bench"
NO_PEER = "no Python torch in .deps/peer (scripts/setup --peer installs it)"


class Unavailable(Exception):
    """A benchmark cannot run here; the text says what is missing."""


def ours(name):
    """Path of one of our programs."""
    path = BIN / name
    if not path.exists():
        raise Unavailable(f"no {path} (scripts/build makes it)")
    return str(path)


def peer(name):
    """Path of a program of the peer's Python, or None where it is not installed."""
    path = PEER / name
    return str(path) if path.exists() else None


def environment(**variables):
    """This process's environment less what would make a child part of a job, plus variables."""
    drop = ("PET_", "SLURM_", "OMPI_", "PMI", "TORCHELASTIC_", "ROLE_")
    exact = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
    kept = {k: v for k, v in os.environ.items() if k not in exact and not k.startswith(drop)}
    # Chosen for old numeric libraries on some machines; both sides run without.
    for name in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):
        kept.pop(name, None)
    return {**kept, **variables}


def alternate(sides, rounds):
    """Calls each side once a round, A B A B; sides maps a name to a function that returns a dict of
    numbers. Returns {name: {quantity: [one value a round]}}; a side that is None is left out."""
    samples = {name: {} for name, run in sides.items() if run}
    for _ in range(rounds):
        for name in samples:
            for quantity, value in sides[name]().items():
                samples[name].setdefault(quantity, []).append(value)
    return samples


def wait(process, limit_s):
    """Until a Popen has ended, to the microsecond: its own wait(timeout) looks at intervals that grow
    to 50 ms, which is what a short job would seem to last."""
    pidfd = os.pidfd_open(process.pid)
    try:
        poller = select.poll()
        poller.register(pidfd, select.POLLIN)
        if not poller.poll(1e3 * limit_s):
            raise TimeoutError(f"{process.args} did not end within {limit_s} s")
    finally:
        os.close(pidfd)
    return process.wait()


def summary(values):
    return {"median": statistics.median(values), "min": min(values), "max": max(values),
            "samples": values}


def row(what, unit, ours_values, peer_values, lower_is_better):
    """One line of a table. `ratio` > 1 means that ours is better; there is none to a zero."""
    result = {"what": what, "unit": unit, "ours": summary(ours_values), "peer": None, "ratio": None}
    if peer_values:
        result["peer"] = summary(peer_values)
        mine, other = result["ours"]["median"], result["peer"]["median"]
        better, worse = (mine, other) if lower_is_better else (other, mine)
        result["ratio"] = worse / better if better else None
    return result


def number(value):
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.3g}"


def cell(side):
    if side is None:
        return "-"
    return f"{number(side['median'])} ({number(side['min'])} - {number(side['max'])})"


def table(rows, peer_name):
    """A Markdown table: medians, (minimum - maximum), and how many times better ours is."""
    lines = [f"| what | unit | ours | {peer_name} | ratio |", "|---|---|---:|---:|---:|"]
    for r in rows:
        ratio = "-" if r["ratio"] is None else f"{number(r['ratio'])} x"
        lines.append(f"| {r['what']} | {r['unit']} | {cell(r['ours'])} | {cell(r['peer'])} | {ratio} |")
    return "\n".join(lines)


def machine():
    """The machine in words, for tables."""
    model = "unknown processor"
    for line in open("/proc/cpuinfo"):
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    memory = next(int(line.split()[1]) for line in open("/proc/meminfo")) / 2**20
    cores = len(os.sched_getaffinity(0))
    return f"{model}, {cores} cores, {memory:.0f} GiB, Linux {platform.release()}"


def save(name, rows, peer_name, settings):
    """Writes build/bench/NAME.json and returns its path."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{name}.json"
    result = {
        "benchmark": name,
        "date": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "machine": machine(),
        "load_before": os.getloadavg()[0],
        "peer": peer_name,
        "settings": settings,
        "rows": rows,
    }
    path.write_text(json.dumps(result, indent=1) + "\n")
    return path
