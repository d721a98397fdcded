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

if [ $# -eq 0 ]; then
  sed -n '2,11s/^# \{0,1\}//p' "$0" >&2
  exit 2
fi

# How many nodes there are, and which one this is (0 is the one whose address is MASTER_ADDR).
NNODES=${NNODES:-${SLURM_NNODES:-1}}
NODE_RANK=${NODE_RANK:-${SLURM_NODEID:-0}}

# Where node 0 listens. Every node must be able to connect to this port; it is the only one that
# needs to be known. Under Slurm: the first host of the job.
if [ -z "${MASTER_ADDR:-}" ]; then
  if [ -n "${SLURM_JOB_NODELIST:-}" ]; then
    MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
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

exec "$ddprun" \
  --nnodes "$NNODES" \
  --node-rank "$NODE_RANK" \
  --master-addr "$MASTER_ADDR" \
  --master-port "$MASTER_PORT" \
  --nproc-per-node "$NPROC" \
  --max-restarts "${MAX_RESTARTS:-0}" \
  "$@"
