"""Writes its arguments, as a JSON list, into the file of its rank in $OUT."""
import json
import os
import pathlib
import sys

pathlib.Path(os.environ["OUT"], os.environ["RANK"]).write_text(json.dumps(sys.argv[1:]))
