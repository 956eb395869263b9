"""Draws docs/images/kfac-against-sgd.svg from committed results and published rows: `python docs/figures.py`."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from suite import published

ROOT = Path(__file__).parent.parent
OPTIMIZERS = {"sgd": ("SGD", "#7a7a7a"), "kfac": ("K-FAC", "#c2410c")}
TRIALS = 16  # of the tuning, in results/grid.yaml
ROWS = {"sgd": "K1-37", "kfac": "K1-40"}  # epochs to 75.9 % top-1, ResNet-50 on ImageNet, batch 1,024


def runs(optimizer: str) -> list[dict[str, Any]]:
    """Committed torch results of `resnet50` on shapes in its registered ladder, by seed."""
    files = sorted((ROOT / "results" / "runs" / "resnet50").glob(f"shapes-{optimizer}-torch-s*.json"))
    results = [json.loads(file.read_text()) for file in files]
    return sorted(filter(_is_shown, results), key=lambda result: result["spec"]["seed"])


def _is_shown(result: Mapping[str, Any]) -> bool:
    return result["spec"]["config"]["stop_at_target"] and result["tuning"]["trials"] == TRIALS


def steps_to_last_target(results: Sequence[Mapping[str, Any]]) -> list[float]:
    """Steps to the last target, one for each result; infinite if it was missed."""
    steps = (result["targets"][-1]["step"] for result in results)
    return [math.inf if step is None else step for step in steps]


def published_epochs(optimizer: str) -> float:
    """Epochs that the published row prints."""
    row = next(row for row in published.find_rows("resnet50") if row.id == ROWS[optimizer])
    assert row.epochs is not None
    return row.epochs


def shares() -> dict[str, float]:
    """K-FAC's steps or epochs as a share of SGD's: measured here (medians of the seeds), and published."""
    measured = {name: median(steps_to_last_target(runs(name))) for name in OPTIMIZERS}
    printed = {name: published_epochs(name) for name in OPTIMIZERS}
    return {"measured": measured["kfac"] / measured["sgd"], "published": printed["kfac"] / printed["sgd"]}


def draw(path: Path) -> None:
    """Write the figure; the same results give the same bytes."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.hashsalt": "suite", "svg.fonttype": "none", "font.size": 9}):
        figure = Figure(figsize=(8, 3), layout="constrained")
        curves, bars = figure.subplots(1, 2, width_ratios=(3, 2))
        for name, (label, colour) in OPTIMIZERS.items():
            for number, result in enumerate(runs(name)):
                points = [(point["step"], point["metrics"]["top1"]) for point in result["curve"]]
                curves.plot(*zip(*points, strict=True), color=colour, linewidth=1, label=None if number else label)
        target = runs("sgd")[0]["targets"][-1]["value"]
        curves.axhline(target, color="black", linestyle=":", linewidth=1)
        curves.set(xlabel="steps", ylabel="validation top-1 (%)", title="Measured: small ResNet, generated images")
        curves.legend(loc="lower right", frameon=False)
        found = shares()
        labels = ["this suite,\nstand-in", "published,\nImageNet (K1)"]
        drawn = bars.barh(labels, [found["measured"], found["published"]], color=OPTIMIZERS["kfac"][1], height=0.5)
        bars.bar_label(drawn, fmt="%.2f", padding=3)
        bars.axvline(1, color=OPTIMIZERS["sgd"][1])
        bars.set(xlim=(0, 1.1), title="K-FAC's steps as a share of SGD's")
        figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})


if __name__ == "__main__":
    draw(ROOT / "docs" / "images" / "kfac-against-sgd.svg")
