"""Picture of steps or seconds to the targets: one line for each row, with seeds, median and interval."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from suite import svg
from suite.board.rows import Seeds
from suite.board.site.text import format_median, format_number
from suite.statistics.summary import Summary

WIDTH, LEFT, RIGHT, TOP, LINE, FOOT = 480, 110, 62, 8, 17, 34
MARK = {"torch": svg.draw_circle, "jax": svg.draw_diamond}  # a shape for each framework, beside its colour


@dataclass(frozen=True)
class Dots:
    """One line of the picture."""

    label: str  # the optimizer; lines with equal labels stand together
    backend: str
    summary: Summary | None  # of the hardest target
    seeds: Seeds
    easier: tuple[float, ...] = ()  # medians for the easier targets


def draw_dots(lines: Sequence[Dots], unit: str, label: str) -> str:
    """Draw the lines in their order. An arrow at the edge marks a row whose median seed misses the target."""
    high = _range(lines)
    scale = svg.Scale(0, high, LEFT, WIDTH - RIGHT)
    bottom = TOP + LINE * len(lines) + 5 * len({line.label for line in lines})
    parts = []
    for tick in svg.list_ticks(0, high):
        parts.append(svg.draw_line(scale(tick), TOP, scale(tick), bottom, "grid"))
        parts.append(svg.draw_text(scale(tick), bottom + 14, format_number(tick), "tick", "middle"))
    parts.append(svg.draw_text(scale.end, bottom + 29, unit, "tick", "end"))
    y, previous = float(TOP), None
    for line in lines:
        if line.label != previous:
            y += 5
            parts.append(svg.draw_text(0, y + 12, svg.shorten_text(line.label, 15), "name"))
        previous = line.label
        parts.append(f'<g class="{_style(line.backend)}">{"".join(_line(line, scale, y + LINE / 2))}</g>')
        y += LINE
    return svg.draw_picture(WIDTH, bottom + FOOT, label, parts)


def _style(backend: str) -> str:
    return backend if backend in MARK else "other"


def _range(lines: Sequence[Dots]) -> float:
    """Return the end of the axis: the largest finite number that is drawn."""
    values = [seed.spent for line in lines for seed in line.seeds.values() if math.isfinite(seed.spent)]
    values += [value for line in lines for value in line.easier]
    return max([value for value in values if value > 0], default=1.0)


def _line(line: Dots, scale: svg.Scale, y: float) -> list[str]:
    mark = MARK.get(line.backend, svg.draw_circle)
    parts = [svg.draw_text(LEFT - 6, y + 4, svg.shorten_text(line.backend, 7), "tick", "end")]
    if line.summary is None:
        return [*parts, svg.draw_text(LEFT + 4, y + 4, "no finished run", "tick")]
    parts += [mark(scale(value), y, 3, "easier") for value in line.easier]
    summary = line.summary
    if summary.low is not None and summary.n > 1:
        high = scale.high if summary.high is None else summary.high
        parts.append(svg.draw_line(scale(summary.low), y, scale(high), y, "bar"))
    reached = [scale(seed.spent) for seed in line.seeds.values() if seed.reached]
    parts += [svg.draw_line(x, y - 5, x, y + 5, "seed") for x in reached]
    if summary.median is None:
        edge = scale.end
        parts.append(svg.draw_line(edge - 14, y, edge, y, "bar"))
        parts.append(svg.draw_curve([(edge - 5, y - 4), (edge, y), (edge - 5, y + 4)], "arrow"))
    else:
        parts.append(mark(scale(summary.median), y, 4.5, "mark"))
    parts.append(svg.draw_text(scale.end + 7, y + 4, svg.shorten_text(format_median(summary), 9), "value"))
    return parts
