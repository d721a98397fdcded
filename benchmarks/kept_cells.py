"""The cells of `scripts/bench recovery matrix` that have run, in a file if one is named: ten rounds take an hour and a half, so
they may be had in several sittings, and what is cut off loses one cell.
"""
import collections
import datetime
import json
import pathlib


class KeptCells:
    def __init__(self, path, machine, heartbeat_s):
        """`path`: "" = in memory alone. Of the file count the cells with this heartbeat."""
        self.path = pathlib.Path(path) if path else None
        self.mine = {"date": datetime.date.today().isoformat(), "machine": machine, "heartbeat": heartbeat_s}
        self.cells = []
        if self.path and self.path.exists():
            read = [json.loads(line) for line in self.path.read_text().splitlines()]
            self.cells = [cell for cell in read if cell["heartbeat"] == heartbeat_s]

    def add(self, cell, seconds):
        """`seconds`: None = it failed."""
        self.cells.append(self.mine | {"cell": "/".join(cell), "seconds": seconds})
        if self.path:
            with self.path.open("a") as file:
                file.write(json.dumps(self.cells[-1]) + "\n")

    def found(self):
        """By (mode, loss, moment): the times of those that ended well, and how many did not."""
        times, failed = collections.defaultdict(list), collections.Counter()
        for cell in self.cells:
            place = tuple(cell["cell"].split("/"))
            times[place] += [cell["seconds"]] if cell["seconds"] is not None else []
            failed[place] += cell["seconds"] is None
        return {place: (times[place], failed[place]) for place in times}

    def origin(self):
        """How often, when and where, for people."""
        times = collections.Counter(cell["cell"] for cell in self.cells).values()
        often = f"each cell {min(times)} times" if min(times) == max(times) else f"each cell {min(times)} to {max(times)} times"
        when = sorted({cell["date"] for cell in self.cells})
        dates = when[0] if len(when) == 1 else f"{when[0]} to {when[-1]}"
        return f"{often}, {dates}, " + " and ".join(sorted({cell["machine"] for cell in self.cells}))
