"""agents: 500 agents of one job, without workers: how soon all have their ranks, and how soon they go on without node 0.

Node 0, which coordinates, is one process; the 499 others share one thread of another (benchmarks/agents.cpp), so that
both have a core of a machine with two. A successor of node 0 shares that thread with all of them. No peer is beside it.
"""
import json
import subprocess

import measure

AGENTS = 500
LIMIT_S = 300


def one_job():
    result = subprocess.run([measure.ours("agents"), "--agents", str(AGENTS)], env=measure.environment(),
                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, timeout=LIMIT_S, text=True, check=True)
    return json.loads(result.stdout)


def run(rounds):
    samples = measure.alternate({"ours": one_job}, rounds)
    return [
        measure.row(what, "ms", samples["ours"][quantity], [], lower_is_better=True)
        for quantity, what in (("join_ms", f"{AGENTS} agents join -> the last has its rank"),
                               ("leads_ms", "SIGKILL of node 0 -> another one coordinates the job"),
                               ("welcome_ms", "SIGKILL of node 0 -> the last agent is welcomed there"),
                               ("next_ms", "SIGKILL of node 0 -> the last agent has its rank of the next attempt"))
    ], {"rounds": rounds, "agents": AGENTS}


PEER_NAME = "nobody"
