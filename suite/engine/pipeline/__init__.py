"""Engines that train a model as a pipeline of stages (`partition=auto`), and what such a run cannot use."""

from collections.abc import Iterator, Mapping
from typing import Any

from suite import load
from suite.contract import Sparse, Task, UserError

# What an optimizer may need, because each stage has it for its own parameters.
OFFERED = ("rows", "reset", "layers", "shapes")
SYNC = "suite.comm.schedules.sync"


def check(config: Mapping[str, Any], task: Task) -> None:
    """Check that a run can be partitioned.

    Args:
        config: of the run, with `partition`.
        task: made from it.

    Raises:
        UserError: for the first setting that a pipeline cannot use.
    """
    name = config["partition"]["name"]
    for fault in _faults(config, task):
        raise UserError(f"partition={name}: {fault}")


def _faults(config: Mapping[str, Any], task: Task) -> Iterator[str]:
    node, optimizer = config["partition"], config["optimizer"]
    if config["backend"] != "torch":
        yield "runs in jax cannot be partitioned yet; type backend=torch, or use suite.comm.partition.jax in a script"
    if config["world"] < 2:
        yield "world=1 has no device for a second stage; type world=2"
    if config["accumulate"] != 1:
        yield f"accumulate={config['accumulate']}: type partition.micro_batches={config['accumulate']} instead"
    if config["precision"] == "bfloat16" or config["compile"]:
        yield "only uncompiled models in float32, tf32 or float64 can be cut; leave out precision= and compile="
    yield from _mode_faults(config)
    if task.batch_size % node["micro_batches"]:
        yield f"micro_batches={node['micro_batches']} does not divide task.batch_size={task.batch_size}"
    kinds = {spec.kind for spec in task.shapes().values()}
    if "buffer" in kinds or task.carry(1):
        yield f"task={task.name} keeps running statistics or state between steps, which a pipeline does not average"
    if isinstance(task, Sparse) and task.matrices():
        yield "blocks of sparse matrices cannot move in a pipeline; type task.sparsity=dense"
    if any(spec.placement == "rows" for spec in task.shapes().values()):
        yield "a table placed by rows cannot be cut; type task.placement=replicated"
    missing = [need for need in load.common(optimizer["module"]).NEEDS if need not in OFFERED]
    if missing:
        yield (
            f"optimizer={optimizer['name']} needs {', '.join(missing)}, which a stage does not offer; type optimizer="
            "adamw, or adagrad, lamb, lars, muon, rmsprop, sgd, sm3"
        )


def _mode_faults(config: Mapping[str, Any]) -> Iterator[str]:
    """What a pipeline lacks for a communication mode: it averages once, after its last backward pass."""
    comm = config["comm"]
    mode = f"comm={comm['name']}"
    if comm["policy"]:
        example = next(iter(comm["candidates"]))
        yield f"{mode}: a policy cannot try modes in a pipeline; type one of its modes, for example comm={example}"
    if comm["schedule"]["module"] != SYNC:
        yield f"{mode}: a pipeline sends gradients after its last backward pass; type comm.schedule.module={SYNC}"
    if comm["name"].startswith("kfac_"):
        yield f"{mode}: is for the statistics of optimizer=kfac; type comm=float32, or float21, fp8, onebit"
