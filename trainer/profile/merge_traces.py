"""Puts the traces of all ranks (train --profile DIR) into one file: DIR/all_ranks.json.

Ranks of one host share a clock, and are merged as they are. Clocks of different hosts are lined up by
the hosts' wall clocks: as well as those agree (NTP: about a millisecond), and no better.
"""
import argparse
import json
import pathlib
import sys


def load(path):
    try:
        trace = json.loads(path.read_text())
        return trace, trace["otherData"]["rank"], trace["otherData"]["world_size"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        sys.exit(f"merge_traces: {path} is no trace of train --profile: {error!r}")


def shift(trace, microseconds):
    for event in trace["traceEvents"]:
        if "ts" in event:
            event["ts"] = round(event["ts"] + microseconds, 3)


def main():
    parser = argparse.ArgumentParser(prog="scripts/merge_traces", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path, help="what --profile was given; for a job on "
                        "several hosts without a shared folder, gather the files there first")
    parser.add_argument("-o", "--output", type=pathlib.Path, help="instead of DIR/all_ranks.json")
    options = parser.parse_args()
    paths = {int(path.stem[5:]): path for path in options.folder.glob("rank_*.json")
             if path.stem[5:].isdigit()}
    if 0 not in paths:
        sys.exit(f"merge_traces: there is no rank_0.json in {options.folder}")
    first, _, world_size = load(paths[0])
    merged = {**first, "traceEvents": []}
    missing = [rank for rank in range(world_size) if rank not in paths]
    for rank in sorted(paths):
        if rank >= world_size:
            print(f"merge_traces: left out {paths[rank].name}: rank 0's run had {world_size} ranks")
            continue
        trace, _, _ = load(paths[rank])
        home, other = first["otherData"], trace["otherData"]
        if other["host"] != home["host"]:
            shift(trace, (other["wall_minus_monotonic_ns"] - home["wall_minus_monotonic_ns"]) / 1000)
        merged["traceEvents"] += trace["traceEvents"]
    output = options.output or options.folder / "all_ranks.json"
    output.write_text(json.dumps(merged))
    if missing:
        print(f"merge_traces: no file of rank {', '.join(map(str, missing))}")
    print(f"{output}: {world_size - len(missing)} ranks, {len(merged['traceEvents'])} events; open it "
          "in https://ui.perfetto.dev or chrome://tracing")


if __name__ == "__main__":
    main()
