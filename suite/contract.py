"""The types that every member speaks: what a task, an optimizer and a run are to each other.

Standard library only, so that any room of the suite and any module outside it may import this file.
Arrays are `numpy.ndarray` on the host, `torch.Tensor` or `jax.Array` on a device; trees of them are flat
dictionaries with dotted names (`layer1.0.conv1.weight`) and torch's shapes in both backends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, runtime_checkable


class UserError(Exception):
    """Something the user can mend. The message says what is wrong, where, and what to type; exit code 2."""


# --------------------------------------------------------------------------------------------------- tasks
@dataclass(frozen=True)
class Spec:
    """One parameter or buffer of a model, known before anything is allocated.

    `placement="rows"` marks a table whose rows lie on different devices and whose gradient is (ids, rows). Its model
    offers `lookups(batch) -> {parameter: ids (n, …)}` and finds what they name in the batch, as `<parameter>.rows`
    (n, …, d). `table` marks an embedding that no layer describes, because it is the output's matrix too.
    """

    shape: tuple[int, ...]
    initializer: str
    kind: str = "parameter"  # "buffer", or "pattern": whole numbers, changed between steps; see `Sparse`
    placement: str = "replicated"  # or "rows"
    table: bool = False


@dataclass(frozen=True)
class Layer:
    """What a curvature method must know of one layer, and what its tap carries.

    `parameters` are names in `shapes()`, weight first. With N samples, a tap is the pair (x, dy) of

    - `linear`: x (N, …, in), dy (N, …, out)
    - `conv2d`: x and dy in the backend's native layout, NCHW in torch and NHWC in jax
    - `batchnorm`: x is the *normalised* input, before scale and shift; layouts as for conv2d, or (N, C)
    - `embedding`: x (N, …) integer rows, dy (N, …, width)

    where dy is the gradient of the *summed* loss, so that it does not depend on the batch size.
    """

    kind: str
    parameters: tuple[str, ...]
    kernel: int = 1
    stride: int = 1
    padding: int = 0


@dataclass(frozen=True)
class Target:
    """One rung of a task's ladder: `metric` at least (or at most) `value` on the validation split."""

    metric: str
    value: float
    higher_is_better: bool = True

    def met(self, metrics: Mapping[str, float]) -> bool:
        """Whether these validation metrics reach the target."""
        measured = metrics[self.metric]
        return measured >= self.value if self.higher_is_better else measured <= self.value

    def __str__(self) -> str:
        return f"{self.metric}{'>=' if self.higher_is_better else '<='}{self.value:g}"


@dataclass(frozen=True)
class Data:
    """Where a task's samples come from. A generated source has a version, a real one a checksum."""

    kind: str  # "real" or "generated"
    name: str
    identity: str  # sha256 of the real data, or the version of the generator
    samples: Mapping[str, int]  # by split
    note: str = ""  # what may be concluded from it, one sentence
    unit: str = "samples"  # what a sample is, in the plural
    skipped: tuple[str, ...] = ()  # files left out under task.on_error=skip

    def __str__(self) -> str:
        short = self.identity[:12] if self.kind == "real" else self.identity  # a checksum may be cut, a version not
        return f"{self.kind}:{self.name}@{short}"


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
        """Every parameter and buffer, in the model's order."""
        ...

    def layers(self) -> dict[str, Layer]:
        """The layers a curvature method can treat, by module name."""
        ...

    def init(self, seed: int, name: str, rows: slice | None = None) -> Any:
        """The initial value of one entry of `shapes()`, or some of its rows; float32, a pure function."""
        ...

    def batch(self, split: str, seed: int, index: int, rank: int = 0, world: int = 1) -> dict[str, Any]:
        """Rank's share of batch `index`: a pure function of its arguments.

        Always holds `weight` (n,) float32, 0 for padding, and `index` (n,) int64, the sample's number in the run.
        """
        ...

    def batches(self, split: str) -> int:
        """How many batches one pass over an evaluation split takes, the last one padded with weight 0."""
        ...

    def carry(self, samples: int) -> dict[str, Any]:
        """What lives from batch to batch, for `samples` samples (leading axis); {} where nothing does."""
        ...

    def score(self, parts: Iterable[dict[str, Any]]) -> dict[str, float]:
        """Metrics of a whole split, from what the model puts out in evaluation mode, batch after batch, in NumPy."""
        ...


