"""Small functions that write SVG. Colours come from the style sheet, so that pictures follow light and dark."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

TICK_STEPS = (1, 2, 2.5, 5, 10)  # distances of ticks, as multiples of a power of ten


@dataclass(frozen=True)
class Scale:
    """Maps values to coordinates in a picture; values outside the range are moved to its ends."""

    low: float
    high: float
    start: float  # coordinate of `low`
    end: float

    def __call__(self, value: float) -> float:
        """Coordinate of a value."""
        if self.high <= self.low:
            return self.start
        share = (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)


def list_ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round values from low to high, both included where they are round: at most `most` + 1."""
    if not (math.isfinite(low) and math.isfinite(high)) or high <= low:
        return [low] if math.isfinite(low) else []
    raw = (high - low) / most
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in TICK_STEPS if factor * power >= raw * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(index * step, 12) for index in range(first, last + 1)]


def format_coordinate(value: float) -> str:
    """A coordinate as short text."""
    rounded = f"{value:.1f}".removesuffix(".0")
    return "0" if rounded == "-0" else rounded


def place_at(**coordinates: float) -> str:
    """Coordinates as attributes of an element."""
    return " ".join(f'{name}="{format_coordinate(value)}"' for name, value in coordinates.items())


def draw_line(x1: float, y1: float, x2: float, y2: float, style: str) -> str:
    """A line with a class of the style sheet."""
    return f'<line class="{style}" {place_at(x1=x1, y1=y1, x2=x2, y2=y2)}/>'


def draw_text(x: float, y: float, content: str, style: str = "", anchor: str = "start") -> str:
    """A text; its content is escaped."""
    attributes = f' class="{style}"' if style else ""
    attributes += f' text-anchor="{anchor}"' if anchor != "start" else ""
    return f'<text x="{format_coordinate(x)}" y="{format_coordinate(y)}"{attributes}>{escape(content)}</text>'


def draw_circle(x: float, y: float, radius: float, style: str) -> str:
    """A circle."""
    return f'<circle class="{style}" {place_at(cx=x, cy=y, r=radius)}/>'


def draw_diamond(x: float, y: float, radius: float, style: str) -> str:
    """A square that stands on a corner."""
    corners = [(x, y - radius), (x + radius, y), (x, y + radius), (x - radius, y)]
    return f'<path class="{style}" d="{format_path(corners)}Z"/>'


def format_path(points: Iterable[tuple[float, float]]) -> str:
    """Return the description of a polyline."""
    return "M" + "L".join(f"{format_coordinate(x)} {format_coordinate(y)}" for x, y in points)


def draw_curve(points: Sequence[tuple[float, float]], style: str) -> str:
    """A polyline."""
    dot = "h0.1" if len(points) == 1 else ""  # with round ends, a point
    return f'<path class="{style}" d="{format_path(points)}{dot}"/>'


def draw_area(upper: Sequence[tuple[float, float]], lower: Sequence[tuple[float, float]], style: str) -> str:
    """Return the area between two polylines."""
    return f'<path class="{style}" d="{format_path([*upper, *reversed(lower)])}Z"/>'


def draw_picture(width: float, height: float, label: str, parts: Iterable[str]) -> str:
    """A whole picture. The label describes it to those who do not see it; tables repeat its numbers."""
    size = f"0 0 {format_coordinate(width)} {format_coordinate(height)}"
    return f'<svg viewBox="{size}" role="img" aria-label="{escape(label)}">{"".join(parts)}</svg>'


def shorten_text(content: str, most: int) -> str:
    """A label of limited length."""
    return content if len(content) <= most else content[: most - 1] + "…"
