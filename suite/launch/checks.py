"""Checks a run's configuration once, before a directory is made and a rank is started.

No framework is imported. Errors that only a rank can detect (of its devices, an optimizer's arguments, an external
optimizer's class) are reported by the ranks to the launcher: see `suite.launch.local`.
"""

import importlib
import importlib.util
import inspect
from collections.abc import Iterator

from suite import engine, load
from suite.comm import setup
from suite.comm.settings import CommSettings
from suite.contract import Sparse, Task, UserError
from suite.projection import memory
from suite.settings import rates
from suite.settings.run import AnyRun, BaselineRun, Run
from suite.training import adaptation, weights


def check_run(run: AnyRun, task: Task) -> None:
    """Check that the parts of a run fit together.

    Args:
        run: the run.
        task: made from it.

    Raises:
        UserError: for the first error found.
    """
    if isinstance(run, BaselineRun):
        return
    for module in _modules(run):
        load.check_backend(module, run.backend)
    setup.make_modes(run.comm, task, run.world, None)
    _schedule(run, task)
    _plan(run, task)
    weights.Keeper(run.save, task.targets[-1] if task.targets else None)
    _decisions(run)


def check_memory(run: AnyRun, task: Task) -> None:
    """Check that a run without stages fits into the memory of this machine's devices.

    Raises:
        UserError: if its parameters and activations alone do not.
    """
    if isinstance(run, Run) and not run.partition and (excess := memory.describe_excess(run, task, sure=True)):
        raise UserError(excess)


def check_processes(run: Run) -> None:
    """Check the number of processes that `launch=local` starts.

    Raises:
        UserError: if the devices cannot be divided equally among the processes.
    """
    setting, world = run.launch.processes, run.world
    if setting == "auto":
        return
    count = parse_whole("launch.processes", setting)
    if count < 1 or world % count or (run.backend == "torch" and count != world):
        rule = f"world={world} " + (
            "needs one process per device" if run.backend == "torch" else "is not divisible by it"
        )
        raise UserError(f"launch.processes={setting}: {rule}; set launch.processes=auto")


def parse_whole(key: str, value: int | str | None) -> int:
    """Convert a setting, a number or text, to a whole number.

    Raises:
        UserError: if it is not a whole number.
    """
    try:
        return int(str(value))
    except ValueError as error:
        raise UserError(f"{key}={value}: must be a whole number") from error


def _modules(run: Run) -> Iterator[str]:
    """Yield the modules that must support the run's backend: the task, the optimizer and the parts of the channels."""
    yield run.task.module
    yield run.optimizer.module
    comm = run.comm
    channels = (comm, *comm.candidates.values(), comm.factors, *comm.kinds.values())
    for channel in channels:
        parts = [channel.codec, channel.inner, channel.algorithm, channel.topology]
        parts += [channel.schedule] if isinstance(channel, CommSettings) else []
        yield from (part.module for part in parts if part)


def _schedule(run: Run, task: Task) -> None:
    """Compute the hyper-parameters of the first and the last step, which checks the schedule."""
    rate = task.rate if isinstance(task, Sparse) else 1.0
    hyper = rates.Scheduled(run.max_steps, run.schedule, run.optimizer, rate)
    for step in (0, -1):
        hyper[step]


def _plan(run: Run, task: Task) -> None:
    """Make the optimizer's plan, if it has a `plan.py` that ends in `make`; it checks the options that it takes.

    `make` takes declared settings as `settings`. A member that declares none takes its options by name.

    Raises:
        UserError: for an option that the optimizer does not declare, and for those that its plan rejects.
    """
    module, options = run.optimizer.module, run.optimizer.options()
    if declared := load.load_settings(module):
        options = {"settings": declared.given(options, "optimizer.")}
    if importlib.util.find_spec(f"{module}.plan") is None:
        return
    make = importlib.import_module(f"{module}.plan").make
    available = options | {
        "layers": task.layers(),
        "shapes": {name: spec.shape for name, spec in task.shapes().items() if spec.kind == "parameter"},
        "tables": engine.list_embeddings(task),
        "world": run.world,
    }
    parameters = inspect.signature(make).parameters
    arguments = {name: value for name, value in available.items() if name in parameters}
    required = {name for name, parameter in parameters.items() if parameter.default is parameter.empty}
    if required <= arguments.keys():  # otherwise a backend's half has a default for it
        make(**arguments)


def _decisions(run: Run) -> None:
    """Check the recorded decisions that a policy repeats (`decisions=`)."""
    path = run.decisions
    if path is None:
        return
    if not run.comm.policy:
        raise UserError(
            f"decisions={path}: comm={run.comm.name} has no policy to repeat the decisions; remove "
            "decisions=, or set comm= with the policy that made them"
        )
    modes = [decision.mode for decision in adaptation.read_decisions(path)]
    named = {str(name) for mode in modes for name in (mode.values() if load.is_node(mode) else [mode])}
    if unknown := sorted(named - run.comm.candidates.keys()):
        raise UserError(f"decisions={path}: comm={run.comm.name} has no candidate {unknown[0]}; set comm= as there")
