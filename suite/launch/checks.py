"""Checks a run's configuration once, before a directory is made and a rank is started.

No framework is imported. Errors that only a rank can detect (of its devices, an optimizer's arguments, an external
optimizer's class) are reported by the ranks to the launcher: see `suite.launch.local`.
"""

import importlib
import importlib.util
import inspect
import itertools
import math

from suite import engine, load
from suite.comm import setup
from suite.comm.settings import CommSettings
from suite.contract import Sparse, Task, UserError
from suite.engine import pipeline
from suite.nodes import load_settings
from suite.projection import memory
from suite.settings import rates
from suite.settings.run import AnyRun, BaselineRun, Run
from suite.training import adaptation, weights

LARGEST = 2**31 - 1  # of int32
MOST_THREADS = 1024  # of a process; with some tens of thousands, OpenMP's runtime ends it without a message


def check_run(run: AnyRun, task: Task) -> None:
    """Check all that can be known before a directory is made and a rank starts; a plan checks the same.

    Raises:
        UserError: for the first check below that fails.
        MissingError: if a check needs a package that is not installed.
    """
    check_ladder(task)
    check_threads(run)
    if isinstance(run, BaselineRun):
        load.check_names(run.baseline.member, "fit", "score")
        return
    check_storage(run, task)
    if run.partition:
        pipeline.check_pipeline(run, task)
    check_batches(run, task)
    check_backends(run)
    check_channels(run, task)
    check_schedule(run, task)
    check_plan(run, task)
    check_counts(run, task)
    check_saving(run, task)
    check_decisions(run)


def check_ladder(task: Task) -> None:
    """Check that each target is at least as hard as the one before."""
    for easier, harder in itertools.pairwise(task.targets):
        if easier.metric == harder.metric and not easier.met({harder.metric: harder.value}):
            raise UserError(f"task.targets: {harder} is easier than {easier}, which it follows; put the easiest first")


def check_threads(run: AnyRun) -> None:
    """Check that the process can have as many threads as were typed."""
    if run.threads != "auto" and run.threads > MOST_THREADS:
        raise UserError(f"threads={run.threads}: must be at most {MOST_THREADS:,} in a process; set threads=auto")


def check_storage(run: Run, task: Task) -> None:
    """Check that the optimizer can update tables by rows, and blocks of sparse matrices that move, if there are any."""
    engine.list_tables(task, run.optimizer.needs, run.optimizer)
    engine.find_sparse(task, run.optimizer.needs, run.optimizer)


def check_batches(run: Run, task: Task) -> None:
    """Check that devices and micro-batches divide the batches.

    Raises:
        UserError: with all that must be set: what keeps the recipe's batch, if that is possible; else also the steps
            that keep its number of samples.
    """
    causes: list[str] = []
    remedies: list[str] = []
    parts, unit = run.world * run.accumulate, run.world * run.accumulate * task.group
    if not run.partition and task.batch_size % unit:
        causes.append(
            f"task.batch_size={task.batch_size}: not divisible by world × accumulate × samples per group = "
            f"{run.world} × {run.accumulate} × {task.group} = {unit}"
        )
        size = max(1, task.batch_size // unit) * unit
        larger = f"task.batch_size={size} max_steps={math.ceil(run.max_steps * task.batch_size / size)}"
        keeps = "bn_group" in run.task.options() and not task.batch_size % parts
        group = math.gcd(task.batch_size // parts, task.group)
        remedies.append(f"task.bn_group={group}" if keeps else larger)
    if task.eval_batch_size % run.world:
        causes.append(f"task.eval_batch_size={task.eval_batch_size}: not divisible by world={run.world}")
        remedies.append(f"task.eval_batch_size={-(-task.eval_batch_size // run.world) * run.world}")
    if causes:
        raise UserError(f"{'; '.join(causes)}; set {' '.join(remedies)}")


def check_backends(run: Run) -> None:
    """Check that the task, the optimizer and the parts of the channels support the run's backend.

    Raises:
        UserError: one does not, or `compile` is set, which only torch reads.
    """
    if run.compile and run.backend != "torch":
        raise UserError(f"compile=true: backend={run.backend} compiles each step in any case; leave out compile=")
    comm, modules = run.comm, [run.task.module, run.optimizer.module]
    for channel in (comm, *comm.candidates.values(), comm.factors, *comm.kinds.values()):
        parts = [channel.codec, channel.inner, channel.algorithm, channel.topology]
        parts += [channel.schedule] if isinstance(channel, CommSettings) else []
        modules += [part.module for part in parts if part]
    for module in modules:
        load.check_backend(module, run.backend)


def check_channels(run: Run, task: Task) -> None:
    """Make the channels, whose parts check each other."""
    setup.make_modes(run.comm, task, run.world, None)


def check_schedule(run: Run, task: Task) -> None:
    """Compute the hyper-parameters of the first and the last step, which checks the schedule; count evaluations."""
    rate = task.rate if isinstance(task, Sparse) else 1.0
    hyper = rates.Scheduled(run.max_steps, run.schedule, run.optimizer, rate)
    for step in (0, -1):
        hyper[step]
    evaluations = -(-run.max_steps // run.eval_every)
    if run.stop_at_target and run.target_evaluations > evaluations:
        raise UserError(
            f"target_evaluations={run.target_evaluations}: a run of max_steps={run.max_steps} has {evaluations} "
            "evaluations; set fewer, or a smaller eval_every="
        )


def check_plan(run: Run, task: Task) -> None:
    """Make the optimizer's plan, if it has a `plan.py` that ends in `make`; it checks the options that it takes.

    `make` takes declared settings as `settings`. A member that declares none takes its options by name.

    Raises:
        UserError: for an option that the optimizer does not declare, and for those that its plan rejects.
    """
    module, options = run.optimizer.module, run.optimizer.options()
    if declared := load_settings(module):
        options = {"settings": declared.given(options, "optimizer.")}
    if importlib.util.find_spec(f"{module}.plan") is None:
        return
    make = importlib.import_module(f"{module}.plan").make
    available = options | {
        "layers": task.layers(),
        "shapes": {name: spec.shape for name, spec in task.shapes().items() if spec.kind == "parameter"},
        "tables": engine.list_embeddings(task),
        "world": run.world,
        "backend": run.backend,
    }
    parameters = inspect.signature(make).parameters
    arguments = {name: value for name, value in available.items() if name in parameters}
    required = {name for name, parameter in parameters.items() if parameter.default is parameter.empty}
    if required <= arguments.keys():  # otherwise a backend's half has a default for it
        make(**arguments)


def check_counts(run: Run, task: Task) -> None:
    """Check that numbers of updates and of rows fit into jax's integers, which wrap around without an error."""
    if run.max_steps > LARGEST:
        raise UserError(f"max_steps={run.max_steps}: jax counts updates in 32 bits; set at most {LARGEST}")
    shapes, embeddings = task.shapes(), engine.list_embeddings(task)
    tables = [spec for name, spec in shapes.items() if name in embeddings or spec.placement == "rows"]
    longest = max((spec.shape[0] for spec in tables), default=0)
    if run.backend == "jax" and longest > LARGEST:
        rows = f"has a table of {longest:,} rows, and jax numbers rows in 32 bits"
        raise UserError(f"task={run.task.name}: {rows}; set backend=torch, or make the table smaller")


def check_saving(run: Run, task: Task) -> None:
    """Check that `save=best` has a target to judge by."""
    weights.Keeper(run.save, task.targets[-1] if task.targets else None)


def check_decisions(run: Run) -> None:
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
