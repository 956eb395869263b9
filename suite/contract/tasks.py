"""Tasks: data, metric, targets, and the shapes and layers of the model."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from suite.contract.errors import UserError

LAYER_KINDS = ("linear", "conv2d", "embedding", "batchnorm")


@dataclass(frozen=True)
class Spec:
    """One parameter or buffer of a model, described before any is allocated.

    `placement="rows"` marks a table whose rows are on different devices and whose gradient is (ids, rows). Its model
    offers `lookups(batch) -> {parameter: ids (n, …)}`, and the batch contains these rows as `<parameter>.rows`
    (n, …, d). `table` marks an embedding that no layer describes, because it is also the output layer's matrix.
    """

    shape: tuple[int, ...]
    initializer: str
    kind: str = "parameter"  # "buffer", or "pattern": whole numbers, changed between steps; see `Sparse`
    placement: str = "replicated"  # or "rows"
    table: bool = False


@dataclass(frozen=True)
class Layer:
    """Properties of a layer that a curvature method uses, and the contents of its tap.

    `parameters` are names in `shapes()`, weight first. With N samples, a tap is the pair (x, dy) of

    - `linear`: x (N, …, in), dy (N, …, out)
    - `conv2d`: x and dy in the backend's native layout, NCHW in torch and NHWC in jax
    - `batchnorm`: x is the *normalised* input, before scale and shift; layouts as for conv2d, or (N, C)
    - `embedding`: x (N, …) integer rows, dy (N, …, width)

    where dy is the gradient of the *summed* loss, so that it does not depend on the batch size. With
    `precision=bfloat16`, x and dy may be in bfloat16; in torch, x is what the layer received, before it rounds it.

    The weight of a linear layer has the shape (out, in), or (in, out) if `transposed`.

    Raises:
        UserError: of no such kind.
    """

    kind: str
    parameters: tuple[str, ...]
    kernel: int = 1
    stride: int = 1
    padding: int = 0
    transposed: bool = False

    def __post_init__(self) -> None:
        if self.kind not in LAYER_KINDS:
            raise UserError(f"Layer: {self.kind!r} is no kind; choose one of {', '.join(LAYER_KINDS)}")


@dataclass(frozen=True)
class Target:
    """One of a task's targets: `metric` at least (or at most) `value` on the validation split."""

    metric: str
    value: float
    higher_is_better: bool = True

    def met(self, metrics: Mapping[str, float | None]) -> bool:
        """Return whether validation metrics reach the target. An undefined metric (None) does not."""
        measured = metrics[self.metric]
        if measured is None:
            return False
        return measured >= self.value if self.higher_is_better else measured <= self.value

    def __str__(self) -> str:
        return f"{self.metric}{'>=' if self.higher_is_better else '<='}{self.value:g}"


def append_sizes(identity: str, samples: Mapping[str, int]) -> str:
    """Return the version of generated data with the sizes of its splits, appended unless it contains all of them."""
    numbers = set(map(int, re.findall(r"\d+", identity)))
    return identity if numbers.issuperset(samples.values()) else f"{identity}/{'-'.join(map(str, samples.values()))}"


DAMAGED = "damaged, left out by task.on_error=skip"  # the reason in `Data.dropped` for what `Data.skipped` names


