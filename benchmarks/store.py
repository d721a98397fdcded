"""store: requests to the c10d store, ours beside LibTorch's own libuv server.

Operations: LibTorch's own client is the load for both servers (store_torch), one client per thread,
each with one request under way; the threads share the machine with the server. The least: the same
against a server that keeps nothing and never sleeps (store_floor). Pipelined: raw requests,
256 sent at a time on one connection (store_load). Crowd: thousands of connections driven by one
thread (store_scale): what one costs in memory, how soon a set releases all waits, how long the start
of a job takes.
"""
import contextlib
import json
import resource
import subprocess

import measure

PEER_NAME = "libuv server, torch 2.11.0"
OPERATIONS = ("set", "get", "add", "check", "wait", "multi_get", "mixed")
# LibTorch's client looks up a name for each connection, which can take long: few runs with many.
LOADS = {1: OPERATIONS, 8: OPERATIONS, 64: ("mixed",)}
CROWDS = (10, 100, 1000, 10_000)
PEER_CROWD_MAX = 100  # The stock server looks up a name for each connection, 80 ms here.
SECONDS = 0.5
LARGE_BYTES = 64 << 20


@contextlib.contextmanager
def server(argv):
    """A server that prints its port and ends with its input: (pid, port)."""
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               stderr=subprocess.DEVNULL, text=True)
    try:
        yield process.pid, int(process.stdout.readline())
    finally:
        process.stdin.close()
        process.wait(timeout=60)


def load(program, port, *options):
    argv = [program] if program.endswith("store_load") else [program, "load"]
    out = subprocess.run([*argv, "--port", str(port), *map(str, options)], check=True,
                         capture_output=True, text=True, timeout=120).stdout
    return json.loads(out)


def operation_rows(servers, rounds):
    client = measure.ours("store_torch")
    rows = []
    for threads, operations in LOADS.items():
        for operation in operations:
            one = lambda port, o=operation, t=threads: load(
                client, port, "--threads", t, "--operation", o, "--seconds", SECONDS)
            keep = lambda result: {"k": result["per_second"] / 1e3, "p99": result["p99_us"]}
            samples = measure.alternate(
                {name: lambda p=port: keep(one(p)) for name, (_, port) in servers.items()}, rounds)
            rows.append(measure.row(f"{operation}, {threads} thread{'s' * (threads > 1)}", "1000/s",
                                    samples["ours"]["k"], samples["peer"]["k"],
                                    lower_is_better=False))
            if operation == "mixed":
                rows.append(measure.row(f"99th percentile of that, {threads} thread{'s' * (threads > 1)}", "us",
                                        samples["ours"]["p99"], samples["peer"]["p99"],
                                        lower_is_better=True))
    return rows


def floor_rows(servers, rounds):
    """What the least that a server can do reaches: the bound of every ratio with one thread."""
    client = measure.ours("store_torch")
    rows = []
    with server([measure.ours("store_floor")]) as (_, floor):
        for operation in OPERATIONS:
            one = lambda port, o=operation: {"k": load(client, port, "--threads", 1, "--operation", o,
                                                       "--seconds", SECONDS)["per_second"] / 1e3}
            samples = measure.alternate({"floor": lambda: one(floor),
                                         "peer": lambda: one(servers["peer"][1])}, rounds)
            rows.append(measure.row(f"the least, {operation}, 1 thread", "1000/s",
                                    samples["floor"]["k"], samples["peer"]["k"],
                                    lower_is_better=False))
    return rows


def pipelined_rows(servers, rounds):
    raw = measure.ours("store_load")
    rows = []
    for operation in ("get", "add"):
        samples = measure.alternate(
            {name: lambda p=port: {"k": load(raw, p, "--threads", 1, "--pipeline", 256,
                                             "--operation", operation,
                                             "--seconds", SECONDS)["per_second"] / 1e3}
             for name, (_, port) in servers.items()}, rounds)
        rows.append(measure.row(f"{operation}, 256 at a time on one connection", "1000/s",
                                samples["ours"]["k"], samples["peer"]["k"], lower_is_better=False))
    return rows


def large_rows(servers, rounds):
    """Values that the stock server does not take."""
    raw = measure.ours("store_load")
    _, port = servers["ours"]
    rows = []
    for operation in ("set", "get"):
        one = lambda o=operation: {"gb": load(raw, port, "--threads", 1, "--operation", o,
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


def run(rounds):
    files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files[1], files[1]))
    commands = {"ours": [measure.ours("serve_store")],
                "peer": [measure.ours("store_torch"), "serve"]}
    with contextlib.ExitStack() as stack:
        servers = {name: stack.enter_context(server(argv)) for name, argv in commands.items()}
        rows = (operation_rows(servers, rounds) + floor_rows(servers, rounds) +
                pipelined_rows(servers, rounds) + large_rows(servers, rounds))
    return rows + crowd_rows(commands, rounds), {"rounds": rounds, "seconds": SECONDS}
