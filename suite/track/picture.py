"""Draws the curve of a run as an SVG; its bytes depend only on the run."""

import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

from suite.record.result import Decision, Result


def draw_curve(result: Result, events: Sequence[Mapping[str, Any]], *, title: str) -> bytes:
    """Plot training loss and validation metric over steps and training seconds; mark targets and decisions by lines.

    Args:
        result: of the run, or what it would be if the run ended now.
        events: of the run.
        title: of the figure.

    Returns:
        The SVG file.
    """
    import matplotlib
    from matplotlib.figure import Figure

    steps = [event for event in events if event["event"] == "step"]
    points, targets = result.curve, result.targets
    metric = targets[-1].metric if targets else next((name for point in points for name in point.metrics), "metric")
    lines = [target.value for target in targets if target.metric == metric]
    with matplotlib.rc_context({"svg.hashsalt": result.execution_id, "svg.fonttype": "none", "font.size": 9}):
        figure = Figure(figsize=(8, 5), layout="constrained")
        figure.suptitle(f"{result.spec.task} · {title} · {result.data.label}")
        panels = figure.subplots(2, 2, sharex="col", sharey="row")
        for column, (key, label) in enumerate((("step", "steps"), ("train_seconds", "training seconds"))):
            upper, lower = panels[0][column], panels[1][column]
            upper.plot([step[key] for step in steps], [step["loss"] for step in steps], linewidth=1)
            lower.plot(
                [getattr(point, key) for point in points],
                [_drawn(point.metrics[metric]) for point in points],
                marker=".",
            )
            for line in lines:
                lower.axhline(line, color="grey", linestyle=":", linewidth=1)
            for decision in result.decisions or ():
                place = getattr(decision, key)
                upper.axvline(place, color="grey", linestyle="--", linewidth=1)
                upper.text(place, 1.0, _mode(decision), transform=upper.get_xaxis_transform(), fontsize=6, va="top")
            lower.set_xlabel(label)
        panels[0][0].set_ylabel("training loss")
        panels[1][0].set_ylabel(f"validation {metric}")
        file = io.BytesIO()
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
        return file.getvalue()


def _drawn(value: float | None) -> float:
    """Return the value to plot: NaN, which leaves a gap in the line, for an undefined metric."""
    return math.nan if value is None else value


def _mode(decision: Decision) -> str:
    """Return the communication mode of a decision, in one line or one line for each kind of parameter."""
    mode = decision.mode
    return mode if isinstance(mode, str) else "\n".join(f"{kind}: {name}" for kind, name in mode.items())
