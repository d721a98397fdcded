"""What all charts share: an SVG document that reads in light and in dark, and text in it. Standard library only.

An <img> in a page asks its reader's browser, not the page, whether it is dark, and the two may disagree. So a chart
brings its own background with its own text colours, and is readable on any page. Colours are CSS classes because an
attribute cannot depend on prefers-color-scheme.
"""
import xml.sax.saxutils

# class: (light, dark). The series are told apart by people who do not see all colours (Okabe and Ito).
FILLS = {
    "paper": ("#ffffff", "#161b22"),
    "words": ("#1f2328", "#e6edf3"),
    "quiet": ("#59636e", "#9da7b3"),
    "series0": ("#0072b2", "#56b4e9"),
    "series1": ("#d55e00", "#ff9d5c"),
    "series2": ("#009e73", "#3ddbb0"),
    "series3": ("#cc79a7", "#e6a5c9"),
    "peer": ("#8c959f", "#7d8590"),
}
STROKES = {
    "frame": ("#d0d7de", "#30363d"),
    "grid": ("#d8dee4", "#30363d"),
    "axis": ("#1f2328", "#e6edf3"),
    "ideal": ("#8c959f", "#7d8590"),
    **{f"line{place}": FILLS[f"series{place}"] for place in range(4)},
}
FONT = "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif"


def style():
    def rules(dark):
        fills = [f".{name}{{fill:{colors[dark]}}}" for name, colors in FILLS.items()]
        return "".join(fills + [f".{name}{{stroke:{colors[dark]}}}" for name, colors in STROKES.items()])

    return (f"<style>text{{font-family:{FONT}}}.ideal,.hollow{{fill:none}}{rules(False)}\n"
            f"@media (prefers-color-scheme: dark){{{rules(True)}}}</style>")


def escape(words):
    return xml.sax.saxutils.escape(words)


def text(x, y, words, anchor="middle", size=12, kind="words", extra=""):
    return (f"<text class='{kind}' x='{x:.1f}' y='{y:.1f}' text-anchor='{anchor}' font-size='{size}'"
            f"{' ' + extra if extra else ''}>{escape(words)}</text>")


def document(width, height, title, shapes):
    """The shapes on a background of their own; `title` is for those who do not see the picture."""
    return "\n".join([
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{width}' height='{height}' viewBox='0 0 {width} {height}' "
        "role='img'>", f"<title>{escape(title)}</title>", style(),
        f"<rect class='paper frame' x='0.5' y='0.5' width='{width - 1}' height='{height - 1}' rx='8'/>", *shapes,
        "</svg>"]) + "\n"