@runtime_checkable
class Generates(Protocol):
    """A task whose metric is taken from sequences that the model writes one token at a time.

    The search is NumPy, once; each backend's model offers two functions of its own arrays, handed in as `start` and
    `advance`: torch `encode(batch)` and `decode_step(state, rows, token, position)`, jax the same after `params`.
    """

    def generate(
        self,
        batch: Mapping[str, Any],
        start: Callable[[Mapping[str, Any]], Any],
        advance: Callable[[Any, Any, Any, int], tuple[Any, Any]],
    ) -> dict[str, Any]:
        """What the model writes for one evaluation batch, arrays of one shape for every batch, joined to its outputs.

        Args:
            batch: as `Task.batch` made it.
            start: the batch to the model's state, which stays on the device; its arrays' leading axis is R rows.
            advance: (state, rows (R',) integers, token (R',) integers, position) to (log-probabilities (R', words),
                state): first the state's rows are taken (a beam that goes on twice, one that ends), then each reads
                its token at `position`. R' is the same in every call.
        """
        ...


class Baseline(Protocol):
    """A module that fits a model of one task whole, without steps; `conf/baseline/<name>.yaml` names the two."""

    SUMMARY: str
    CITATION: str

    def fit(self, task: Any, seed: int) -> Any:
        """A model, fitted to the task's training split; repeatable."""
        ...

    def score(self, task: Any, model: Any) -> dict[str, float]:
        """The task's metrics of the model on its validation split."""
        ...


@runtime_checkable
class Sparse(Protocol):
    """A task some of whose matrices are stored as their blocks that are not zero, perhaps on the move while it trains.

    A matrix `name` has the parameter `<name>.weight` (n, b, b) and the pattern `<name>.pattern` (n,): where each block
    stands, row · columns + column in the grid of blocks. Where blocks move, `<name>.visited` (rows · columns,) is 1
    wherever a block has ever stood.
    """

    rate: float  # what a schedule's learning rates are multiplied by
    form: str  # of the sparse matrices, in a few words; "" where all are dense

    def matrices(self) -> Mapping[str, Layer]:
        """The sparse matrices; {} where all are dense."""
        ...

    def moves(self, step: int) -> bool:
        """Whether blocks move after update `step` (from 0)."""
        ...

    @property
    def by_gradient(self) -> bool:
        """Whether `move` needs the gradient of the whole matrices: one more pass over the step's batch."""
        ...

    def move(self, seed: int, step: int, name: str, weight: Any, pattern: Any, gradient: Any | None) -> tuple[Any, Any]:
        """Where the blocks stand from now on.

        Args:
            seed: the run's seed.
            step: the update just made.
            name: one of `matrices()`.
            weight: (n, b, b).
            pattern: (n,).
            gradient: of the whole matrix (outputs, inputs), up to a factor; None unless `by_gradient`.

        Returns:
            The new pattern (n,), and which blocks moved (n,) booleans; the engine sets their weights to zero and calls
            the optimizer's `reset`.
        """
        ...


@runtime_checkable
class Counts(Protocol):
    """A task that knows what its network costs."""

    def flops(self) -> float:
        """Floating-point operations of one sample, forward and backward, as its papers count them."""
        ...


# ---------------------------------------------------------------------------------------------- optimizers
class Parcel(NamedTuple):
    """A stack of statistics that may travel as soon as a backward pass has made its rows.

    Attributes:
        rows: the statistics, by name; each is one layer's.
        owners: the rank that each belongs to.
        last: the parameter whose gradient comes next after the last of them.
    """

    rows: tuple[str, ...]
    owners: tuple[int, ...]
    last: str


class Plan:
    """When an optimizer does what; pure Python, shared by both backends. This one does nothing special.

    `phase(step)` is a sorted tuple of words, part of a compiled step's key. Two words mean something to the engine:
    `statistics` (observe the ordinary backward pass and absorb it) and `sampled` (the same from labels drawn from
    the model: one more pass). `programs(step)` names what runs before the update, and sees this step's statistics but
    not its gradient: in jax it runs before that, where there is nothing to observe. It is compiled apart from the step,
    all of a step's as one where these are the same in every step that has any (`together`), else each by itself. The
    statistics of the first `warm_start` batches are given to `prepare` before the first step.
    """

    warm_start: int = 0
    together: bool = True

    def parcels(self, step: int) -> dict[str, Parcel]:
        """Stacks of statistics that `absorb` sends to their owners in this step, by the name under which it does."""
        return {}

    def phase(self, step: int) -> tuple[str, ...]:
        """Words that are true of this step."""
        return ()

    def programs(self, step: int) -> tuple[str, ...]:
        """Names of the programs to run in this step, in order."""
        return ()


