"""Ends with an error unless every variable of torchrun's contract is there; then touches a file named
by its rank in the folder that is its first argument."""
import os
import pathlib
import sys

CONTRACT = [
    "LOCAL_RANK", "RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "LOCAL_WORLD_SIZE", "WORLD_SIZE",
    "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE",
    "TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_SIGNALS_TO_HANDLE", "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "OMP_NUM_THREADS",
    "SENTINEL",  # Set by the test, for the launcher: workers inherit its environment.
]

missing = [name for name in CONTRACT if name not in os.environ]
if missing:
    sys.exit(f"not set: {', '.join(missing)}")
pathlib.Path(sys.argv[1], os.environ["RANK"]).touch()
