#!/bin/sh
# An interpreter for PYTHON_EXEC: python3, but it leaves a trace.
: > "$OUT/interpreter"
exec python3 "$@"
