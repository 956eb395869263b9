"""A plan as a picture: its stages as boxes, and below them a timeline of one step, in which the bubble can be seen.

The colours are those of the leaderboard's site; they follow the reader's light or dark theme.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from html import escape

from suite import svg
from suite.comm.partition.plan import Plan, Stage, format_size
from suite.comm.partition.timeline import Run, simulate_step
from suite.svg import format_coordinate, place_at

WIDTH, MARGIN = 960, 16
COLUMNS, GAP, TALL = 4, 56, 104  # boxes in a row, room for an arrow before each of them, height of a box
BOX = (WIDTH - 2 * MARGIN) / COLUMNS - GAP
ROW, BAR, LABEL = 26, 18, 64  # of the timeline: distance of rows, height of bars, room for the stages' numbers
LETTERS = 22  # that fit into a box
DIGITS = 9  # width of a bar in which the number of its micro-batch can be read, for each digit
KINDS = {"forward": "forward", "again": "forward again", "backward": "backward", "average": "average gradients"}

TIMES = "predicted, for the first device of each stage; what is empty is the bubble"
MEMORY = "grey bars: memory, as a share of what a plan may use of a device"

# the colours of suite/board/templates/style.css, which this package may not read
LIGHT = "--text:#1b1f24;--page:#fff;--faint:#57606b;--line:#d8dde3;--shade:#f4f6f8;--on:#fff;"
LIGHT += "--forward:#0067a5;--again:#8fbdd9;--backward:#b84a00;--average:#00684a"
DARK = "--text:#e6e9ed;--page:#14181d;--faint:#9ba6b2;--line:#363d46;--shade:#1e242b;--on:#14181d;"
DARK += "--forward:#5cb3ea;--again:#2f5f80;--backward:#f0894a;--average:#4fc99a"
STYLE = f"""svg{{{LIGHT}}}
@media(prefers-color-scheme:dark){{svg{{{DARK}}}}}
text{{font:12px system-ui,sans-serif;fill:var(--text)}}
.name{{font-weight:600}}.tick{{fill:var(--faint);font-size:11px}}.limit{{fill:var(--faint);font-size:10px}}
.number{{fill:var(--on);font-size:10px}}
.page{{fill:var(--page)}}.stage{{fill:var(--shade);stroke:var(--line)}}.track{{fill:var(--shade)}}
.room{{fill:var(--page);stroke:var(--line)}}.used{{fill:var(--faint)}}
.grid{{stroke:var(--line)}}.arrow{{fill:none;stroke:var(--faint);stroke-width:1.5}}
.forward{{fill:var(--forward)}}.again{{fill:var(--again)}}.backward{{fill:var(--backward)}}
.average{{fill:var(--average)}}.forward,.again,.backward,.average{{stroke:var(--page);stroke-width:.5}}"""


def draw_plan(plan: Plan) -> str:
    """Draw a plan.

    Returns:
        An SVG file; the same plan gives the same text.
    """
    table = str(plan).splitlines()[len(plan.stages) + 1 :]
    parts = [
        svg.draw_text(MARGIN, 24 + 18 * number, line, "" if number else "name") for number, line in enumerate(table)
    ]
    top = 24 + 18 * len(table) + 4
    rows = -(-len(plan.stages) // COLUMNS)
    left = MARGIN + (GAP if rows > 1 else 0)  # room for the arrows that begin a row
    for number, stage in enumerate(plan.stages):
        row, column = divmod(number, COLUMNS)
        parts += _stage(plan, stage, number, left + column * (BOX + GAP), top + row * (TALL + 16))
    below = top + rows * (TALL + 16) + 16
    parts += _timeline(plan, below)
    height = below + ROW * len(plan.stages) + 68
    label = escape(f"{len(plan.stages)} stages of a pipeline and the timeline of one step")
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {svg.format_coordinate(height)}" role="img"'
    page = f'<rect class="page" width="{WIDTH}" height="{svg.format_coordinate(height)}"/>'
    return f'{head} aria-label="{label}">\n<style>\n{STYLE}\n</style>\n' + "\n".join([page, *parts]) + "\n</svg>\n"


def _stage(plan: Plan, stage: Stage, number: int, x: float, y: float) -> list[str]:
    """Return the box of a stage, with an arrow that brings what it receives."""
    parts = [draw_box(x, y, BOX, TALL, "stage")]
    if number:
        parts.append(svg.draw_text(x - GAP / 2, y + TALL / 2 - 8, format_size(stage.received), "tick", "middle"))
        parts.append(draw_arrow(x - GAP + 4, x - 4, y + TALL / 2))
    devices = stage.replicas * plan.pipelines
    lines = [shorten_text(stage.first, LETTERS)]
    lines += [f"to {shorten_text(stage.last, LETTERS - 3)}"] if stage.last != stage.first else []
    parts.append(svg.draw_text(x + 8, y + 18, f"stage {number} · {devices} device{'s' if devices > 1 else ''}", "name"))
    parts += [svg.draw_text(x + 8, y + 35 + 14 * index, line, "tick") for index, line in enumerate(lines)]
    parts.append(svg.draw_text(x + 8, y + 68, f"parameters {format_size(stage.parameters)}"))
    parts.append(svg.draw_text(x + 8, y + 84, f"memory {format_size(stage.memory)}"))
    if plan.limit:
        share = min(stage.memory / plan.limit, 1.0)
        parts.append(svg.draw_text(x + BOX - 8, y + 84, format_size(plan.limit), "limit", "end"))
        parts.append(draw_box(x + 8, y + 90, BOX - 16, 7, "room"))
        parts.append(draw_box(x + 8, y + 90, (BOX - 16) * share, 7, "used"))
    return parts


def _timeline(plan: Plan, top: float) -> list[str]:
    """One row for each stage: what its first device does in a step."""
    times = simulate_step(plan.times, plan.schedule, plan.micro_batches)
    left, right = MARGIN + LABEL, WIDTH - MARGIN
    scale = (right - left) / plan.seconds if plan.seconds else 0.0
    bottom = top + ROW * len(plan.stages)
    parts = []
    for tick in list_ticks(1e3 * plan.seconds):
        x = left + tick / 1e3 * scale
        parts.append(svg.draw_line(x, top - 4, x, bottom, "grid"))
        parts.append(svg.draw_text(x, bottom + 14, f"{tick:g}", "tick", "middle"))
    parts.append(svg.draw_text(MARGIN, bottom + 14, "ms", "tick"))
    for number, stage in enumerate(plan.stages):
        y = top + ROW * number
        parts += [
            svg.draw_text(MARGIN, y + 14, f"stage {number}", "tick"),
            draw_bars([(left, right)], y, BAR, "track"),
        ]
        spans = _spans(stage, [run for run in times.runs if (run.stage, run.replica) == (number, 0)])
        parts += _row([span.placed(left, scale) for span in spans], y)
    x = float(left)
    for kind, words in KINDS.items():
        parts.append(draw_box(x, bottom + 26, 12, 12, kind))
        parts.append(svg.draw_text(x + 18, bottom + 36, words, "tick"))
        x += 34 + 6.5 * len(words)
    parts += [
        svg.draw_text(right, bottom + 36, TIMES, "tick", "end"),
        svg.draw_text(right, bottom + 52, MEMORY, "tick", "end"),
    ]
    return [part for part in parts if part]


@dataclass(frozen=True)
class Span:
    """A time in which a device is busy: what it does, from when, until when, and the micro-batch or nothing."""

    kind: str
    start: float
    end: float
    label: str = ""

    def placed(self, left: float, scale: float) -> "Span":
        """Return the span in coordinates: second 0 is at `left`, and a second is `scale` wide."""
        return replace(self, start=left + self.start * scale, end=left + self.end * scale)


def _spans(stage: Stage, runs: Sequence[Run]) -> list[Span]:
    """Return what a device does in a step, in seconds."""
    spans = []
    for run in runs:
        start = run.start
        if run.job.kind == "backward" and stage.recompute:
            start += stage.forward
            spans.append(Span("again", run.start, start))
        spans.append(Span(run.job.kind, start, run.end, str(run.job.micro_batch)))
    if stage.all_reduce and runs:
        spans.append(Span("average", runs[-1].end, runs[-1].end + stage.all_reduce))
    return spans


def _row(spans: Sequence[Span], y: float) -> list[str]:
    """Return the bars of one device, whose spans are coordinates, with numbers where there is room."""
    parts = [draw_bars([(span.start, span.end) for span in spans if span.kind == kind], y, BAR, kind) for kind in KINDS]
    wide = [span for span in spans if span.label and span.end - span.start >= DIGITS * len(span.label)]
    return parts + [svg.draw_text((span.start + span.end) / 2, y + 13, span.label, "number", "middle") for span in wide]


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
