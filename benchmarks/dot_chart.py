"""A chart of dots: a row a case, a dot a series, along an axis that need not begin at 0; panels side by side.

Dots and not bars, because the axis may be logarithmic or begin at 90 %: a bar's length would lie there.
"""
import math

import svg

WIDTH = 760
LEFT, RIGHT, GAP = 20, 24, 16
HEAD, ROW, AXIS = 92, 30, 34
TITLE = 22  # The height of a panel's own title.


class Axis:
    """From `low` to `high` with numbers at `ticks`; `mark` is a value that gets a line of its own."""

    def __init__(self, low, high, ticks, mark=None, logarithmic=False, label="{:g}"):
        self.low, self.high, self.ticks, self.mark, self.label = low, high, ticks, mark, label
        self.place = math.log10 if logarithmic else float

    def around(self, values):
        """This axis, or a longer one where a figure lies beyond it: of a machine much slower or faster than those before."""
        if self.low <= min(values) and max(values) <= self.high:
            return self
        return Axis(min(self.low, 0.9 * min(values)), max(self.high, 1.1 * max(values)), self.ticks, self.mark,
                    self.place is math.log10, self.label)

    def at(self, value, left, right):
        if not self.low <= value <= self.high:
            raise ValueError(f"{value} is outside of the axis {self.low} - {self.high}")
        share = (self.place(value) - self.place(self.low)) / (self.place(self.high) - self.place(self.low))
        return left + share * (right - left)


class Series:
    """`values` are tables.Figure or None, one a row. `numbers`: "right" (a column), "above" (each dot) or None."""

    def __init__(self, name, kind, values, numbers=None, unit=""):
        self.name, self.kind, self.values, self.numbers, self.unit = name, kind, values, numbers, unit

    def dot(self, x, y):
        shape = f"<circle cx='{x:.1f}' cy='{y:.1f}' r='5.5' class='{self.kind}'"
        return shape + (" stroke-width='2'/>" if "hollow" in self.kind else "/>")


def panel(left, right, top, bottom, title, axis, series):
    numbers_width = 62 if any(line.numbers == "right" for line in series) else 0
    plot_right = right - numbers_width
    axis = axis.around([figure.value for line in series for figure in line.values if figure is not None])
    out = [svg.text((left + plot_right) / 2, top - 8, title, size=14)] if title else []
    for value in axis.ticks:
        x = axis.at(value, left, plot_right)
        out.append(f"<line class='grid' x1='{x:.1f}' x2='{x:.1f}' y1='{top}' y2='{bottom}'/>")
        out.append(svg.text(x, bottom + 18, axis.label.format(value), kind="quiet"))
    if axis.mark is not None:
        x = axis.at(axis.mark, left, plot_right)
        out.append(f"<line class='ideal' x1='{x:.1f}' x2='{x:.1f}' y1='{top}' y2='{bottom}' stroke-width='2'/>")
    for line in series:
        for place, figure in enumerate(line.values):
            if figure is None:
                continue
            x, y = axis.at(figure.value, left, plot_right), top + (place + 0.5) * (bottom - top) / len(line.values)
            out.append(line.dot(x, y))
            if line.numbers == "above":
                out.append(svg.text(x, y - 10, figure.words() + line.unit, size=12))
            elif line.numbers == "right":
                out.append(svg.text(right, y + 4.5, figure.words() + line.unit, "end", 13))
    return out


def chart(title, note, row_names, panels, names_width=120, row_height=ROW):
    """`panels`: tuples (title, Axis, [Series]); all have the rows of `row_names`."""
    top = HEAD + (TITLE if any(panel[0] for panel in panels) else 0)
    bottom = top + row_height * len(row_names)
    out = [svg.text(20, 30, title, "start", 17, extra="font-weight='bold'"),
           svg.text(20, 53, note, "start", 13, "quiet")]
    x = LEFT + names_width + 12
    for line in panels[0][2]:
        out += [line.dot(x, 74), svg.text(x + 12, 78.5, line.name, "start", 13)]
        x += 40 + 7.2 * len(line.name)
    for place, name in enumerate(row_names):
        y = top + (place + 0.5) * row_height
        out.append(svg.text(LEFT + names_width, y + 5, name, "end", 14))
    first = LEFT + names_width + 12
    width = (WIDTH - RIGHT - first - GAP * (len(panels) - 1)) / len(panels)
    for place, (panel_title, axis, series) in enumerate(panels):
        left = first + place * (width + GAP)
        out += panel(left, left + width, top, bottom, panel_title, axis, series)
    return svg.document(WIDTH, bottom + AXIS, title, out)
