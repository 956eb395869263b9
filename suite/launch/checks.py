"""Checks a run's configuration once, before a directory is made and a rank is started.

No framework is imported. Errors that only a rank can detect (of its devices, an optimizer's arguments, an external
optimizer's class) are reported by the ranks to the launcher: see `suite.launch.local`.
"""

import importlib
import importlib.util
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from suite import engine, load
from suite.comm import setup
from suite.contract import Sparse, Task, UserError
from suite.settings.baseline import is_baseline
from suite.training import adaptation, schedule, weights


def check(config: Mapping[str, Any], task: Task) -> None:
    """Check that the parts of a run fit together.

    Args:
        config: one run's configuration.
        task: made from it.

    Raises:
        UserError: for the first error found.
    """
    if is_baseline(config):
        return
    for module in _modules(config):
        load.written(module, config["backend"])
    setup.modes(config["comm"], task, config["world"], None)
    _schedule(config, task)
    _plan(config, task)
    weights.Keeper(config["save"], task.targets[-1] if task.targets else None)
    _decisions(config)


def processes(config: Mapping[str, Any]) -> None:
    """Check the number of processes that `launch=local` starts.

    Raises:
        UserError: if the devices cannot be divided equally among the processes.
    """
    setting, world = config["launch"]["processes"], config["world"]
    if setting == "auto":
        return
    count = whole("launch.processes", setting)
    if count < 1 or world % count or (config["backend"] == "torch" and count != world):
        rule = f"world={world} " + (
            "needs one process per device" if config["backend"] == "torch" else "is not divisible by it"
        )
        raise UserError(f"launch.processes={setting}: {rule}; type launch.processes=auto")


def whole(key: str, value: Any) -> int:
    """Convert a setting, a number or text, to a whole number.

    Raises:
        UserError: if it is not a whole number.
    """
    try:
        return int(str(value))
    except ValueError as error:
        raise UserError(f"{key}={value}: must be a whole number") from error


def _modules(config: Mapping[str, Any]) -> Iterator[str]:
    """The modules that must support the run's backend: the task, the optimizer and the parts of the channels."""
    yield config["task"]["module"]
    yield config["optimizer"]["module"]
    comm = config["comm"]
    for node in (comm, comm["factors"], *comm["kinds"].values(), *comm["candidates"].values()):
        for part in ("codec", "inner", "algorithm", "topology", "schedule"):
            if part in node:
                yield node[part]["module"]


def _schedule(config: Mapping[str, Any], task: Task) -> None:
    """Compute the hyper-parameters of the first and the last step, which checks the schedule."""
    rate = task.rate if isinstance(task, Sparse) else 1.0
    hyper = schedule.Scheduled(config["max_steps"], config["schedule"], config["optimizer"], rate)
    for step in (0, -1):
        hyper[step]


def _plan(config: Mapping[str, Any], task: Task) -> None:
    """Make the optimizer's plan, if it has a `plan.py` that ends in `make`; it checks the options that it takes.

    `make` takes declared settings as `settings`. A member that declares none takes its options by name.

    Raises:
        UserError: for an option that the optimizer does not declare, and for those that its plan rejects.
    """
    node = config["optimizer"]
    options = load.arguments(node)
    if declared := load.declared(node["module"]):
        options = {"settings": declared.given(options, "optimizer.")}
    if importlib.util.find_spec(f"{node['module']}.plan") is None:
        return
    make = importlib.import_module(f"{node['module']}.plan").make
    available = options | {
        "layers": task.layers(),
        "shapes": {name: spec.shape for name, spec in task.shapes().items() if spec.kind == "parameter"},
        "tables": engine.embeddings(task),
        "world": config["world"],
    }
    parameters = inspect.signature(make).parameters
    arguments = {name: value for name, value in available.items() if name in parameters}
    required = {name for name, parameter in parameters.items() if parameter.default is parameter.empty}
    if required <= arguments.keys():  # otherwise a backend's half has a default for it
        make(**arguments)


def _decisions(config: Mapping[str, Any]) -> None:
    """Check the recorded decisions that a policy repeats (`decisions=`)."""
    path = config["decisions"]
    if path is None:
        return
    if not config["comm"]["policy"]:
        raise UserError(
            f"decisions={path}: comm={config['comm']['name']} has no policy to repeat the decisions; remove "
            "decisions=, or type comm= with the policy that made them"
        )
    adaptation.recorded(path)
