"""Adds 1 to a counter in the job's store, without torch, and fails in the first attempt. Writes what
the counter was then into $OUT/attempt_N."""
import os
import pathlib
import socket
import struct
import sys

VALIDATE, ADD = 0, 4
MAGIC = 0x3C85F7CE
key = b"counter"
attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]

with socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])), 20) as store:
    store.sendall(struct.pack("=BI", VALIDATE, MAGIC))
    store.sendall(struct.pack("=BQ", ADD, len(key)) + key + struct.pack("=q", 1))
    count, = struct.unpack("=q", store.recv(8, socket.MSG_WAITALL))
pathlib.Path(os.environ["OUT"], f"attempt_{attempt}").write_text(str(count))
sys.exit(1 if attempt == "0" else 0)
