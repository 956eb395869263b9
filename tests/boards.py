"""Results as the engine writes them, for tests of the leaderboard.

`PYTHONPATH=. .venv/bin/python tests/boards.py` writes the golden files of the site again (tests/golden/site).
"""

import hashlib
import shutil
import tempfile
from pathlib import Path

from suite.board.groups import Leaderboard, rank_results
from suite.board.news import Addition
from suite.board.site import pages
from suite.claims.claim import Check, Claim, Measure, Region
from suite.claims.standing import Measured, Standing
from suite.record.record import make_result
from suite.settings.configure import resolve

ENVIRONMENT = {"suite": "0", "python": "3.11", "system": "Linux", "cpu": "Some CPU", "cores": 2, "memory_bytes": 2**30}
ENVIRONMENT |= {"frameworks": {}, "packages": "0" * 16, "source": "0" * 16, "commit": "abc" + "0" * 37, "threads": 2}
RUN = resolve(["task=resnet50", "recipe=null", "track=none"]).plain()
TARGET = {"metric": "top1", "value": 85.0, "higher_is_better": True}


def digest(text, length):
    """Return a hash of a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def point(step, value):
    """An evaluation at a step; two seconds a step."""
    seconds = 2.0 * step
    return {
        "step": step,
        "samples": 64 * step,
        "train_seconds": seconds,
        "wall_seconds": seconds,
        "metrics": {"top1": value},
    }


def rung(**entry):
    """A target of the ladder, with the entries that are missing."""
    label, seconds = f"{entry['metric']}_{entry['value']:g}", entry["train_seconds"]
    return {"label": label, "samples": None, "wall_seconds": seconds, "bracket": [None, entry["step"]]} | entry


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
    curve=None,
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
        "hash": digest(f"{optimizer}{lr}", 12),
        "execution_id": digest(execution, 32),
        "fingerprint": "0" * 16,
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
            "skipped": [],
            "label": "real:digits",
        },
        "parameters": parameters,
        "environment": {**ENVIRONMENT, "dirty": dirty},
        "segments": [{"step": 0, "resumed": False, "device": device}],
        "tuning": {"source": "conf/recipe", "trials": trials},
        "precision": "float32",
        "deterministic": True,
        "curve": [point(step, 50.0) for step in (last - every, last)] if curve is None else curve,
        "targets": [rung(**entry) for entry in ([{**TARGET, **crossing}] if targets is None else targets)],
        "outcome": {"kind": kind},
        "steps": 0,
        "samples": 0,
        "step_seconds": {"p50": None, "p99": None},
        "train_seconds": 2.0 * last,
        "wall_seconds": 2.0 * last,
        "compile_seconds": 0.0,
        "compile_cache": None,
        "excluded_seconds": {},
        "peak_memory_bytes": None,
        "bytes": {"sent": 0, "by_name": {}},
        "published": list(published),
        "command": f"suite +task=resnet50 optimizer={optimizer} seed={seed + 3}",
        **more,
    }


def made(**changes):
    """A result with other entries; evaluations and targets get those that are missing."""
    content = result() | changes
    spent = [{"step": None, "train_seconds": 0.0} | one for one in content["curve"]]
    curve = [{"samples": one["step"], "wall_seconds": one["train_seconds"]} | one for one in spent]
    return make_result(content | {"curve": curve, "targets": [rung(**entry) for entry in content["targets"]]})


def seeds(optimizer, *spent, **more):
    return [result(seed=seed, step=step, optimizer=optimizer, **more) for seed, step in enumerate(spent)]


def rank(results, **more) -> Leaderboard:
    """Rank results, which may be the contents of files."""
    return rank_results([make_result(one) if isinstance(one, dict) else one for one in results], **more)


def site(results, folder, standings=(), news=(), **more):
    """Return the text of each page of the site, by its path below the folder."""
    written = pages.render_pages(rank(results, **more), standings, folder, news)
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
        result(trials=0, bytes={"sent": 4000, "by_name": {}}, steps=100, peak_memory_bytes=2_000_000),
    ]
    jax = [{**some, "spec": {**some["spec"], "backend": "jax"}} for some in results[:8]]
    small = [{**some, "spec": {**some["spec"], "task": "small"}} for some in [*results, *jax]]
    claims = [standing(), standing(id="other", verdict="reproduced", pattern=None)]
    site(small, folder, claims, [Addition("2026-11-25", "Somebody", "0123456789abcdef", {"small": 21})])
    made = {name: content for name, content in files(folder).items() if name.parts[0] != "raw"}
    return {name.as_posix(): content for name, content in made.items() if name.as_posix() not in pages.ASSETS}


def _curve(steps):
    return [point(step, 85.0 * step / steps) for step in (steps // 4, steps // 2, steps - 1, steps)]


if __name__ == "__main__":
    shutil.rmtree(GOLDEN, ignore_errors=True)
    with tempfile.TemporaryDirectory() as name:
        for path, content in golden(Path(name)).items():
            (GOLDEN / path).parent.mkdir(parents=True, exist_ok=True)
            (GOLDEN / path).write_bytes(content)
