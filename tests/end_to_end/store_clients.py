"""Real store clients: each torch there is, old and new, against our store and against its own.

  store_clients.py SERVE_STORE [PYTHON ...]

SERVE_STORE is build/bin/serve_store. The interpreters are those of the arguments and of the
variable DDPRUN_TORCH_CLIENTS (separated by ':'; scripts/setup_store_clients makes some); one that
is missing or has no torch is named and passed over. Every step of store_clients_steps.py must be ok
against ours. The same steps run against that torch's own server, so that they are known to ask for
what clients expect.
"""
import json
import os
import pathlib
import subprocess
import sys

from patience import patience

STEPS = pathlib.Path(__file__).with_name("store_clients_steps.py")
LIMIT_S = 120  # For all steps of one torch together, on an idle machine.

# Where torch's own server differs, and ours is meant to: a step, for which releases, and why.
KNOWN_OF_TORCH = {
    "over_torch_limit": (lambda release: release >= (2, 4), "its limit of a value is 8 MiB"),
    "timeout_then_use": (lambda release: release < (2, 1),
                         "a wait that timed out is answered later, in place of another call"),
}


class Server:
    """A server process that prints its port and ends with its input."""

    def __init__(self, command):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.DEVNULL, text=True)
        self.port = self.process.stdout.readline().strip()

    def __enter__(self):
        return self.port

    def __exit__(self, *_):
        self.process.stdin.close()
        try:
            self.process.wait(patience(20))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()


def exercise(python, port):
    """{step: outcome}; steps after one that did not end are missing."""
    process = subprocess.Popen([python, "-B", str(STEPS), "exercise", port], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True, start_new_session=True)
    limit = patience(LIMIT_S)
    try:
        output, errors = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)  # With the children of the step.
        output, errors = process.communicate()
        errors += f"\nkilled after {limit:.0f} s"
    outcomes = dict(json.loads(line) for line in output.splitlines() if line.startswith("["))
    if process.returncode != 0:
        outcomes["exit"] = f"status {process.returncode}: {errors[-2000:]}"
    return outcomes


def version_of(python):
    """The version of its torch, or None."""
    asked = subprocess.run([python, "-W", "ignore", "-c", "import torch; print(torch.__version__)"],
                           capture_output=True, text=True, check=False)
    return asked.stdout.strip() or None


def compare(python, version, serve_store):
    with Server([serve_store]) as port:
        ours = exercise(python, port)
    with Server([python, "-B", "-W", "ignore", str(STEPS), "serve"]) as port:
        stock = exercise(python, port)
    wrong = []
    tried = 0
    for step, outcome in ours.items():
        tried += outcome != "not in this torch"
        if outcome not in ("ok", "not in this torch"):
            wrong.append(f"{step} against our store: {outcome}")
    for step, outcome in stock.items():
        if outcome in ("ok", "not in this torch"):
            continue
        known, why = KNOWN_OF_TORCH.get(step, (lambda release: False, ""))
        if known(tuple(int(part) for part in version.split(".")[:2])):
            print(f"  {step} fails against torch's own server: {why}")
        else:
            wrong.append(f"{step} against torch's own server: {outcome}")
    if set(ours) != set(stock):
        wrong.append(f"only against one of them: {sorted(set(ours) ^ set(stock))}")
    absent = [step for step, outcome in ours.items() if outcome == "not in this torch"]
    print(f"torch {version}: {tried} steps, {len(wrong)} wrong"
          + (f"; not in this torch: {', '.join(absent)}" if absent else ""))
    for line in wrong:
        print(f"  {line}")
    return not wrong


def main():
    serve_store, pythons = sys.argv[1], sys.argv[2:]
    pythons += [path for path in os.environ.get("DDPRUN_TORCH_CLIENTS", "").split(":") if path]
    fine, seen = True, set()
    for python in pythons:
        version = version_of(python) if os.access(python, os.X_OK) else None
        if version is None:
            print(f"{python}: not there, or without torch")
        elif version not in seen:
            seen.add(version)
            fine = compare(python, version, serve_store) and fine
    if not seen:
        print("SKIPPED: no Python torch here (scripts/setup --peer, scripts/setup_store_clients)")
    sys.exit(0 if fine else 1)


if __name__ == "__main__":
    main()
