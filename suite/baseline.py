"""A baseline: a model that is fitted whole, with no optimizer, step or batch, and set beside its task's trained runs.

`conf/baseline/<name>.yaml` names its task and its module, which is a `suite.contract.Baseline`. It speaks the loop's
events, and the same clock bills it.
"""

import os
import resource
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from suite import load
from suite.clock import Clock
from suite.contract import Evaluated, Event, Finished, Started, Task, UserError

# What a baseline reads of a configuration. The rest describes training by steps, and is left out of its own.
READ = ("task", "baseline", "scale", "seed", "threads", "tuning", "data_dir")
READ += ("run_dir", "repeat", "force", "require", "track")


def settings(config: Mapping[str, Any], typed: Iterable[str]) -> dict[str, Any]:
    """A baseline's own configuration, from one that was composed for a run.

    Args:
        config: with `baseline` chosen.
        typed: the overrides.

    Raises:
        UserError: for another task's baseline, or an override that it would not read.
    """
    name, task = config["baseline"]["name"], config["baseline"]["task"]
    command = f"suite +task={task} baseline={name}"
    if config["task"]["name"] != task:
        raise UserError(f"baseline={name}: is for task={task}, not {config['task']['name']}; type {command}")
    for override in typed:
        if override.lstrip("+~").partition("=")[0].partition(".")[0] not in READ:
            raise UserError(
                f"{override}: a baseline is fitted whole, on one CPU, without optimizer, backend, devices or steps; "
                f"type {command}"
            )
    return {key: value for key, value in config.items() if key in READ}


def measure(task: Task, config: Mapping[str, Any]) -> Iterator[Event]:
    """Fit and score; yields `Started`, one `Evaluated`, which has neither step nor samples, and `Finished`.

    Fitting is billed as training and scoring as evaluation. As for a run, the data is made before the clock starts.
    """
    member = load.common(config["baseline"]["module"])
    clock = Clock(lambda: None)
    task.batch("train", config["seed"], 0)
    yield Started(0, facts=facts())
    clock.start()
    model = member.fit(task, config["seed"])
    with clock.paused("evaluation"):
        metrics = member.score(task, model)
        yield Evaluated(None, None, clock.seconds, clock.wall, metrics)
    with clock.paused("logging"):
        spent = {"train_seconds": clock.seconds, "wall_seconds": clock.wall, "excluded_seconds": dict(clock.excluded)}
        reached = task.targets and all(target.met(metrics) for target in task.targets)
        yield Finished(0, {"kind": "reached" if reached else "exhausted"}, facts() | spent)


def facts() -> dict[str, Any]:
    """What the result says of the machine, under the names that an engine uses."""
    return {
        "device": "cpu",
        "parameters": None,  # of a network
        "compile_seconds": 0.0,
        "compile_cache": None,
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "bytes": {"sent": 0, "by_name": {}},
    }


def prepare(threads: int) -> None:
    """Limit OpenMP, which reads this when a library first loads it."""
    os.environ["OMP_NUM_THREADS"] = str(threads)
