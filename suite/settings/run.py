"""One run as a typed value. A field's path is the key that a user sets: `run.seed`, `run.task.batch_size`.

A run is plain data: frozen, equal to its copy, picklable, and the same after a round trip through JSON. `resolve`
(`suite/settings/configure.py`) makes it from overrides, `read_run` from a file.
"""

from collections.abc import Callable, Mapping
from typing import ClassVar, Literal

from pydantic import PositiveInt

from suite.comm.settings import CommSettings, NetworkSettings
from suite.contract import UserError
from suite.declared import MEASUREMENT, METHOD, NOTHING, PROBLEM, TIME, Declared, setting
from suite.load import Plain, is_node
from suite.nodes import BaselineSettings, OptimizerSettings, Options, Part, TaskSettings
from suite.settings.launch import ExternalLaunch, LocalLaunch, SlurmLaunch
from suite.settings.schedule import ScheduleSettings

LARGEST_SEED = 2**32 - 1  # the counter-based stream has words of 32 bits
# Modules that have moved since a committed result was made.
MOVED = {"suite.launch": "suite.launch.local", "suite.launch_joined": "suite.launch.external"}


class PartitionSettings(Declared):
    """Settings of a pipeline: `partition=auto`."""

    name: str = setting(..., "name, as reports show it")
    stages: PositiveInt | None = setting(None, "number of stages; null: the fastest")
    micro_batches: int = setting(4, "micro-batches of a step, over all pipelines", at_least=1)
    schedule: Literal["1f1b", "gpipe"] = setting("1f1b", "order of forward and backward passes")
    activations: Part | None = setting(None, "preset of comm whose codec encodes what crosses a cut")
    memory_gib: float = setting(16.0, "memory of one device in GiB; a plan uses at most 90 % of it", at_least=0.001)
    tflops: float | None = setting(None, "10¹² operations a second of one device; null: timed here", at_least=1e-6)
    bandwidth_gb: float | None = setting(None, "10⁹ bytes a second of its memory; with tflops", at_least=1e-6)
    overhead_us: float = setting(0.0, "microseconds to start one operation; with tflops", at_least=0)
    check: bool = setting(True, "compare the stages with the model before the first step", affects=NOTHING)
    rannc_compat: bool = setting(False, "for `suite plan`: choose the stages by RaNNC's original rules")


class TrackSettings(Declared):
    """Where a run is shown beside its directory."""

    name: Literal["mlflow", "none"] = setting(..., "mlflow, or none", affects=NOTHING)
    published: bool = setting(
        True, "also send published rows of the task, to an experiment of their own", affects=NOTHING
    )


class Tuning(Options):
    """Where the settings of a run come from."""

    source: str = setting("defaults", "recipe, paper, defaults, untuned or command line", role="provenance")
    trials: int = setting(0, "trials of `suite tune`", at_least=0, role="provenance")
    converged: bool | None = setting(
        None, "whether `suite tune` ended inside the values tried; null: unknown", role="provenance"
    )
    origin: str | None = setting(None, "source before the command line changed settings", role="provenance")
    renamed: ClassVar = {"from": "origin"}
    changed: tuple[str, ...] = setting((), "overrides that changed settings", role="provenance")
    epochs: float | None = setting(None, "epochs that the recipe trains", role="provenance")


class _Common(Declared):
    """Settings that a run and the fit of a baseline share."""

    task: TaskSettings = setting(..., "the task", affects=PROBLEM)
    scale: str = setting("laptop", "size of the task: laptop, gpu or paper", affects=PROBLEM)
    seed: int = setting(
        0,
        "seed of weights, batches and every random number",
        at_least=0,
        at_most=LARGEST_SEED,
        affects=("weights",),
        role="replicate",
    )
    threads: PositiveInt | Literal["auto"] = setting(
        "auto",
        "threads of each process; auto takes OMP_NUM_THREADS, else divides the cores, or a container's share of them",
        affects=TIME,
    )
    tuning: Tuning = setting(
        Tuning(source="defaults", trials=0), "where the settings come from", affects=NOTHING, role="provenance"
    )
    data_dir: str | None = setting(None, "directory of real data", affects=PROBLEM, role="place")
    run_dir: str | None = setting(None, "runs/<task>/<hash> by default", affects=NOTHING, role="place")
    repeat: int = setting(1, "timing replicates of the same run", at_least=1, affects=NOTHING, role="replicate")
    force: bool = setting(False, "run again even if this result exists", affects=NOTHING)
    require: Literal["target"] | None = setting(
        None, "target: exit code 3 if the last target is missed", affects=NOTHING
    )
    track: TrackSettings = setting(..., "where the run is shown", affects=NOTHING)

    @property
    def method(self) -> str:
        """Method as reports show it."""
        raise NotImplementedError

    def __reduce__(self) -> "tuple[Callable[[Mapping[str, Plain]], AnyRun], tuple[Mapping[str, Plain]]]":
        """Pickle as plain data: the classes of members' settings are made when they are needed."""
        return read_run, (self.plain(),)


