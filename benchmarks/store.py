"""store: requests to the c10d store, ours beside LibTorch's own libuv server.

Operations: LibTorch's own client is the load for both servers (store_torch), one client per thread,
each with one request under way; the threads share the machine with the server. The least: the same
against a server that keeps nothing and does not sleep under load (store_floor): no server can be
faster than that. All three are loaded in turn, a tenth of a second each, by the same threads, and the
ratio is the median of the ratios of neighbours. For a virtual machine's cores are now near each other
and now far (line_trip.h, the first row): all that crosses them then takes up to three times longer,
with every server. `store-apart` holds the server on one core and all threads on the other, so that
nothing but this distance is left to chance; `store-together` puts both on one core, where a request
costs what it takes to compute and nothing crosses (no bound there: one that never sleeps is in the way).

Pipelined: raw requests, 256 sent at a time on one connection (store_load). Crowd: thousands of
connections driven by one thread (store_scale): what one costs in memory, how soon a set releases all
waits, how long the start of a job takes.
"""
import contextlib
import json
import os
import resource
import statistics
import subprocess

import measure

PEER_NAME = "libuv server, torch 2.11.0"
OPERATIONS = ("set", "get", "add", "check", "wait", "multi_get", "mixed")
THREADS = (1, 8, 64)
CORES = {"apart": {"server": 1, "clients": 0}, "together": {"server": 0, "clients": 0}}
CROWDS = (10, 100, 1000, 10_000)
PEER_CROWD_MAX = 100  # The stock server looks up a name for each connection, 80 ms here.
SLICE_SECONDS = 0.1
SLICES_PER_ROUND = 3
SECONDS = 0.5
LARGE_BYTES = 64 << 20


@contextlib.contextmanager
def server(argv, core=None):
    """A server that prints its port and ends with its input: (pid, port)."""
    pin = None if core is None else lambda: os.sched_setaffinity(0, {core})
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               stderr=subprocess.DEVNULL, text=True, preexec_fn=pin)
    try:
        yield process.pid, int(process.stdout.readline())
    finally:
        process.stdin.close()
        process.wait(timeout=60)


def raw_load(port, *options):
    argv = [measure.ours("store_load"), "--port", str(port), *map(str, options)]
    return json.loads(subprocess.run(argv, check=True, capture_output=True, text=True,
                                     timeout=120).stdout)


def slices(ports, threads, count, core):
    """All operations against all servers in turn; a list of what store_torch prints."""
    argv = [measure.ours("store_torch"), "load", "--ports", ",".join(map(str, ports)),
            "--operations", ",".join(OPERATIONS), "--threads", str(threads),
            "--slices", str(count), "--seconds", str(SLICE_SECONDS)]
    if core is not None:
        argv += ["--core", str(core)]
    out = subprocess.run(argv, check=True, capture_output=True, text=True, timeout=600).stdout
    return [json.loads(line) for line in out.splitlines()]


def paired_row(what, unit, key, side, results, lower_is_better):
    """Server number `side` beside the stock one (1), each slice with its neighbour."""
    mine = [result["servers"][side][key] for result in results]
    other = [result["servers"][1][key] for result in results]
    row = measure.row(what, unit, mine, other, lower_is_better)
    ratios = [(b / a if lower_is_better else a / b) for a, b in zip(mine, other)]
    row["ratio"] = statistics.median(ratios)
    return row


