#!/usr/bin/env bash
# Starts this node's share of a job. Run it once on every node, with the same MASTER_ADDR and
# MASTER_PORT everywhere and another NODE_RANK on each:
#
#   on host-a:  NNODES=2 NODE_RANK=0 MASTER_ADDR=host-a NPROC=2 scripts/run_node.sh train --dataset synthetic
#   on host-b:  NNODES=2 NODE_RANK=1 MASTER_ADDR=host-a NPROC=2 scripts/run_node.sh train --dataset synthetic
#
# Under Slurm nothing needs to be set: `srun scripts/run_node.sh train ...` (see node.sbatch).
# Whatever starts first waits for the others. When a worker dies anywhere, all nodes stop, and
# start the next attempt together while MAX_RESTARTS allows it.
set -euo pipefail

# A stop may come before there is a launcher that could hear it, and ends whatever runs here in its
# place. It asks for another turn all the same, as the launcher does.
stopped=
interrupted=  # By SIGINT: whoever types Ctrl-C wants no other turn.
status_file=
said=  # The status that the launcher has written there.
trap stopped=1 TERM
finish() {
  local status=$?
  trap '' TERM  # Slurm may signal whatever runs here once more, rm as well.
  [ -z "$status_file" ] || rm -f "$status_file" || true
  if [ "$status" -eq 143 ] && [ -z "$said" ]; then status=75; fi
  if [ "$status" -eq 75 ] && [ -n "$interrupted" ]; then status=130; fi
  exit "$status"
}
trap finish EXIT

if [ $# -eq 0 ]; then
  sed -n '2,11s/^# \{0,1\}//p' "$0" >&2
  exit 2
fi

# How many nodes there are, and which one this is (0 is the one whose address is MASTER_ADDR).
NNODES=${NNODES:-${SLURM_STEP_NUM_NODES:-${SLURM_NNODES:-1}}}
NODE_RANK=${NODE_RANK:-${SLURM_NODEID:-0}}

# Where node 0 listens. Every node must be able to connect to this port; it is the only one that
# needs to be known. Under Slurm: the first host of the step, which may have fewer than the job.
nodes=${SLURM_STEP_NODELIST:-${SLURM_JOB_NODELIST:-}}
if [ -z "${MASTER_ADDR:-}" ]; then
  if [ -n "$nodes" ]; then
    MASTER_ADDR=$(scontrol show hostnames "$nodes" | head -n 1)
  elif [ "$NNODES" = 1 ]; then
    MASTER_ADDR=127.0.0.1
  else
    echo "run_node.sh: set MASTER_ADDR to the address of node 0" >&2
    exit 2
  fi
fi
MASTER_PORT=${MASTER_PORT:-29500}

# Workers on this node: one for each GPU, or as many as you say.
if [ -z "${NPROC:-}" ]; then
  NPROC=${SLURM_GPUS_ON_NODE:-$({ nvidia-smi -L 2>/dev/null || true; } | grep -c '^GPU' || true)}
  [ "$NPROC" -gt 0 ] || NPROC=1
fi

# $DDPRUN, the launcher of this checkout, or the one on PATH.
ddprun=${DDPRUN:-$(dirname "$0")/../build/bin/ddprun}
[ -x "$ddprun" ] || ddprun=ddprun

launch=("$ddprun"
  --nnodes "$NNODES"
  --node-rank "$NODE_RANK"
  --master-addr "$MASTER_ADDR"
  --master-port "$MASTER_PORT"
  --nproc-per-node "$NPROC"
  --max-restarts "${MAX_RESTARTS:-0}")

# How often a launcher that is killed itself (out of memory, by hand) is started again. The other
# nodes wait for it while the job has restarts left.
AGENT_RESTARTS=${AGENT_RESTARTS:-0}
[ -z "$stopped" ] || exit 143
[ "$AGENT_RESTARTS" -gt 0 ] || exec "${launch[@]}" "$@"

# A job whose worker was killed ends with the same 137 as a launcher that was; but only a launcher
# that was not killed writes its status. Not into --report's file, which is the user's.
agent=
# A terminal's Ctrl-C and Slurm's signals reach the launcher as well, and it takes a SIGTERM that
# follows for the same stop, where a second SIGINT would kill the workers; others signal this script
# alone.
stop() {
  stopped=1
  AGENT_RESTARTS=0
  [ -z "$agent" ] || kill -TERM "$agent" 2>/dev/null || true
}
trap stop TERM
trap 'interrupted=1; stop' INT
# Where TMPDIR cannot be written, the launcher makes do with these places as well.
status_file=$(mktemp 2>/dev/null || mktemp -p /tmp 2>/dev/null || mktemp -p "$PWD")
while :; do
  rm -f "$status_file"
  # bash would give it /dev/null: it could not hear that the session that started us is lost.
  DDPRUN_STATUS_FILE=$status_file "${launch[@]}" "$@" <&0 &
  agent=$!
  [ -z "$stopped" ] || kill -TERM "$agent" 2>/dev/null || true  # It came just before.
  status=0
  wait "$agent" || status=$?
  while kill -0 "$agent" 2>/dev/null; do  # A trap had ended the wait.
    status=0
    wait "$agent" || status=$?
  done
  # One that came as the launcher ended left nothing to wait for, and bash (5.2) then gives the
  # signal's number or -1.
  said=$(trap '' TERM; cat "$status_file" 2>/dev/null || true)
  status=${said:-$status}
  if [ "$status" -ne 137 ] || [ -n "$said" ] || [ "$AGENT_RESTARTS" -eq 0 ]; then exit "$status"; fi
  AGENT_RESTARTS=$((AGENT_RESTARTS - 1))
  echo "run_node.sh: the launcher of node $NODE_RANK was killed; starting it again," \
    "$AGENT_RESTARTS times left" >&2
done
