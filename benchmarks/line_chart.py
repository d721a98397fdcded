"""A chart of lines as SVG text. Standard library only, so that it can be drawn where a job ran."""
import math

import svg

SERIES = 4  # So many lines have colours of their own.
LEFT, RIGHT, TOP, BOTTOM = 76, 30, 64, 52
TICK_SPACE = 24  # Numbers on the x axis that would come closer than this are left out,
NUMBER_SPACE = 42  # and numbers of points that would come closer than this.


def nice_step(span, ticks_max):
    """The smallest of 1, 2, 5 x 10^n of which at most ticks_max fit into the span."""
    exponent = math.floor(math.log10(span / ticks_max))
    for factor in (1, 2, 5, 10):
        step = factor * 10.0**exponent
        if span / step <= ticks_max + 1e-9:
            return step
    raise AssertionError(span, ticks_max)


def ticks(largest, ticks_max=6):
    """From 0 to the first one that is not below `largest`."""
    step = nice_step(largest, ticks_max)
    count = math.ceil(largest / step - 1e-9)
    return [i * step for i in range(count + 1)]


def label(value):
    if value >= 10_000:
        return f"{value:,.0f}".replace(",", " ")
    return f"{value:g}"


class Series:
    """A line: points are (x, y); `number` writes a y. `dashed` lines have no marks and no numbers."""

    def __init__(self, name, points, dashed=False, number=label):
        self.name, self.points, self.dashed, self.number = name, points, dashed, number


def panel(left, top, width, height, title, x_name, y_name, x_ticks, series):
    """One pair of axes, both from 0, in the rectangle."""
    y_ticks = ticks(max(y for line in series for _, y in line.points))
    x_max = max(x_ticks) * 1.06
    y_max = y_ticks[-1]
    plot_left, plot_right = left + LEFT, left + width - RIGHT
    plot_top, plot_bottom = top + TOP, top + height - BOTTOM

    def at(x, y):
        return (plot_left + x / x_max * (plot_right - plot_left),
                plot_bottom - y / y_max * (plot_bottom - plot_top))

    out = [svg.text(left + width / 2, top + 22, title, size=15)]
    for value in y_ticks:
        _, y = at(0, value)
        out.append(f"<line x1='{plot_left}' x2='{plot_right}' y1='{y:.1f}' y2='{y:.1f}' class='grid'/>")
        out.append(svg.text(plot_left - 8, y + 4, label(value), "end"))
    last_x = -TICK_SPACE
    for value in x_ticks:
        x, _ = at(value, 0)
        if x - last_x < TICK_SPACE:
            continue
        last_x = x
        out.append(f"<line class='axis' x1='{x:.1f}' x2='{x:.1f}' y1='{plot_bottom}' y2='{plot_bottom + 5}'/>")
        out.append(svg.text(x, plot_bottom + 19, label(value)))
    out.append(f"<path d='M{plot_left} {plot_top}V{plot_bottom}H{plot_right}' class='axis hollow'/>")
    out.append(svg.text((plot_left + plot_right) / 2, top + height - 12, x_name, size=13))
    middle = (plot_top + plot_bottom) / 2
    out.append(svg.text(left + 18, middle, y_name, size=13,
                    extra=f"transform='rotate(-90 {left + 18} {middle:.1f})'"))
    solid = 0
    for place, line in enumerate(series):
        kind = "ideal" if line.dashed else f"line{solid % SERIES}"
        fill = f"series{solid % SERIES}"
        dash = " stroke-dasharray='6 4'" if line.dashed else ""
        solid += not line.dashed
        corners = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(*point) for point in line.points))
        out.append(f"<polyline points='{corners}' class='{kind} hollow' stroke-width='2'{dash}/>")
        if not line.dashed:
            next_x = math.inf
            for x, y in reversed(line.points):
                px, py = at(x, y)
                out.append(f"<circle cx='{px:.1f}' cy='{py:.1f}' r='4' class='{fill}'/>")
                # Below the line, where the ideal one is not; clear of the axis and of its neighbour.
                if next_x - px >= NUMBER_SPACE and py + 22 < plot_bottom:
                    out.append(svg.text(px, py + 18, line.number(y), size=11))
                    next_x = px
        key_x = plot_left + 10 + 170 * place
        out.append(f"<line x1='{key_x}' x2='{key_x + 26}' y1='{top + 44}' y2='{top + 44}' class='{kind}' "
                   f"stroke-width='2'{dash}/>")
        out.append(svg.text(key_x + 32, top + 48, line.name, "start"))
    return out


def chart(title, panels, panel_width=460, panel_height=360):
    """An SVG document: the panels side by side. Each is a tuple (title, x_name, y_name, x_ticks, series)."""
    width, height = panel_width * len(panels), panel_height + 36
    out = [svg.text(width / 2, 28, title, size=16, extra="font-weight='bold'")]
    for place, arguments in enumerate(panels):
        out += panel(place * panel_width, 36, panel_width, panel_height, *arguments)
    return svg.document(width, height, title, out)
