"""Small functions that write SVG for the picture of a plan."""

import math
from collections.abc import Iterable
from html import escape


def format_coordinate(value: float) -> str:
    """A coordinate as short text."""
    rounded = f"{value:.1f}".removesuffix(".0")
    return "0" if rounded == "-0" else rounded


def draw_text(x: float, y: float, content: str, style: str = "", anchor: str = "start") -> str:
    """A text with a class of the style sheet; its content is escaped."""
    attributes = f' class="{style}"' if style else ""
    attributes += f' text-anchor="{anchor}"' if anchor != "start" else ""
    return f'<text x="{format_coordinate(x)}" y="{format_coordinate(y)}"{attributes}>{escape(content)}</text>'


def draw_box(x: float, y: float, width: float, height: float, style: str) -> str:
    """A rectangle with rounded corners."""
    size = f'width="{format_coordinate(width)}" height="{format_coordinate(height)}"'
    return f'<rect class="{style}" x="{format_coordinate(x)}" y="{format_coordinate(y)}" {size} rx="4"/>'


def draw_bars(spans: Iterable[tuple[float, float]], y: float, height: float, style: str) -> str:
    """Rectangles of one height side by side, each from one x to another; empty text without spans."""
    down, pieces = format_coordinate(height), []
    for start, end in spans:
        wide = format_coordinate(max(end - start, 0.1))
        pieces.append(f"M{format_coordinate(start)} {format_coordinate(y)}h{wide}v{down}h-{wide}z")
    return f'<path class="{style}" d="{"".join(pieces)}"/>' if pieces else ""


def place_at(**coordinates: float) -> str:
    """Coordinates as attributes of an element."""
    return " ".join(f'{name}="{format_coordinate(value)}"' for name, value in coordinates.items())


def draw_line(x1: float, y1: float, x2: float, y2: float, style: str) -> str:
    """A line."""
    return f'<line class="{style}" {place_at(x1=x1, y1=y1, x2=x2, y2=y2)}/>'


def draw_arrow(x1: float, x2: float, y: float) -> str:
    """An arrow to the right."""
    start, end, height = format_coordinate(x1), format_coordinate(x2), format_coordinate(y)
    return f'<path class="arrow" d="M{start} {height}H{end}m-6 -4l6 4l-6 4"/>'


def shorten_text(content: str, most: int) -> str:
    """Return the end of a text of limited length; the start of a layer's path says least."""
    return content if len(content) <= most else "…" + content[len(content) - most + 1 :]


def list_ticks(high: float, most: int = 8) -> list[float]:
    """Round values from 0 to `high`: at most `most` + 1."""
    if high <= 0:
        return [0.0]
    power = 10.0 ** math.floor(math.log10(high / most))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power * most >= high * (1 - 1e-9))
    return [index * step for index in range(math.floor(high / step + 1e-9) + 1)]
