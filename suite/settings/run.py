"""Settings of a run that belong to no member: the top level of `conf/config.yaml`, and what all tasks share."""

from typing import Literal

from pydantic import PositiveInt

from suite.declared import Declared, setting


class RunSettings(Declared):
    """The top level of `conf/config.yaml`."""

    seed: int = setting(0, "seed of weights, batches and every random number", at_least=0)
    world: int = setting(1, "devices: processes in torch, devices of one process in jax", at_least=1)
    accumulate: int = setting(1, "micro-batches per step", at_least=1)
    repeat: int = setting(1, "timing replicates of the same run", at_least=1)
    device: Literal["auto", "cpu", "cuda"] = setting("auto", "where it trains")
    precision: Literal["float32", "float64", "tf32", "bfloat16"] = setting("float32", "arithmetic of the model")
    deterministic: bool = setting(False, "on a GPU: use only bitwise reproducible kernels")
    compile: bool = setting(False, "torch.compile")
    threads: PositiveInt | Literal["auto"] = setting(
        "auto", "threads of each process; auto takes OMP_NUM_THREADS, else divides the cores"
    )
    max_steps: int = setting(200, "updates", at_least=1)
    eval_every: int = setting(10, "updates between evaluations", at_least=1)
    log_every: int = setting(1, "updates between log entries", at_least=1)
    checkpoint_every: int = setting(0, "updates between checkpoints; 0: only when interrupted", at_least=0)
    prefetch: int = setting(0, "batches that a thread prepares in advance", at_least=0)
    clip_norm: float = setting(0.0, "largest norm of the whole gradient; 0: no clipping", at_least=0)
    stop_at_target: bool = setting(True, "end the run at the last target of the ladder")
    target_evaluations: int = setting(1, "evaluations in a row that must meet every target", at_least=1)
    save: Literal["final", "best", "none"] = setting("final", "which weights to keep")
    require: Literal["target"] | None = setting(None, "target: exit code 3 if the last target is missed")
    force: bool = setting(False, "run again even if this result exists")
    resume: Literal["same", "anyway"] = setting("same", "when an interrupted run continues")


class TaskSettings(Declared):
    """Settings that every task has."""

    batch_size: int = setting(1, "samples of an update, over all devices and micro-batches", at_least=1)
    eval_batch_size: int = setting(1, "samples of an evaluation batch, over all devices", at_least=1)
    bn_group: int = setting(1, "consecutive samples that share batch normalisation's statistics", at_least=1)


class PartitionSettings(Declared):
    """Settings of a pipeline: `partition=auto`."""

    stages: int | None = setting(None, "number of stages; null: the fastest", at_least=1)
    micro_batches: int = setting(4, "micro-batches of a step, over all pipelines", at_least=1)
    schedule: Literal["1f1b", "gpipe"] = setting("1f1b", "order of forward and backward passes")
    activations: str | dict[str, object] | None = setting(None, "preset of comm whose codec encodes what crosses a cut")
    memory_gib: float = setting(16.0, "memory of one device in GiB", at_least=0.001)
    tflops: float | None = setting(None, "10¹² operations a second of one device; null: timed here", at_least=1e-6)
    bandwidth_gb: float | None = setting(None, "10⁹ bytes a second of its memory", at_least=1e-6)
    overhead_us: float = setting(0.0, "microseconds to start one operation", at_least=0)
    rannc_compat: bool = setting(False, "for `suite plan`: choose the stages by RaNNC's original rules")


class CommSettings(Declared):
    """Settings that every communication mode has."""

    bucket_mib: float = setting(0, "largest bucket of gradients in MiB; 0: one bucket", at_least=0)
    piece_kib: float = setting(0, "largest piece that is encoded at once in KiB; 0: no pieces", at_least=0)
