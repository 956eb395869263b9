"""Small functions that write SVG for the picture of a plan."""

import math
from collections.abc import Iterable
from html import escape


def coordinate(value: float) -> str:
    """A coordinate as short text."""
    rounded = f"{value:.1f}".removesuffix(".0")
    return "0" if rounded == "-0" else rounded


def text(x: float, y: float, content: str, style: str = "", anchor: str = "start") -> str:
    """A text with a class of the style sheet; its content is escaped."""
    attributes = f' class="{style}"' if style else ""
    attributes += f' text-anchor="{anchor}"' if anchor != "start" else ""
    return f'<text x="{coordinate(x)}" y="{coordinate(y)}"{attributes}>{escape(content)}</text>'


def box(x: float, y: float, width: float, height: float, style: str) -> str:
    """A rectangle with rounded corners."""
    size = f'width="{coordinate(width)}" height="{coordinate(height)}"'
    return f'<rect class="{style}" x="{coordinate(x)}" y="{coordinate(y)}" {size} rx="4"/>'


def bars(spans: Iterable[tuple[float, float]], y: float, height: float, style: str) -> str:
    """Rectangles of one height side by side, each from one x to another; empty text without spans."""
    down, pieces = coordinate(height), []
    for start, end in spans:
        wide = coordinate(max(end - start, 0.1))
        pieces.append(f"M{coordinate(start)} {coordinate(y)}h{wide}v{down}h-{wide}z")
    return f'<path class="{style}" d="{"".join(pieces)}"/>' if pieces else ""


def line(x1: float, y1: float, x2: float, y2: float, style: str) -> str:
    """A line."""
    ends = f'x1="{coordinate(x1)}" y1="{coordinate(y1)}" x2="{coordinate(x2)}" y2="{coordinate(y2)}"'
    return f'<line class="{style}" {ends}/>'


def arrow(x1: float, x2: float, y: float) -> str:
    """An arrow to the right."""
    start, end, height = coordinate(x1), coordinate(x2), coordinate(y)
    return f'<path class="arrow" d="M{start} {height}H{end}m-6 -4l6 4l-6 4"/>'


def shorten(content: str, most: int) -> str:
    """Return the end of a text of limited length; the start of a layer's path says least."""
    return content if len(content) <= most else "…" + content[len(content) - most + 1 :]


def ticks(high: float, most: int = 8) -> list[float]:
    """Round values from 0 to `high`: at most `most` + 1."""
    if high <= 0:
        return [0.0]
    power = 10.0 ** math.floor(math.log10(high / most))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power * most >= high * (1 - 1e-9))
    return [index * step for index in range(math.floor(high / step + 1e-9) + 1)]
