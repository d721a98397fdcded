"""A chart of pairs: of each quantity ours beside the peer's as two bars, with their numbers and the ratio.

Every pair has a scale of its own, since milliseconds, megabytes and images a second stand below each other; what a
reader compares are the two bars of one pair. A thin line is the range from the least to the most that was measured.
"""
import svg

WIDTH = 760
BARS_LEFT, BARS_WIDTH = 270, 270
NUMBERS_GAP, RATIO_RIGHT = 8, WIDTH - 20
BAR, BETWEEN = 14, 4
HEAD, ROW, FOOT = 84, 52, 14


class Pair:
    """`ours` and `peer` are tables.Figure, `ratio` one or None; `unit` stands behind the numbers."""

    def __init__(self, words, unit, ours, peer, ratio):
        self.words, self.unit, self.ours, self.peer, self.ratio = words, unit, ours, peer, ratio


def bar(top, kind, figure, unit, most):
    scale = BARS_WIDTH / most
    width = figure.value * scale
    out = [f"<rect class='{kind}' x='{BARS_LEFT}' y='{top:.1f}' width='{max(width, 1.5):.1f}' height='{BAR}' rx='2'/>"]
    end = width
    if figure.high > figure.low:
        low, end = figure.low * scale, max(width, figure.high * scale)
        out.append(f"<line class='axis' x1='{BARS_LEFT + low:.1f}' x2='{BARS_LEFT + figure.high * scale:.1f}' "
                   f"y1='{top + BAR / 2:.1f}' y2='{top + BAR / 2:.1f}'/>")
    out.append(svg.text(BARS_LEFT + end + NUMBERS_GAP, top + BAR - 2.5, f"{figure.words()} {unit}", "start", 13))
    return out


def row(top, pair):
    middle = top + BAR + BETWEEN / 2
    most = max(pair.ours.high, pair.peer.high)
    out = [svg.text(BARS_LEFT - 12, middle + 5, pair.words, "end", 14),
           *bar(top, "series0", pair.ours, pair.unit, most),
           *bar(top + BAR + BETWEEN, "peer", pair.peer, pair.unit, most)]
    if pair.ratio:
        out.append(svg.text(RATIO_RIGHT, middle + 5, f"{pair.ratio.words()} x", "end", 15, extra="font-weight='bold'"))
    return out


def chart(title, note, ours_name, peer_name, pairs):
    """`title` is what the picture says, `note` which way is better."""
    out = [svg.text(20, 30, title, "start", 17, extra="font-weight='bold'"),
           svg.text(20, 53, note, "start", 13, "quiet")]
    x = BARS_LEFT
    for kind, name in (("series0", ours_name), ("peer", peer_name)):
        out.append(f"<rect class='{kind}' x='{x}' y='64' width='12' height='12' rx='2'/>")
        out.append(svg.text(x + 18, 74.5, name, "start", 13))
        x += 50 + 8 * len(name)
    for place, pair in enumerate(pairs):
        out += row(HEAD + 8 + place * ROW, pair)
    return svg.document(WIDTH, HEAD + 8 + len(pairs) * ROW + FOOT - 10, title, out)