def operation_rows(rounds, cores=None):
    """Rows of the operations, of ours and of the least."""
    commands = [[measure.ours("serve_store")], [measure.ours("store_torch"), "serve"]]
    cores = cores or {"server": None, "clients": None}
    bound = cores["server"] is None or cores["server"] != cores["clients"]
    if bound:  # On its clients' core it would be in their way: it never gives that up.
        commands.append([measure.ours("store_floor")])
    rows, lines = [], []
    for threads in THREADS:
        with contextlib.ExitStack() as stack:
            ports = [stack.enter_context(server(argv, cores["server"]))[1] for argv in commands]
            results = slices(ports, threads, SLICES_PER_ROUND * rounds, cores["clients"])
        lines += [result["line_ns"] for result in results]
        for result in results:
            for one in result["servers"]:
                one["k"] = one["per_second"] / 1e3
        for operation in OPERATIONS:
            some = [result for result in results if result["operation"] == operation]
            name = f"{threads} thread{'s' * (threads > 1)}"
            rows.append(paired_row(f"{operation}, {name}", "1000/s", "k", 0, some, False))
            if bound:
                rows.append(paired_row(f"the least, {operation}, {name}", "1000/s", "k", 2, some,
                                       False))
            if operation == "mixed":
                rows.append(paired_row(f"99th percentile of that, {name}", "us", "p99_us", 0, some,
                                       True))
                rows.append(paired_row(f"99th percentile of its gets, {name}", "us", "get_p99_us", 0,
                                       some, True))
    line = measure.row("a cache line, from core to core and back", "ns", lines, [], True)
    return [line] + rows


def pipelined_rows(servers, rounds):
    rows = []
    for operation in ("get", "add"):
        samples = measure.alternate(
            {name: lambda p=port: {"k": raw_load(p, "--threads", 1, "--pipeline", 256, "--operation",
                                                 operation, "--seconds",
                                                 SECONDS)["per_second"] / 1e3}
             for name, (_, port) in servers.items()}, rounds)
        rows.append(measure.row(f"{operation}, 256 at a time on one connection", "1000/s",
                                samples["ours"]["k"], samples["peer"]["k"], lower_is_better=False))
    return rows


def large_rows(servers, rounds):
    """Values that the stock server does not take."""
    _, port = servers["ours"]
    rows = []
    for operation in ("set", "get"):
        one = lambda o=operation: {"gb": raw_load(port, "--threads", 1, "--operation", o,
                                              "--value-bytes", LARGE_BYTES, "--seconds",
                                              SECONDS)["per_second"] * LARGE_BYTES / 1e9}
        samples = measure.alternate({"ours": one}, rounds)
        rows.append(measure.row(f"{operation} of 64 MiB", "GB/s", samples["ours"]["gb"], [],
                                lower_is_better=False))
    return rows


def crowd_rows(commands, rounds):
    scale = measure.ours("store_scale")

    def crowd(argv, clients):
        with server(argv) as (pid, port):
            out = subprocess.run([scale, "--port", str(port), "--clients", str(clients),
                                  "--server-pid", str(pid)],
                                 check=True, capture_output=True, text=True, timeout=300).stdout
        return json.loads(out)

    rows = []
    for clients in CROWDS:
        samples = measure.alternate(
            {name: lambda a=argv, c=clients: crowd(a, c) for name, argv in commands.items()
             if name == "ours" or clients <= PEER_CROWD_MAX}, rounds)
        row = lambda what, unit, key: measure.row(
            f"{clients} clients: {what}", unit, samples["ours"][key],
            samples.get("peer", {}).get(key, []), lower_is_better=True)
        rows.append(row("the start of their job", "s", "job_start_s"))
        rows.append(row("one set releases all waits", "ms", "release_ms"))
        if clients >= 1000:
            rows.append(row("memory of one", "bytes", "bytes_per_client"))
    return rows


def run(rounds, placement=None):
    files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files[1], files[1]))
    settings = {"rounds": rounds, "slices": SLICES_PER_ROUND * rounds, "seconds": SLICE_SECONDS}
    if placement:
        return operation_rows(rounds, CORES[placement]), settings
    rows = operation_rows(rounds)
    commands = {"ours": [measure.ours("serve_store")],
                "peer": [measure.ours("store_torch"), "serve"]}
    with contextlib.ExitStack() as stack:
        servers = {name: stack.enter_context(server(argv)) for name, argv in commands.items()}
        rows += pipelined_rows(servers, rounds) + large_rows(servers, rounds)
    return rows + crowd_rows(commands, rounds), settings
