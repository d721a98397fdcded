"""The tables of docs/measurements/: the data of all pictures, each between the marks that bear its name.

The tables themselves are the data, and not a file beside them, so that there is one copy of each figure.
"""
import re

import measure

PAGES = measure.ROOT / "docs" / "measurements"


def marked(name):
    """Matches the marks of `name` and what lies between them."""
    begin, end = (re.escape(f"<!-- {name}: {which} -->") for which in ("begin", "end"))
    return re.compile(f"(?P<begin>{begin}\n)(?P<text>.*?)(?P<end>\n{end})", re.DOTALL)


def page_with(name):
    pages = [path for path in sorted(PAGES.glob("*.md")) if marked(name).search(path.read_text())]
    if len(pages) != 1:
        raise ValueError(f"the marks <!-- {name}: begin --> ... <!-- {name}: end --> must be in one page of {PAGES}, "
                         f"and are in {len(pages)}")
    return pages[0]


def replaced(text, name, new):
    """The text of a page with `new` between the marks of `name`."""
    result, count = marked(name).subn(lambda match: f"{match['begin']}{new}{match['end']}", text)
    if count != 1:
        raise ValueError(f"the marks <!-- {name}: begin --> ... <!-- {name}: end --> are there {count} times")
    return result


def cells(line):
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def parse(text):
    """The rows of the one table in the text; each maps a column's head to what stands in the cell."""
    lines = [line for line in text.split("\n") if line.startswith("|")]
    heads = cells(lines[0])
    return [dict(zip(heads, cells(line), strict=True)) for line in lines[2:]]


def rows(name):
    return parse(marked(name).search(page_with(name).read_text())["text"])


def row(name, **where):
    """The row of table `name` whose columns hold these texts."""
    found = [row for row in rows(name) if all(row[column] == text for column, text in where.items())]
    if len(found) != 1:
        raise ValueError(f"table {name}: {len(found)} rows with {where}")
    return found[0]


class Figure:
    """A cell such as "3.95 (3.81 - 4.02)", "319 x" or "95.1 %": its number, and the range if it has one."""

    def __init__(self, cell):
        match = re.fullmatch(r"([\d.e+-]+)(?: \(([\d.]+) - ([\d.]+)\))?(?: [x%])?", cell)
        if not match:
            raise ValueError(f"no figure: {cell!r}")
        self.written = match[1]  # As the table has it, with the digits that were measured.
        self.value = float(match[1])
        self.low, self.high = (float(match[part] or match[1]) for part in (2, 3))

    def words(self):
        """With separators of thousands."""
        whole, dot, rest = self.written.partition(".")
        return f"{int(whole):,}{dot}{rest}" if whole.isdigit() else self.written


def figure(cell):
    return None if cell in ("-", "") else Figure(cell)
