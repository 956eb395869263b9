"""`python -m suite.counters.process OVERRIDES...` trains a few steps and prints what it counted, as JSON.

One process counts one run: what was imported or compiled before would change the counts.
"""

import json
import sys
from collections.abc import Sequence
from typing import Any

from suite import load
from suite.contract import UserError
from suite.launch.checks import check_run
from suite.launch.execution import prepare_backend
from suite.launch.job import make_task
from suite.load import search_working_directory
from suite.settings import configure, rates
from suite.settings.overrides import split_directory

STEPS = 12  # the longest interval of the default settings is 10
ALWAYS = ("track=none", "threads=1", f"max_steps={STEPS}", f"eval_every={STEPS}")


def main(overrides: Sequence[str]) -> int:
    """Train, count, print.

    Args:
        overrides: of the run.

    Returns:
        0, or 2 if the run cannot be counted.
    """
    try:
        print(json.dumps(count_run(overrides)))
    except UserError as error:
        print(f"suite: {error}", file=sys.stderr)
        return 2
    return 0


def count_run(overrides: Sequence[str]) -> dict[str, Any]:
    """Return the counts and the losses of a run's first steps.

    Raises:
        UserError: if the run's configuration is wrong, or needs several processes.
    """
    search_working_directory()
    directory, words = split_directory(list(overrides))
    run = configure.resolve_training([*words, *ALWAYS], directory)
    backend = run.backend
    if run.world > 1 and backend == "torch":
        raise UserError("world=: several ranks are counted in one process, in jax only; set backend=jax")
    load.check_framework(backend)
    prepare_backend(run, processes=1, threads=1)
    task = make_task(run, directory)
    check_run(run, task)
    engine = load.load_half("suite.engine", backend).Engine(task, run)
    hyper = rates.Scheduled(STEPS, run.schedule, run.optimizer, 1.0)
    losses: list[float] = []

    def batch(index: int) -> Any:
        return task.batch("train", run.seed, index, 0, 1)

    def warm() -> None:
        engine.warm(batch(0), range(STEPS), hyper[0])
        if engine.plan.warm_start:
            engine.prepare(batch(index) for index in range(engine.plan.warm_start))

    def steps() -> None:
        losses.extend(engine.losses([engine.step(step, batch(step), hyper[step]) for step in range(STEPS)]))

    counts = load.load_half("suite.counters", backend).count_work(engine, warm, steps)
    arrays, _ = engine.snapshot()
    facts = engine.facts()
    exact = {"parameters": facts["parameters"], "state_bytes": sum(array.nbytes for array in arrays.values())}
    return {"counts": {**exact, "wire_bytes": facts["bytes"]["by_name"], **counts}, "losses": losses}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