# What an optimizer may ask for by name in NEEDS (`optimizers/<name>/__init__.py`), beside its gradient.
# Asked at construction and given as keyword arguments; `tables` names the embeddings, `samples` is the size of the
# training split, `objective` (jax) is an `Objective`:
CONSTRUCTION = ("layers", "shapes", "tables", "world", "samples", "objective")
# Asked of each update and given as keyword arguments to torch's `step` or jax's `update`:
#   evaluate(labels="given" | "sampled", observe=…) -> (loss, gradients, statistics)   (jax: evaluate(params, …))
#       once more at the current weights: same randomness, buffers untouched, local shares that
#       reduce.mean turns into sums over samples divided by summed weights; `observe` makes the statistics, the
#       optimizer's own unless another is given
#   reduce   exact(values), mean(name, values); of a stack whose i-th row belongs to rank owners[i]:
#       to_owners(name, stack, owners), gather(name, slices, owners), mine(stack, owners); world, rank
#   phase    the plan's words for this step;   key (seed, step), for suite.stream
#   context  of this step, for the `Objective` (jax)
UPDATE = ("evaluate", "reduce", "phase", "key", "context")
# Promised: each element is updated by itself, so that a rank may be given its share of a table, with a sparse gradient
# (torch: a sparse tensor, jax: `Rows`; either may be made dense):
PROMISED = ("rows",)


class Objective(NamedTuple):
    """The loss of one rank's batch as a pure jax function, for whoever traces or differentiates it by himself.

    Attributes:
        value: (params, context, *, labels="given" | "sampled", tap=…) to (summed loss, (what it counts, new buffers,
            new carry)); `tap(name, x, y)` sees each layer's input and output, and its result takes the output's place.
        context: all that the loss depends on beside the parameters: `batch`, whole and not in micro-batches, `buffers`,
            `patterns`, `carry` and `key`. Here as shapes; a step's own is given to `update`.
    """

    value: Callable[..., Any]
    context: Mapping[str, Any]


class Rows(NamedTuple):
    """A jax gradient or update of some rows of a table: values (m, d) to be added at ids (m,), which may recur."""

    ids: Any
    values: Any


# Offered by the optimizer, and used by the engine where named:
#   observe(taps, weight) -> sums over samples, additive over micro-batches; torch calls it for each layer by itself
#   absorb(statistics, reduce=…) after the engine divided the sums by the samples' summed weight, not by what the loss
#                                counts (words, time steps)   (jax: returns the state)
#   prepare(statistics, reduce=…) begin with these, the mean over `plan.warm_start` batches at the initial weights, from
#                                sampled labels where phase(0) says so; billed   (jax: after it the state, -> state)
#   program(name, reduce=…)      one of plan.programs(step) (jax: program(name, state, reduce=…) -> state)
#   host(step)                   before the step, outside compiled code (jax: host(state, step) -> state); drain()
#   forward_params(key)          the weights to run forward with (torch: a context manager)
#   reset(moved)                 forget what was gathered for the blocks that `moved`: {parameter: (n,) booleans} names
#                                (jax: reset(state, moved), by the parameter's name, -> state)
#   facts()                      {name: number} counted so far, for the result   (jax: facts(state))
OFFERED = ("observe", "absorb", "prepare", "program", "host", "forward_params", "reset", "facts")


# -------------------------------------------------------------------------------------------------- events
@dataclass(frozen=True)
class Started:
    """The run begins, or goes on from `step` after a restore."""

    step: int
    resumed: bool = False
    facts: Mapping[str, Any] = field(default_factory=dict)  # parameters, compile_seconds, compile_cache, device


@dataclass(frozen=True)
class Step:
    """One update has been made and its loss is on the host. `step` counts updates, from 1."""

    step: int
    samples: int
    loss: float
    hyper: Mapping[str, float]
    train_seconds: float
    step_seconds: float


@dataclass(frozen=True)
class Evaluated:
    """The validation split has been scored after `step` updates; a baseline makes none, and both counts are None."""

    step: int | None
    samples: int | None
    train_seconds: float
    wall_seconds: float
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class Decided:
    """A policy has chosen how gradients travel after `step` updates, for so many updates or, with None, to the end.

    `mode` is a candidate's name or one for each kind of parameter; `why` holds what it rests on, `seconds` what the
    trials took of the training clock.
    """

    step: int
    mode: str | Mapping[str, str]
    steps: int | None
    why: Mapping[str, Any]
    seconds: float
    train_seconds: float
    replayed: bool = False

    def __str__(self) -> str:
        each = self.mode if isinstance(self.mode, str) else ", ".join(f"{k} {v}" for k, v in self.mode.items())
        return f"comm {each} from step {self.step:,}" + (f", for {self.steps:,}" if self.steps else "")


@dataclass(frozen=True)
class Checkpointed:
    """A snapshot of the whole run after `step` updates lies on disk."""

    step: int
    path: str


@dataclass(frozen=True)
class Finished:
    """The last event. `outcome["kind"]` is reached, exhausted, diverged, interrupted or failed."""

    step: int
    outcome: Mapping[str, Any]
    facts: Mapping[str, Any] = field(default_factory=dict)  # clock, memory, bytes


Event = Started | Step | Evaluated | Decided | Checkpointed | Finished
