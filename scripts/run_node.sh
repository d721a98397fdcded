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
stopped=      # The signal that the launcher is to be stopped with.
interrupted=  # The status after SIGINT or SIGQUIT: whoever types these wants no other turn.
status_folder=
said=  # The status that the launcher has written there.
trap stopped=TERM TERM
finish() {
  local status=$?
  # Slurm may signal whatever runs here once more, rm as well.
  trap '' TERM INT HUP QUIT USR1 USR2
  [ -z "$status_folder" ] || rm -rf "$status_folder" || true
  if [ "$status" -eq 143 ] && [ -z "$said" ]; then status=75; fi
  if [ "$status" -eq 75 ] && [ -n "$interrupted" ]; then status=$interrupted; fi
  exit "$status"
}
trap finish EXIT

if [ $# -eq 0 ]; then
  sed -n '2,11s/^# \{0,1\}//p' "$0" >&2
  exit 2
fi

# Each step of Slurm meets at a port and under an id of its own, those that `srun ddprun` takes
# (launcher/options/slurm_step.cpp): two jobs with the same head host would become one otherwise.
# Whoever says which node this is may start each node by another step, and says the rest as well.
rdzv_id=
if [ -z "${NODE_RANK:-}" ] && [ -n "${SLURM_JOB_ID:-}" ]; then
  place=$((SLURM_JOB_ID % 12000 * 8 + ${SLURM_STEP_ID:-0} % 8))
  MASTER_PORT=${MASTER_PORT:-$((20000 + place % 12000))}
  rdzv_id=${PET_RDZV_ID-slurm-$SLURM_JOB_ID.${SLURM_STEP_ID:-0}}
fi

# The shell of a batch script, or of salloc, whose step has this number and one node.
if [ -z "${NODE_RANK:-}${NNODES:-}" ] && [ "${SLURM_JOB_NUM_NODES:-1}" != 1 ]; then
  case ${SLURM_STEP_ID:-} in
    '' | 4294967290)
      echo "run_node.sh: SLURM_JOB_NUM_NODES=$SLURM_JOB_NUM_NODES, but this is no step of srun's:" \
        "srun --ntasks-per-node=1 scripts/run_node.sh ... starts it on all of them" >&2
      ;;
  esac
fi

# How many nodes there are, and which one this is (0 is the one whose address is MASTER_ADDR).
NNODES=${NNODES:-${SLURM_STEP_NUM_NODES:-${SLURM_NNODES:-1}}}
NODE_RANK=${NODE_RANK:-${SLURM_NODEID:-0}}

# Of the nodes of a step. Where it has several components (srun A : B) their list is sorted by name,
# but node 0 is the first of the first component that is in it, as launcher/options/slurm_step.cpp
# has it.
head_of_step() {
  local group list lists=() hosts first
  for ((group = 0; ; ++group)); do
    list=SLURM_JOB_NODELIST_HET_GROUP_$group
    [ -n "${!list:-}" ] || list=SLURM_JOB_NODELIST_PACK_GROUP_$group
    [ -n "${!list:-}" ] || break
    if [ "${!list}" = "$1" ]; then lists=() && break; fi
    lists+=("${!list}")
  done
  # sed reads all of them: who closes the pipe after the first of hundreds fails scontrol.
  hosts=$(scontrol show hostnames "$1")
  for list in "${lists[@]}"; do
    first=$(scontrol show hostnames "$list" | sed -n 1p)
    if grep -qxF -e "$first" <<<"$hosts"; then echo "$first" && return; fi
  done
  sed -n 1p <<<"$hosts"
}

# Where node 0 listens. Every node must be able to connect to this port; it is the only one that
# needs to be known. Under Slurm: the first host of the step, which may have fewer than the job.
nodes=${SLURM_STEP_NODELIST:-${SLURM_JOB_NODELIST:-}}
if [ -z "${MASTER_ADDR:-}" ]; then
  if [ -n "$nodes" ]; then
    MASTER_ADDR=$(head_of_step "$nodes")
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
  if [ -z "${SLURM_GPUS_ON_NODE:-}" ] && [ -n "${CUDA_VISIBLE_DEVICES+set}" ]; then
    # nvidia-smi lists those that it does not name as well.
    NPROC=1
    if [[ $CUDA_VISIBLE_DEVICES =~ ^[[:blank:]]*([0-9]|GPU-|MIG-) ]]; then NPROC=gpu; fi
  else
    NPROC=${SLURM_GPUS_ON_NODE:-$({ nvidia-smi -L 2>/dev/null || true; } | grep -c '^GPU' || true)}
    [ "$NPROC" -gt 0 ] || NPROC=1
  fi
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
[ -z "$rdzv_id" ] || launch+=(--rdzv-id "$rdzv_id")