@dataclass(frozen=True)
class Data:
    """Source of a task's samples. A generated source has a version, a real one a checksum."""

    kind: str  # "real" or "generated"
    name: str
    identity: str  # sha256 of the real data, or the generator's version and options
    samples: Mapping[str, int]  # by split
    note: str = ""  # one sentence on the conclusions that the data allows
    unit: str = "samples"  # what a sample is, in the plural
    skipped: tuple[str, ...] = ()  # damaged files, lines or shots left out under task.on_error=skip
    dropped: Mapping[str, int] = field(default_factory=dict)  # samples that were left out, by reason
    # if text is split before it becomes samples: the unit (in the plural) that `dropped` counts, and their number
    dropped_unit: str = ""
    dropped_of: int = 0
    # if the identity does not cover contents: a hash that changes with any file on this machine, see
    # `suite.tasks._data.stamp_files`. A run is resumed or reused only if it is the same; results do not contain it.
    stamp: str = ""

    def __str__(self) -> str:
        short = self.identity[:12] if self.kind == "real" else self.identity  # a checksum may be cut, a version not
        return f"{self.kind}:{self.name}@{short}"

    @property
    def dropped_share(self) -> float:
        """Dropped samples as a share of all samples."""
        dropped = sum(self.dropped.values())
        return dropped / self._whole if dropped else 0.0

    @property
    def _whole(self) -> int:
        return self.dropped_of or sum(self.dropped.values()) + sum(self.samples.values())

    def losses(self) -> str:
        """Return a description of what was dropped and skipped, with reasons; "" if nothing was."""
        dropped, words = sum(self.dropped.values()), []
        if dropped:
            reasons = ", ".join(f"{reason} {count:,}" for reason, count in self.dropped.items() if count)
            unit = self.dropped_unit or self.unit
            words.append(f"{dropped:,} of {self._whole:,} {unit} dropped, {self.dropped_share:.1%} ({reasons})")
        if self.skipped:
            count = f"{len(self.skipped):,} damaged files or lines left out, the first"
            words.append(f"{'the first damaged' if DAMAGED in self.dropped else count}: {self.skipped[0]}")
        return "; ".join(words)


class Task(Protocol):
    """Data, metric and targets of one task; NumPy only. `tasks/<name>/__init__.py` offers `make(**config)`."""

    name: str
    version: str
    batch_size: int  # global, over all devices and micro-batches
    eval_batch_size: int  # global, in a validation pass
    group: int  # consecutive samples that must lie on one device, 1 where any split will do
    targets: tuple[Target, ...]  # easiest first; the run stops at the last
    data: Data

    def shapes(self) -> dict[str, Spec]:
        """Return every parameter and buffer, in the model's order."""
        ...

    def layers(self) -> dict[str, Layer]:
        """Return the layers that curvature methods support, by module name."""
        ...

    def init(self, seed: int, name: str, rows: slice | None = None) -> Any:
        """Return the initial value of one entry of `shapes()`, or some of its rows; float32, a pure function."""
        ...

    def batch(self, split: str, seed: int, index: int, rank: int = 0, world: int = 1) -> dict[str, Any]:
        """Return a rank's share of batch `index`: a pure function of its arguments.

        It always contains `weight` (n,) float32, 0 for padding, and `index` (n,) int64, the sample's number in the run.
        """
        ...

    def batches(self, split: str) -> int:
        """Return the number of batches in an evaluation split; the last one is padded with samples of weight 0."""
        ...

    def carry(self, samples: int) -> dict[str, Any]:
        """Return the initial state to keep between batches, for `samples` samples (leading axis); {} if none."""
        ...

    def score(self, parts: Iterable[dict[str, Any]]) -> dict[str, float | None]:
        """Return the metrics of a whole split from the model's outputs in evaluation mode, one part per batch.

        A metric is None if the split does not define it, such as an AUC of one class, or if an output that it needs is
        not finite in a sample of positive `weight`. A model that excludes a class writes a large negative number, not
        an infinite one.
        """
        ...


def divide_total(total: float, count: float, factor: float = 1.0) -> float | None:
    """Return `factor * total / count`; None if `count` is 0, or one of them is not finite."""
    return factor * total / count if count and math.isfinite(total + count) else None


@runtime_checkable
class Explains(Protocol):
    """A task that states why its metrics can be undefined."""

    undefined: Mapping[str, str]  # by metric, the reason


@runtime_checkable
class CountsRecurring(Protocol):
    """A task's module that can compare its splits."""

    def count_recurring(self, data_dir: str, **options: Any) -> int | None:
        """Return how many validation samples of a directory equal a training sample; None if there are too many.

        Args:
            data_dir: the directory.
            options: the task's, and those of its source.
        """
        ...


@runtime_checkable
class KeepsResults(Protocol):
    """A task's module that can tell which results of its earlier versions are still valid."""

    def keeps_result(self, version: str, options: Mapping[str, Any]) -> bool:
        """Return whether a run of an earlier version gives the same numbers today.

        Args:
            version: of the run.
            options: the task's settings in the run.
        """
        ...


@runtime_checkable
class CountsEpochs(Protocol):
    """A task whose number of training samples is unknown until its data exists."""

    @property
    def epoch_steps(self) -> float | None:
        """Steps of one pass over the training data; None if the data is absent."""
        ...


