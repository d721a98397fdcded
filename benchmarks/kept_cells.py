"""What `scripts/bench recovery` has found so far, in a file if one is named: ten rounds take an hour and a half, so they may be
had in several sittings, and what is cut off loses one cell.
"""
import collections
import datetime
import json
import pathlib


class KeptCells:
    def __init__(self, path, machine, **setting):
        """`path`: "" = in memory alone. Of the file count the cells with this setting, such as heartbeat=1.0."""
        self.path = pathlib.Path(path) if path else None
        self.mine = {"date": datetime.date.today().isoformat(), "machine": machine} | setting
        self.cells = []
        if self.path and self.path.exists():
            read = [json.loads(line) for line in self.path.read_text().splitlines()]
            self.cells = [cell for cell in read if all(cell.get(name) == value for name, value in setting.items())]

    def add(self, cell, seconds, instead="failed"):
        """`seconds`: None = there was no next step; what there was is `instead`."""
        self.cells.append(self.mine | {"cell": "/".join(cell), "seconds": seconds})
        if seconds is None:
            self.cells[-1]["instead"] = instead
        if self.path:
            with self.path.open("a") as file:
                file.write(json.dumps(self.cells[-1]) + "\n")

    def found(self):
        """By cell, such as (mode, loss, moment): the times, and the words for what came in the place of one."""
        result = collections.defaultdict(lambda: ([], []))
        for cell in self.cells:
            times, words = result[tuple(cell["cell"].split("/"))]
            if cell["seconds"] is None:
                words.append(cell.get("instead", "failed"))
            else:
                times.append(cell["seconds"])
        return dict(result)

    def origin(self):
        """How often, when and where, for people."""
        times = collections.Counter(cell["cell"] for cell in self.cells).values()
        often = f"each cell {min(times)} times" if min(times) == max(times) else f"each cell {min(times)} to {max(times)} times"
        when = sorted({cell["date"] for cell in self.cells})
        dates = when[0] if len(when) == 1 else f"{when[0]} to {when[-1]}"
        return f"{often}, {dates}, " + " and ".join(sorted({cell["machine"] for cell in self.cells}))
