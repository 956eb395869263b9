"""Draws a history: a panel for each series, with its points, the level of each segment, and its changes."""

from collections.abc import Sequence

from suite import svg
from suite.regress.history import Series
from suite.regress.show import format_amount

WIDTH, HEIGHT, LEFT, RIGHT, TOP, FOOT = 720, 150, 80, 20, 34, 26
ROOM = 0.05  # of the range, above and below the points
STYLE = """<style>text { font: 12px system-ui, sans-serif; fill: #1b1f24; } .tick { fill: #57606b; font-size: 11px; }
.name { font-weight: 600; } .grid { stroke: #d8dde3; } .point { fill: #0067a5; }
.level { stroke: #0067a5; stroke-width: 2; } .change { stroke: #b84a00; stroke-dasharray: 4 3; }
.label { fill: #b84a00; font-size: 11px; } svg { background: #fff; }
@media (prefers-color-scheme: dark) { svg { background: #14181d; } text { fill: #e6e9ed; } .tick { fill: #9ba6b2; }
.grid { stroke: #363d46; } .point { fill: #5cb3ea; } .level { stroke: #5cb3ea; } .change { stroke: #f0894a; }
.label { fill: #f0894a; } }</style>"""


def draw_history(series: Sequence[Series]) -> str:
    """All series below each other, as an SVG file."""
    parts = [STYLE]
    for number, one in enumerate(series):
        parts.append(f'<g transform="translate(0 {number * HEIGHT})">{"".join(_panel(one))}</g>')
    label = "Measurements over time: " + ", ".join(one.benchmark.name for one in series)
    drawn = svg.draw_picture(WIDTH, HEIGHT * len(series), label, parts)
    return drawn.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1) + "\n"


def _panel(one: Series) -> list[str]:
    values = [point.value for point in one.points]
    room = ROOM * (max(values) - min(values)) or ROOM * max(values)
    low, high = min(values) - room, max(values) + room
    across = svg.Scale(0, max(len(values) - 1, 1), LEFT, WIDTH - RIGHT)
    down = svg.Scale(low, high, HEIGHT - FOOT, TOP)
    parts = [svg.draw_text(8, 14, f"{one.benchmark.name}, {one.benchmark.metric}", "name")]
    parts.append(svg.draw_text(WIDTH - RIGHT, 14, svg.shorten_text(one.machine, 70), "tick", "end"))
    for tick in svg.list_ticks(low, high, 3):
        parts.append(svg.draw_line(LEFT, down(tick), WIDTH - RIGHT, down(tick), "grid"))
        parts.append(svg.draw_text(LEFT - 6, down(tick) + 4, format_amount(tick, one.benchmark.metric), "tick", "end"))
    for index, anchor in {0: "start", len(values) - 1: "end"}.items():
        parts.append(svg.draw_text(across(index), HEIGHT - 8, one.points[index].date[:10], "tick", anchor))
    found = one.changes
    edges = [0, *(change.index for change in found), len(values)]
    levels = [found[0].before, *(change.after for change in found)] if found else []
    for start, end, level in zip(edges, edges[1:], levels, strict=False):
        parts.append(svg.draw_line(across(start) - 3, down(level), across(end - 1) + 3, down(level), "level"))
    for change in found:
        x = (across(change.index - 1) + across(change.index)) / 2
        ratio = f"{one.points[change.index].name} {change.after / change.before - 1:+.1%}"
        anchor = "start" if x < (LEFT + WIDTH) / 2 else "end"
        parts.append(svg.draw_line(x, TOP - 4, x, HEIGHT - FOOT, "change"))
        parts.append(svg.draw_text(x + (4 if anchor == "start" else -4), TOP - 6, ratio, "label", anchor))
    return parts + [svg.draw_circle(across(index), down(value), 2.5, "point") for index, value in enumerate(values)]
