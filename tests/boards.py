"""Results as the engine writes them, for tests of the leaderboard.

`PYTHONPATH=. .venv/bin/python tests/boards.py` writes the golden files of the site again (tests/golden/site).
"""

import shutil
import tempfile
from pathlib import Path

from suite.board.groups import rank_results
from suite.board.news import Addition
from suite.board.site import pages
from suite.claims.claim import Check, Claim, Measure, Region
from suite.claims.standing import Measured, Standing
from suite.settings.configure import resolve

RUN = resolve(["task=resnet50", "recipe=null", "track=none"]).plain()
TARGET = {"metric": "top1", "value": 85.0, "higher_is_better": True}


def result(
    *,
    seed=0,
    step=100,
    kind="reached",
    budget=400,
    optimizer="kfac",
    lr=0.1,
    trials=8,
    version="1",
    scale="laptop",
    device="cpu",
    dirty=False,
    execution="a",
    targets=None,
    published=(),
    task=None,
    samples=None,
    parameters=500,
    every=1,
    cadence=10,
    **more,
):
    """A result as the engine writes it; two seconds a step, and the last two evaluations `every` steps apart."""
    reached = kind == "reached"
    crossing = {"reached": reached, "step": step if reached else None, "train_seconds": 2.0 * step if reached else None}
    last = step if reached else budget
    return {
        "schema": 1,
        "hash": f"{optimizer}{lr}",
        "execution_id": execution,
        "spec": {
            "task": "resnet50",
            "variant": "base",
            "scale": scale,
            "recipe": "tuned",
            "optimizer": optimizer,
            "comm": "exact",
            "backend": "torch",
            "world": 1,
            "batch_size": 64,
            "seed": seed + 3,  # 0 to 2 are seeds of the tuning
            "config": {
                **RUN,
                "task": {**RUN["task"], "width": 16, "batch_size": 64, "source": {"size": 32}, **(task or {})},
                "optimizer": {"name": optimizer, "module": f"suite.optimizers.{optimizer}", "lr": lr},
                "scale": scale,
                "max_steps": budget,
                "eval_every": cadence,
                "seed": seed + 3,  # 0 to 2 are seeds of the tuning
                "run_dir": f"runs/{seed}",
            },
        },
        "task_version": version,
        "data": {
            "kind": "real",
            "name": "digits",
            "identity": "0123456789abcdef",
            "samples": samples or {"train": 1437, "valid": 360},
            "note": "",
        },
        "parameters": parameters,
        "environment": {"cpu": "Some CPU", "commit": "abc", "dirty": dirty, "threads": 2},
        "segments": [{"step": 0, "resumed": False, "device": device}],
        "tuning": {"source": "conf/recipe", "trials": trials},
        "precision": "float32",
        "curve": [
            {"step": point, "samples": 64 * point, "train_seconds": 2.0 * point, "metrics": {"top1": 50.0}}
            for point in (last - every, last)
        ],
        "targets": [{**TARGET, **crossing}] if targets is None else targets,
        "outcome": {"kind": kind},
        "published": list(published),
        "command": f"suite +task=resnet50 optimizer={optimizer} seed={seed + 3}",
        **more,
    }


def seeds(optimizer, *spent, **more):
    return [result(seed=seed, step=step, optimizer=optimizer, **more) for seed, step in enumerate(spent)]


def site(results, folder, standings=(), news=(), **more):
    """Return the text of each page of the site, by its path below the folder."""
    written = pages.render_pages(rank_results(results, **more), standings, folder, news)
    return {path.relative_to(folder).as_posix(): path.read_text() for path in written}


def page(results, folder, **more):
    """Return the page of the task resnet50."""
    return site(results, folder, **more)["task/resnet50.html"]


def files(folder: Path):
    """Return the bytes of every file below a folder."""
    return {path.relative_to(folder): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


MIXED = [
    *(result(seed=seed, step=100 + 10 * seed) for seed in range(5)),
    *(result(seed=seed, step=200 + 10 * seed, optimizer="sgd") for seed in range(3)),
    result(seed=3, optimizer="sgd", kind="diverged"),
    result(optimizer="sgd", lr=0.5, kind="exhausted"),
    result(trials=0),
    result(version="2"),
    result(scale="paper", optimizer="shampoo", dirty=True, published=["A1-12"]),
]


def standing(*, id="kfac-fewer-steps", paper="some-paper", verdict=None, pattern="undecided") -> Standing:
    """Return what is known about a claim with one check."""
    check = Check(
        name="stand-in",
        scale="stand-in",
        quantity="K-FAC's steps as a share of SGD's",
        holds=Region(above=0.3, below=0.9),
        compare="ratio",
        runs={"kfac": "+task=resnet50 optimizer=kfac", "sgd": "+task=resnet50"},
        measure=Measure(steps_to="last"),
        published=0.49,
        stands_for="a small network",
    )
    claim = Claim(id=id, statement="K-FAC needs <fewer> steps.", place="Table 1", checks=(check,))
    measured = Measured(check, "undecided", {3: 0.58}, 0.58, 0.4, 0.7, 2, "one seed is not enough", ("runs/a.json",))
    return Standing(claim, paper, "Somebody: Some Paper, 2020", verdict, pattern, (measured,))


GOLDEN = Path(__file__).parent / "golden" / "site"


def golden(folder: Path) -> dict[str, bytes]:
    """Return the site of a few fixed results of a task without published rows: leaderboard.json and the pages."""
    results = [
        *(result(seed=seed, step=100 + seed, curve=_curve(100 + seed)) for seed in range(4)),
        *(result(seed=seed, step=201 - seed, optimizer="sgd", curve=_curve(201 - seed)) for seed in range(4)),
        result(seed=4, optimizer="sgd", kind="diverged"),
        result(optimizer="lamb", kind="exhausted"),
        result(trials=0, bytes={"sent": 4000}, steps=100, peak_memory_bytes=2_000_000),
    ]
    jax = [{**some, "spec": {**some["spec"], "backend": "jax"}} for some in results[:8]]
    small = [{**some, "spec": {**some["spec"], "task": "small"}} for some in [*results, *jax]]
    claims = [standing(), standing(id="other", verdict="reproduced", pattern=None)]
    site(small, folder, claims, [Addition("2026-11-25", "Somebody", "0123456789abcdef", {"small": 21})])
    made = {name: content for name, content in files(folder).items() if name.parts[0] != "raw"}
    return {name.as_posix(): content for name, content in made.items() if name.as_posix() not in pages.ASSETS}


def _curve(steps):
    return [
        {"step": step, "samples": 64 * step, "train_seconds": 2.0 * step, "metrics": {"top1": 85.0 * step / steps}}
        for step in (steps // 4, steps // 2, steps - 1, steps)
    ]


if __name__ == "__main__":
    shutil.rmtree(GOLDEN, ignore_errors=True)
    with tempfile.TemporaryDirectory() as name:
        for path, content in golden(Path(name)).items():
            (GOLDEN / path).parent.mkdir(parents=True, exist_ok=True)
            (GOLDEN / path).write_bytes(content)