class BaselineRun(_Common):
    """Fit of a baseline: no optimizer, backend, communication, devices or steps."""

    baseline: BaselineSettings = setting(..., "a model that is fitted in one go", affects=PROBLEM)

    @property
    def method(self) -> str:
        """Method as reports show it."""
        return f"{self.baseline.name} (baseline)"


class Run(_Common):
    """A training run."""

    optimizer: OptimizerSettings = setting(..., "the optimizer")
    backend: Literal["torch", "jax"] = setting(..., "framework")
    comm: CommSettings = setting(..., "communication mode")
    launch: LocalLaunch | ExternalLaunch | SlurmLaunch = setting(
        ...,
        "how processes are started",
        affects=NOTHING,
        before={"module": "suite.launch.local", "processes": "auto", "deadline": 600},
    )
    partition: PartitionSettings | None = setting(None, "cut the model into the stages of a pipeline", before=None)
    network: NetworkSettings | None = setting(None, "network that is projected, or chosen by")
    compute_seconds: float | None = setting(
        None, "with network=: forward and backward of one device's share", at_least=0, affects=NOTHING
    )
    inverse_seconds: float = setting(
        0.0, "with network=: seconds to invert every factor once, on one device", at_least=0, affects=NOTHING
    )
    world: int = setting(1, "devices: processes in torch, devices of one process in jax", at_least=1)
    accumulate: int = setting(1, "micro-batches per step", at_least=1)
    device: Literal["auto", "cpu", "cuda"] = setting("auto", "where it trains", affects=TIME)
    precision: Literal["float32", "float64", "tf32", "bfloat16"] = setting(
        "float32",
        "arithmetic of the model in training; only tf32 allows TF32; bfloat16 rounds products and activations, and "
        "keeps weights, loss, sums of many terms, statistics, optimizer and evaluation in float32",
    )
    deterministic: bool = setting(False, "on a GPU: use only bitwise reproducible kernels")
    compile: bool = setting(False, "torch.compile")
    max_steps: int = setting(200, "updates", at_least=1, affects=METHOD)
    eval_every: int = setting(10, "updates between evaluations", at_least=1, affects=MEASUREMENT)
    log_every: int = setting(1, "updates between log entries", at_least=1, affects=TIME)
    checkpoint_every: int = setting(
        0, "updates between checkpoints; 0: only when interrupted", at_least=0, affects=TIME
    )
    prefetch: int = setting(
        0, "batches that threads prepare in advance, for training and evaluation", at_least=0, affects=TIME
    )
    clip_norm: float = setting(0.0, "largest norm of the whole gradient; 0: no clipping", at_least=0)
    stop_at_target: bool = setting(True, "end the run at the last target of the ladder", affects=MEASUREMENT)
    target_evaluations: int = setting(
        1, "evaluations in a row that must meet every target", at_least=1, affects=MEASUREMENT
    )
    save: Literal["final", "best", "none"] = setting(
        "final", "weights to keep in weights.safetensors: final, or best by the last target's metric", affects=NOTHING
    )
    init_from: str | None = setting(
        None,
        "run directory or safetensors file to take the initial weights from",
        affects=("weights",),
        role="place",
    )
    decisions: str | None = setting(None, "a result.json; the policy of comm repeats its decisions")
    resume: Literal["same", "anyway"] = setting(
        "same", "when an interrupted run continues: same code, packages, data and machine, or anyway", affects=NOTHING
    )
    schedule: ScheduleSettings = setting(ScheduleSettings(), "schedule of the learning rate")

    @property
    def method(self) -> str:
        """Method as reports show it."""
        return self.optimizer.name


AnyRun = Run | BaselineRun


def read_run(values: Mapping[str, Plain], *, old: bool = False) -> AnyRun:
    """Make a run from nested mappings, such as a result's `spec.config`.

    Args:
        values: as `plain` returns them.
        old: whether they may be of an earlier version, which had fewer settings and other module paths.

    Raises:
        UserError: for an unknown key, a missing one, or a value of another type or out of its range.
    """
    if not isinstance(values.get("task"), Mapping):
        raise UserError(f"task={values.get('task')}: must be a group of settings, with the task's module")
    kind = BaselineRun if values.get("baseline") else Run
    return kind.given(_moved(values) if old else values, old=old)


def _moved(values: Mapping[str, Plain]) -> dict[str, Plain]:
    """A result's values with the present names of modules that have moved."""
    inner = {name: _moved(value) if is_node(value) else value for name, value in values.items()}
    return {name: MOVED.get(str(value), value) if name == "module" else value for name, value in inner.items()}
