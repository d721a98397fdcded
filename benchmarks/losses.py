"""What a job of recovery_job.py can lose, and at which moment."""
import signal
import time

from recovery_job import NODES, WORKERS

STEPS = 12
STRUCK_STEP = 3  # A checkpoint follows two steps later.
SAVED_STEP = 5
AFTER_SAVED_STEP = 7
PLACES = [(host, local) for host in range(NODES) for local in range(WORKERS)]
VICTIM, SECOND, SURVIVOR = (1, 1), (2, 0), (2, 1)

# What is lost: (what it is, who stands still at the gate).
FAULTS = {
    "worker": ("a worker is killed", [VICTIM]),
    "spare": ("a worker with a spare is killed", [VICTIM]),
    "idle-spare": ("a spare is killed", [VICTIM]),
    "agent": ("a node's launcher is killed", [VICTIM]),
    "cut": ("a node's cable is pulled", [VICTIM]),
    "frozen": ("a node stands still (SIGSTOP)", [VICTIM]),
    "node0": ("node 0's launcher is killed", [(0, 1)]),
    "node0-cut": ("node 0's cable is pulled", [(0, 1)]),
    "node0-frozen": ("node 0 stands still", [(0, 1)]),
    "two": ("two workers of two nodes are killed", [VICTIM, SECOND]),
    "all-but-one": ("all workers but one are killed", [place for place in PLACES if place != SURVIVOR]),
}
PHASES = {
    "forming": "meeting the peers",
    "data": "loading data",
    "forward": "forward",
    "reducing": "reducing gradients",
    "prepared": "before the optimizer",
    "applied": "after the optimizer",
    "checkpoint": "saving",
    "joining": "taking the state over",
    "giving": "giving the state, which nobody else has",
}
WITH_SPARES = ("spare", "idle-spare")


def goes_on(fault, phase):
    """Whether nothing is lost that trains: a spare that has no rank yet."""
    return fault == "idle-spare" and phase not in ("joining", "giving")


def replace(job, places, step, held):
    """Kills the workers of `places` while that of `held` stands at the step, until a successor is about to have the state."""
    job.hold("a worker", lambda event: event.attempt == 0 and event.phase == "forward" and event.step == step
             and event.place == held)
    for place in places:
        job.kill_worker(place)
    job.gate.release()
    job.hold("a successor", lambda event: event.attempt > 0 and event.phase == "state" and event.place in places)


def hold_before(job, fault, phase):
    """Brings the job to the moment, and says which workers are to be struck."""
    victims = FAULTS[fault][1]

    def hold_victims(name, step):
        job.hold(f"{victims} at {name}", lambda event: event.attempt == 0 and event.phase == name and event.step == step
                 and event.place in victims, len(victims))
        return victims

    if phase == "forming":
        return hold_victims("meet", 0)
    if phase == "reducing":
        helper = next(place for place in reversed(PLACES) if place not in victims)
        job.hold("one before its reduction", lambda event: event.attempt == 0 and event.phase == "backward"
                 and event.step == STRUCK_STEP and event.place == helper)
        job.wait("all others in the reduction",
                 lambda: len(job.events(attempt=0, phase="backward", step=STRUCK_STEP)) == len(PLACES))
        time.sleep(0.05)  # They are a backward away from the wait for the one that stands still; any place will do.
        return victims
    if phase == "checkpoint":
        saving = job.hold("rank 0 saving", lambda event: event.attempt == 0 and event.phase == "checkpoint"
                          and event.step == SAVED_STEP)[0].place
        return [saving] if len(victims) == 1 else [saving, *(place for place in victims if place != saving)]
    if phase == "giving":
        giver = victims[0]
        replace(job, [place for place in PLACES if place != giver], AFTER_SAVED_STEP, held=giver)
        return victims
    if phase == "joining":
        replace(job, [SECOND], STRUCK_STEP, held=SECOND)
        return victims
    name, step = {"prepared": ("optimizer", STRUCK_STEP), "applied": ("report", STRUCK_STEP + 1)}.get(phase, (phase, STRUCK_STEP))
    return hold_victims(name, step)


def away_host(fault):
    return 0 if fault.startswith("node0") else VICTIM[0]


def strike(job, fault, victims):
    """The loss itself; what heals it later."""
    if fault in ("worker", "spare", "two", "all-but-one"):
        for place in victims:
            job.kill_worker(place)
        return None
    if fault == "idle-spare":  # One that waits, or that has just taken a rank.
        taking = [event.pid for event, _ in job.gate.held if event.phase == "state"]
        job.signal_worker((taking or job.waiting_spares(VICTIM[0]))[0], signal.SIGKILL)
        return None
    host = away_host(fault)
    if fault.endswith("cut"):
        job.hosts.plug(host, False)
        return lambda: job.hosts.plug(host, True)
    if fault.endswith("frozen"):
        job.hosts.signal(host, signal.SIGSTOP)
        return lambda: job.hosts.signal(host, signal.SIGCONT)
    job.kill_launcher(host)
    return None