# How often a launcher that is killed itself (out of memory, by hand) is started again. The other
# nodes wait for it while the job has restarts left. With node 0's launcher the job is gone, unless
# another node takes over: then theirs end with 72, and are started again as well, so that all meet
# once more. Where node 0 does not come back, or the 72 was a worker's own, they end with 71 when
# the join timeout is over.
AGENT_RESTARTS=${AGENT_RESTARTS:-0}
[ -z "$stopped" ] || exit 143
[ "$AGENT_RESTARTS" -gt 0 ] || exec "${launch[@]}" "$@"

# A job whose worker was killed ends with the same 137 as a launcher that was; but only a launcher
# that was not killed writes its status. Not into --report's file, which is the user's.
agent=
pass() { [ -z "$agent" ] || kill -"$1" "$agent" 2>/dev/null || true; }
# A terminal's Ctrl-C and Slurm's signals reach the launcher as well, and it takes a SIGTERM or
# SIGHUP that follows for the same stop, where a second SIGINT or SIGQUIT would kill the workers;
# others signal this script alone.
stop() {
  stopped=$1
  AGENT_RESTARTS=0
  pass "$1"
}
trap 'stop TERM' TERM
trap 'stop HUP' HUP
trap 'interrupted=130; stop TERM' INT
trap 'interrupted=131; stop TERM' QUIT
# What these mean is said by the launcher's options. They must not end this script, which would
# leave its launcher behind.
trap 'pass USR1' USR1
trap 'pass USR2' USR2

# A secret that comes through a descriptor (--secret-file -) comes once: it is kept here, and each
# launcher gets it through a pipe, where neither arguments nor the environment show it.
descriptor_of_secret() {
  local file=${PET_SECRET_FILE:-${DDPRUN_SECRET_FILE:-}} word before=
  for word in "$@"; do
    [ "$word" != -- ] || break
    case $word in --secret[-_]file=*) file=${word#*=} ;; esac
    case $before in --secret[-_]file) file=$word ;; esac
    before=$word
  done
  case $file in - | /dev/stdin) file=/dev/fd/0 ;; esac
  if [[ $file =~ ^/dev/fd/[0-9]+$ ]] && [ ! -t "${file##*/}" ]; then echo "${file##*/}"; fi
}
tell_secret() { printf %s "$secret"; }
unset secret  # The caller's, which may be exported.
secret=
secret_fd=$(descriptor_of_secret "$@")
if [ -n "$secret_fd" ]; then
  ended=0
  IFS= read -r -d '' -n 8192 -t 30 -u "$secret_fd" secret || ended=$?
  if [ "$ended" -gt 128 ]; then
    echo "run_node.sh: the secret has no end after 30 s: end what is written to its pipe" >&2
    exit 2
  fi
fi

# In a folder of our own: the file is not there until the launcher ends, and in /tmp anybody could
# make one of its name. Where TMPDIR cannot be written, the launcher makes do with these places as
# well.
status_folder=$(mktemp -d 2>/dev/null || mktemp -d -p /tmp 2>/dev/null || mktemp -d -p "$PWD")
while :; do
  rm -f "$status_folder/status"
  [ -z "$secret_fd" ] || eval "exec $secret_fd< <(tell_secret)"
  # bash would give it /dev/null: it could not hear that the session that started us is lost.
  DDPRUN_STATUS_FILE=$status_folder/status "${launch[@]}" "$@" <&0 &
  agent=$!
  [ -z "$stopped" ] || pass "$stopped"  # It came just before.
  status=0
  wait "$agent" || status=$?
  while kill -0 "$agent" 2>/dev/null; do  # A trap had ended the wait.
    status=0
    wait "$agent" || status=$?
  done
  agent=
  # One that came as the launcher ended left nothing to wait for, and bash (5.2) then gives the
  # signal's number or -1.
  said=$(trap '' TERM INT HUP QUIT USR1 USR2; cat "$status_folder/status" 2>/dev/null || true)
  status=${said:-$status}
  again=
  if [ "$status" -eq 137 ] && [ -z "$said" ]; then
    again="the launcher of node $NODE_RANK was killed; starting it again"
  elif [ "$status" -eq 72 ] && [ "$NODE_RANK" != 0 ]; then
    again="node $NODE_RANK has lost node 0; starting its launcher again"
  fi
  if [ -z "$again" ] || [ "$AGENT_RESTARTS" -eq 0 ]; then exit "$status"; fi
  AGENT_RESTARTS=$((AGENT_RESTARTS - 1))
  echo "run_node.sh: $again, $AGENT_RESTARTS times left" >&2
done
