"""A BERT so small that a test can train it."""

from pathlib import Path
from typing import Any

import engines

from suite.launch.job import make_task
from suite.settings import configure

SMALL = ["layers=2", "hidden=16", "heads=2", "intermediate=32", "sequence=32", "positions=32", "predictions=6"]
SMALL += ["batch_size=8", "eval_batch_size=16", "sources.hmm.options={train: 64, valid: 24}"]


def task(*options: str, data_dir: Path | None = None) -> Any:
    place = [f"data_dir={data_dir}"] if data_dir else []
    return make_task(configure.resolve(["task=bert", *place, *(f"task.{o}" for o in (*SMALL, *options))]))


def engine(backend: str, made: Any, optimizer: str = "sgd", **changes: Any) -> Any:
    run = engines.config(optimizer, backend, **changes)
    return engines.engine(engines.change(run, {"task": configure.resolve(["task=bert"]).task}), made)
