"""Curves of the target's metric over steps: one small panel for each optimizer, in front of all others in grey."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from suite import svg
from suite.board.rows import Entry
from suite.board.site.text import format_number
from suite.record.result import Result

WIDTH, HEIGHT, LEFT, RIGHT, TOP, FOOT = 220, 150, 40, 8, 8, 20
MOST_POINTS = 60  # of a curve; more are not visible at this width
OUTSIDE = 0.1  # share of the worst values that may lie outside the frame, such as losses before the first steps

Points = list[tuple[float, float]]


@dataclass(frozen=True)
class Curve:
    """Metric of one row over steps."""

    optimizer: str
    backend: str
    seeds: tuple[Points, ...]

    def band(self) -> list[tuple[float, float, float, float]]:
        """(step, lowest, median, highest) at the steps at which every seed was evaluated."""
        values = [dict(points) for points in self.seeds]
        shared = sorted(set.intersection(*map(set, values))) if values else []
        rows = [(step, [points[step] for points in values]) for step in thin_points(shared)]
        return [(step, min(row), median(row), max(row)) for step, row in rows]


def curve_of(entry: Entry, results: dict[str, Result], metric: str) -> Curve:
    """Return the curve of a row.

    Args:
        entry: the row; only one execution of each seed is used.
        results: all results by file name.
        metric: the metric of the target.
    """
    executions: dict[int, Result] = {}
    for item in entry.results:
        executions.setdefault(item["seed"], results[item["file"]])
    seeds = []
    for result in executions.values():
        values = [(point.step, point.metrics.get(metric)) for point in result.curve]
        points = [(float(step), float(value)) for step, value in values if step is not None and value is not None]
        if points:
            seeds.append(points)
    return Curve(entry.optimizer, entry.backend or "", tuple(seeds))


def thin_points(points: Sequence, most: int = MOST_POINTS) -> list:
    """At most `most` + 1 of the points, the last one included."""
    if len(points) <= most:
        return list(points)
    stride = -(-len(points) // most)
    kept = list(points[::stride])
    return kept if kept[-1] == points[-1] else [*kept, points[-1]]


def draw_panels(curves: Sequence[Curve], target: dict[str, Any], name: str) -> list[tuple[str, str]]:
    """Draw the panels.

    Args:
        curves: of all rows; those of one optimizer share a panel.
        target: metric, value and direction.
        name: begins the ids within the pictures; unique on the page.

    Returns:
        Optimizer and picture, in the order of the curves.
    """
    curves = [curve for curve in curves if curve.seeds]
    if not curves:
        return []
    frame = _Frame.around(curves, target)
    background = "".join(svg.draw_curve(frame.place(_middle(curve)), "other-curve") for curve in curves)
    optimizers = list(dict.fromkeys(curve.optimizer for curve in curves))
    pictures = []
    for index, optimizer in enumerate(optimizers):
        own = [curve for curve in curves if curve.optimizer == optimizer]
        # the grey curves are written once, in the first panel
        grey = f'<g id="{name}-all">{background}</g>' if index == 0 else f'<use href="#{name}-all"/>'
        clip = f'<clipPath id="{name}-clip"><rect {frame.rectangle}/></clipPath>' if index == 0 else ""
        inside = grey + "".join(frame.draw(curve) for curve in own)
        label = f"{optimizer}: {target['metric']} over steps, in {' and '.join(curve.backend for curve in own)}"
        parts = [clip, *frame.axes(target), f'<g clip-path="url(#{name}-clip)">{inside}</g>']
        pictures.append((optimizer, svg.draw_picture(WIDTH, HEIGHT, label, parts)))
    return pictures


def _middle(curve: Curve) -> Points:
    return [(step, middle) for step, _, middle, _ in curve.band()] or thin_points(curve.seeds[0])


@dataclass(frozen=True)
class _Frame:
    """Axes that all panels share."""

    x: svg.Scale
    y: svg.Scale

    @classmethod
    def around(cls, curves: Sequence[Curve], target: dict[str, Any]) -> "_Frame":
        points = [point for curve in curves for seed in curve.seeds for point in seed]
        values = sorted((value for _, value in points), reverse=not target["higher_is_better"])  # worst first
        worst = values[int(OUTSIDE * (len(values) - 1))]
        low, high = min(worst, values[-1], target["value"]), max(worst, values[-1], target["value"])
        margin = 0.05 * (high - low) or 1.0
        x = svg.Scale(0, max(step for step, _ in points), LEFT, WIDTH - RIGHT)
        return cls(x, svg.Scale(low - margin, high + margin, HEIGHT - FOOT, TOP))

    @property
    def rectangle(self) -> str:
        return f'x="{LEFT}" y="{TOP}" width="{WIDTH - LEFT - RIGHT}" height="{HEIGHT - FOOT - TOP}"'

    def place(self, points: Points) -> Points:
        # beyond the frame by a fixed distance, so that a curve leaves it instead of following its edge
        height = self.y.high - self.y.low
        wide = svg.Scale(
            self.y.low - height, self.y.high + height, 2 * self.y.start - self.y.end, 2 * self.y.end - self.y.start
        )
        return [(self.x(step), wide(value)) for step, value in points]

    def axes(self, target: dict[str, Any]) -> list[str]:
        parts = []
        for tick in svg.list_ticks(self.y.low, self.y.high, 4):
            parts.append(svg.draw_line(LEFT, self.y(tick), WIDTH - RIGHT, self.y(tick), "grid"))
            parts.append(svg.draw_text(LEFT - 4, self.y(tick) + 3.5, format_number(tick), "tick small", "end"))
        marks = [tick for tick in svg.list_ticks(0, self.x.high, 3) if tick > 0]
        parts += [
            svg.draw_text(self.x(tick), HEIGHT - 5, format_number(tick), "tick small", "middle") for tick in marks
        ]
        parts.append(svg.draw_line(LEFT, self.y(target["value"]), WIDTH - RIGHT, self.y(target["value"]), "target"))
        return parts

    def draw(self, curve: Curve) -> str:
        band = curve.band()
        parts = [svg.draw_curve(self.place(thin_points(seed)), "run") for seed in curve.seeds]
        if len(band) > 1:
            upper = self.place([(step, high) for step, _, _, high in band])
            lower = self.place([(step, low) for step, low, _, _ in band])
            parts = [svg.draw_area(upper, lower, "band"), *parts]
            parts.append(svg.draw_curve(self.place([(step, middle) for step, _, middle, _ in band]), "middle"))
        style = curve.backend if curve.backend in ("torch", "jax") else "other"
        return f'<g class="{style}">{"".join(parts)}</g>'
