"""Engines that train a model as a pipeline of stages (`partition=auto`), and what such a run cannot use."""

from collections.abc import Iterable, Iterator, Mapping

from suite import engine, load
from suite.comm.partition.device import ONE_HOST, Device
from suite.comm.partition.placement import Grid
from suite.comm.projection.network import Network, make_network
from suite.contract import Sparse, Task, UserError
from suite.settings.run import PartitionSettings, Run

# What an optimizer may need, because each stage has it for its own parameters.
OFFERED = ("rows", "reset", "layers", "shapes")
STAGES = "stages of the model"  # kind of array that differs between ranks


def check_pipeline(run: Run, task: Task) -> None:
    """Check that a run can be partitioned.

    Args:
        run: the run.
        task: made from it.

    Raises:
        UserError: for the first setting that a pipeline cannot use.
    """
    name = partition_of(run).name
    for fault in _faults(run, task):
        raise UserError(f"partition={name}: {fault}")


def _faults(run: Run, task: Task) -> Iterator[str]:
    node, optimizer = partition_of(run), run.optimizer
    if run.world < 2:
        yield "world=1 has no device for a second stage; set world=2"
    elif node.stages is not None and node.stages > run.world:
        yield f"stages={node.stages}: more than the devices of world={run.world}; set world={node.stages}"
    if run.accumulate != 1:
        yield f"accumulate={run.accumulate}: set partition.micro_batches={run.accumulate} instead"
    if run.precision == "bfloat16":
        yield "precision=bfloat16: stages compute in another precision; set precision=float32 or precision=tf32"
    if run.compile:
        yield "compile=true: stages are not compiled; leave out compile="
    if node.tflops is not None and node.bandwidth_gb is None:
        yield "with partition.tflops=, set partition.bandwidth_gb= as well"
    if node.tflops is None and (node.bandwidth_gb is not None or node.overhead_us):
        yield (
            "without partition.tflops=, operations are timed, and partition.bandwidth_gb= and partition.overhead_us= "
            "are not read; leave them out, or set partition.tflops= as well"
        )
    if task.batch_size % node.micro_batches:
        yield f"micro_batches={node.micro_batches} does not divide task.batch_size={task.batch_size}"
    elif task.batch_size % (unit := node.micro_batches * task.group):
        yield (
            f"task.batch_size={task.batch_size}: not divisible by micro_batches × samples per group = "
            f"{node.micro_batches} × {task.group} = {unit}; set task.batch_size="
            f"{max(1, task.batch_size // unit) * unit}, a smaller task.bn_group or fewer partition.micro_batches"
        )
    if carried := task.carry(1):
        mixed = ", or set task.mixup=0" if "mixup" in run.task.plain() else ""
        yield (
            f"task={task.name} carries {' and '.join(carried)} from each step to the next, which stages do not; leave "
            f"out partition= and set accumulate={node.micro_batches}{mixed}"
        )
    if isinstance(task, Sparse) and any(task.moves(step) for step in range(run.max_steps)):
        yield "blocks of sparse matrices cannot move in a pipeline; set task.sparsity=static, or dense"
    elif isinstance(task, Sparse) and task.matrices() and run.backend == "torch" and _multiplies_blocks(run):
        yield "torch cannot export products of blocks; set task.sparse.execution=dense, or backend=jax"
    if any(spec.placement == "rows" for spec in task.shapes().values()):
        yield "a table placed by rows cannot be cut; set task.placement=replicated"
    missing = _find_missing(optimizer.needs)
    if missing:
        needs = {name: load.read_constants(f"suite.optimizers.{name}") for name in load.find_members("optimizers")}
        members = [name for name, constants in needs.items() if not _find_missing(constants["NEEDS"])]
        yield (
            f"optimizer={optimizer.name} needs {', '.join(missing)}, which a stage does not offer; "
            f"set optimizer= to one of {', '.join(members)}"
        )


def _multiplies_blocks(run: Run) -> bool:
    return run.task.plain().get("sparse", {}).get("execution") in ("auto", "blocks")


def _find_missing(needs: Iterable[str]) -> list[str]:
    """Return what an optimizer needs and a stage does not offer."""
    return [need for need in needs if need not in OFFERED]


def partition_of(run: Run) -> PartitionSettings:
    """Return the settings of the pipeline of a run that has one."""
    assert run.partition
    return run.partition


def describe_device(node: PartitionSettings) -> Device | None:
    """Return the device with the speeds of `partition.tflops` and others; None if operations are timed instead.

    Args:
        node: the settings of the pipeline.
    """
    if node.tflops is None or node.bandwidth_gb is None:
        return None
    memory, speeds = node.memory_gib * 2**30, (1e12 * node.tflops, 1e9 * node.bandwidth_gb)
    return Device(memory, *speeds, 1e-6 * node.overhead_us)


def choose_network(run: Run) -> Network:
    """Return the network between the devices, for the plan: `network=`; if it is null, that of one host.

    Args:
        run: the run.
    """
    return make_network(run.network) if run.network else ONE_HOST


def compare_replicas(grid: Grid, digests: Mapping[int, int]) -> None:
    """Check that all replicas of each stage hold the same weights.

    Args:
        grid: of the ranks.
        digests: checksum of each rank's weights.

    Raises:
        RanksDiffer: naming the ranks that do not.
    """
    for stage in range(len(grid.replicas)):
        group = grid.group(stage)
        try:
            engine.compare_digests([digests[rank] for rank in group])
        except engine.RanksDiffer as error:
            ranks = ", ".join(map(str, group))
            raise engine.RanksDiffer(f"stage {stage}, on ranks {ranks} (counted from 0 here): {error}") from error