@runtime_checkable
class Generates(Protocol):
    """A task whose metric is computed from sequences that the model generates token by token.

    The search is NumPy, for both backends. Each backend's model offers two functions on its arrays, which
    `generate` receives as `start` and `advance`: torch `encode(batch)` and `decode_step(state, rows, token, position)`,
    jax the same after `params`.
    """

    def generate(
        self,
        batch: Mapping[str, Any],
        start: Callable[[Mapping[str, Any]], Any],
        advance: Callable[[Any, Any, Any, int], tuple[Any, Any]],
    ) -> dict[str, Any]:
        """Generate sequences for one evaluation batch.

        Args:
            batch: as `Task.batch` returned it.
            start: converts the batch to the model's state, on the device; its arrays have R rows.
            advance: (state, rows (R',) integers, token (R',) integers, position) to (log-probabilities (R', words),
                state). It selects the state's rows; a row may recur or be absent, as beams branch and end. Each row
                then reads its token at `position`. R' is the same in every call.

        Returns:
            Arrays to add to the model's outputs; their shapes are the same for every batch.
        """
        ...


class Baseline(Protocol):
    """A module that fits a model without training steps; `conf/baseline/<name>.yaml` names it and its task."""

    SUMMARY: str
    CITATION: str

    def fit(self, task: Any, seed: int) -> Any:
        """Return a model fitted to the task's training split; repeatable."""
        ...

    def score(self, task: Any, model: Any) -> dict[str, float | None]:
        """Return the model's metrics on the task's validation split."""
        ...


@runtime_checkable
class SendsBytes(Protocol):
    """A task whose images an engine can receive as bytes, to normalise them on its device."""

    @property
    def moments(self) -> tuple[Any, Any] | None:
        """Mean and standard deviation, (channels, 1, 1) float32: `image` is (bytes - mean) / deviation.

        None if these images cannot be sent as bytes.
        """
        ...

    def byte_batch(self, split: str, seed: int, index: int, rank: int = 0, world: int = 1) -> dict[str, Any]:
        """Return `Task.batch` with an `image` (n, channels, …) of uint8."""
        ...


@runtime_checkable
class Sparse(Protocol):
    """A task with block-sparse matrices, whose nonzero blocks may move during training.

    A matrix `name` has the parameter `<name>.weight` (n, b, b) and the pattern `<name>.pattern` (n,): the place of each
    block, row · columns + column in the grid of blocks. If blocks move, `<name>.visited` (rows · columns,) is 1 at each
    place that a block has ever occupied.
    """

    rate: float  # factor of the schedule's learning rates
    form: str  # description of the sparse matrices, in a few words; "" if all are dense

    def matrices(self) -> Mapping[str, Layer]:
        """Return the sparse matrices; {} if all are dense."""
        ...

    def moves(self, step: int) -> bool:
        """Return whether blocks move after update `step` (from 0)."""
        ...

    @property
    def by_gradient(self) -> bool:
        """Return whether `move` needs the gradient of the whole matrices: one more pass over the step's batch."""
        ...

    def move(self, seed: int, step: int, name: str, weight: Any, pattern: Any, gradient: Any | None) -> tuple[Any, Any]:
        """Choose the new places of a matrix's blocks.

        Args:
            seed: the run's seed.
            step: the update just made.
            name: one of `matrices()`.
            weight: (n, b, b).
            pattern: (n,).
            gradient: of the whole matrix (outputs, inputs), up to a factor; None unless `by_gradient`.

        Returns:
            The new pattern (n,), and (n,) booleans, true for the blocks that moved. The engine sets their weights to
            zero and calls the optimizer's `reset`.
        """
        ...


@runtime_checkable
class Counts(Protocol):
    """A task that states the operations of its network."""

    def flops(self) -> float:
        """Return the floating-point operations of one sample, forward and backward, counted as in its papers."""
        ...


@runtime_checkable
class Keeps(Protocol):
    """A task that can estimate the memory of its activations."""

    def count_kept_bytes(self, value: int) -> float:
        """Return about how many bytes the forward pass of one sample stores for the backward pass in torch.

        Tests compare it with what torch stores, parameters and their copies apart.

        Args:
            value: bytes of a number in the model's precision; 2 in bfloat16, in which some numbers still have 4.
        """
        ...
