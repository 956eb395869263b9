"""Shapes of the picture of a plan, as SVG; further ones are in `suite.svg`."""

import math
from collections.abc import Iterable

from suite.svg import format_coordinate, place_at


def draw_box(x: float, y: float, width: float, height: float, style: str) -> str:
    """A rectangle with rounded corners."""
    return f'<rect class="{style}" {place_at(x=x, y=y, width=width, height=height)} rx="4"/>'


def draw_bars(spans: Iterable[tuple[float, float]], y: float, height: float, style: str) -> str:
    """Rectangles of one height side by side, each from one x to another; empty text without spans."""
    down, pieces = format_coordinate(height), []
    for start, end in spans:
        wide = format_coordinate(max(end - start, 0.1))
        pieces.append(f"M{format_coordinate(start)} {format_coordinate(y)}h{wide}v{down}h-{wide}z")
    return f'<path class="{style}" d="{"".join(pieces)}"/>' if pieces else ""


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
