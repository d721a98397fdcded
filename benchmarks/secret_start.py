"""secret: what it costs the start of a job of two nodes that they prove the job's secret to each other.

Both nodes are on this machine, at a loopback address, with --auth secret and with --auth none in turns, and with
--auth secret where only the machine's OpenSSL is there (rendezvous/secure/openssl_copy.h); workers are /bin/true. Processor time is that of a launcher and its worker; it says more than the clock where the machine is busy.
"""
import os
import shutil
import socket
import subprocess
import tempfile
import time

import measure

PEER_NAME = "without a secret"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def processor_ms(process):
    """Reaps it, and tells what it and its workers have used."""
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise RuntimeError(f"{process.args} ended with {process.returncode}")
    return 1e3 * (usage.ru_utime + usage.ru_stime)


def job(ddprun, auth, variables):
    port = str(free_port())

    def node(rank):
        return subprocess.Popen(
            [ddprun, "--nnodes", "2", "--node-rank", str(rank), "--master-addr", "127.0.0.1", "--master-port", port,
             "--auth", auth, "/bin/true"],
            env=variables, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE if rank == 0 else subprocess.DEVNULL)

    start = time.perf_counter()
    host = node(0)
    with host.stderr as said:
        while b"waiting for node 1" not in (line := said.readline()):
            if not line:
                raise RuntimeError("node 0 ended before it waited for the other")
        waits = time.perf_counter()
        other = node(1)
        others_ms = processor_ms(other)
        end = time.perf_counter()
        said.read()
    return {"host": processor_ms(host), "other": others_ms, "until": 1e3 * (waits - start), "joins": 1e3 * (end - waits)}


def without_copy(ddprun, folder):
    """The program alone: it opens the machine's OpenSSL."""
    return shutil.copy(ddprun, folder)


def run(rounds):
    ddprun = measure.ours("ddprun")
    with tempfile.TemporaryDirectory() as config, tempfile.TemporaryDirectory() as alone:
        variables = measure.environment(XDG_CONFIG_HOME=config)
        programs = {"ours": (ddprun, "secret"), "peer": (ddprun, "none"), "machine": (without_copy(ddprun, alone), "secret")}
        sides = {side: lambda what=what: job(*what, variables) for side, what in programs.items()}
        for side in sides.values():
            side()  # Once unmeasured: the files are in memory, and the secret is made.
        samples = measure.alternate(sides, rounds)
    names = {"host": "processor time of node 0", "other": "processor time of node 1",
             "until": "node 0, from its start until it waits for node 1", "joins": "node 1, from its start to its end"}
    rows = [measure.row(what, "ms", samples["ours"][name], samples["peer"][name], lower_is_better=True)
            for name, what in names.items()]
    # Of neighbours in time: what the machine does besides is in both.
    for side, title in (("ours", "a secret adds"), ("machine", "without our copy of OpenSSL it adds")):
        rows += [measure.row(f"{title}: {what}", "ms", [with_it - without for with_it, without in
                                                        zip(samples[side][name], samples["peer"][name])], [], lower_is_better=True)
                 for name, what in names.items()]
    return rows, {"nodes": 2}
