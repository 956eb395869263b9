"""First-order methods in one text: what a member states, and the operations in which its update is written.

A member's `__init__.py` has its settings, its update and a `Rule` that names both. `torch.py` here makes a
`torch.optim.Optimizer` of a rule, `jax.py` an optax transformation.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, Self, TypeAlias, TypeVar

from suite.contract import Rows
from suite.declared import Declared


class Array(Protocol):
    """Arithmetic that `torch.Tensor` and `jax.Array` share."""

    @property
    def ndim(self) -> int: ...
    @property
    def shape(self) -> Sequence[int]: ...
    def __getitem__(self, index: Any, /) -> Self: ...
    def __add__(self, other: Any, /) -> Self: ...
    def __radd__(self, other: Any, /) -> Self: ...
    def __mul__(self, other: Any, /) -> Self: ...
    def __rmul__(self, other: Any, /) -> Self: ...
    def __truediv__(self, other: Any, /) -> Self: ...
    def __pow__(self, other: Any, /) -> Self: ...
    def __gt__(self, other: Any, /) -> Self: ...


Value = TypeVar("Value", bound=Array)
Chosen = TypeVar("Chosen", bound=Declared)
State: TypeAlias = Mapping[str, list[Any]]  # by kind, one for each parameter; [] for a kind that the settings leave out
StateOfTable: TypeAlias = Mapping[str, Any]  # by kind
Update: TypeAlias = Callable[["Ops[Any]", list[Any], list[Any], State, Chosen, Any], tuple[list[Any], State]]
UpdateRows: TypeAlias = Callable[["Ops[Any]", Any, Rows, StateOfTable, Chosen], tuple[Any, StateOfTable]]


@dataclass(frozen=True)
class Rule(Generic[Chosen]):
    """A first-order method.

    Attributes:
        name: the member's name.
        settings: the class of its settings.
        update: one update of parameters that have been updated equally often: (ops, weights, gradients, state, settings
            that hold now, steps) to what a move of `ops` made of the weights, and the next state. Arrays have at least
            float32, and gradients are dense. The steps include this one; they are NaN unless the rule is `counted`.
        start: the settings to what each kind of state starts at; None: the settings leave this kind out.
        update_rows: one update of some rows of a table, while momentum and decay are 0, which would reach every row:
            (ops, table, rows, state of the table, settings) to what `move_rows` made of the table, and the state that
            changes. None: a gradient by rows is filled up with zeros.
        velocity: whether there is a further kind of state, `velocity`, while the momentum is not 0.
        counted: whether the update reads the number of steps.
        grouped: settings that a group of parameters may have for itself in torch, beside those that may be scheduled.
        shapes: returns, for a parameter's shape, the shapes of the arrays in each kind of state; the update then needs
            whole parameters. None: each kind is one array of the parameter's shape.
    """

    name: str
    settings: type[Chosen]
    update: Update[Chosen]
    start: Callable[[Chosen], Mapping[str, float | None]]
    update_rows: UpdateRows[Chosen] | None = None
    velocity: bool = False
    counted: bool = False
    grouped: tuple[str, ...] = ()
    shapes: Callable[[Sequence[int]], list[list[int]]] | None = None


def find_matrices(weights: Sequence[Array]) -> list[int]:
    """Return the places of matrices and filters in a list."""
    return [place for place, weight in enumerate(weights) if weight.ndim > 1]


class Ops(Protocol[Value]):
    """Operations on lists with an array for each parameter: in place in torch, of all arrays in one call.

    An operation may overwrite its first argument, and what it returns takes its place: pass state, or what an operation
    has made. Those that make a new list overwrite nothing.

    Attributes:
        xp: `torch` or `jax.numpy`, for functions that both call by one name.
    """

    xp: Any

    # ------------------------------------------------------------------------------------------------ state
    def average(self, mean: list[Value], values: list[Value], beta: float) -> list[Value]:
        """Return β m + (1 - β) x."""
        ...

    def average_squares(self, mean: list[Value], values: list[Value], beta: float) -> list[Value]:
        """Return β v + (1 - β) x²."""
        ...

    def accumulate(self, total: list[Value], values: list[Value], mu: float) -> list[Value]:
        """Return μ v + x."""
        ...

    def accumulate_squares(self, total: list[Value], values: list[Value]) -> list[Value]:
        """Return S + x²."""
        ...

    def accumulate_ratios(
        self, total: list[Value], values: list[Value], scale: list[Value], mu: float, rate: float = 1.0
    ) -> list[Value]:
        """Return μ v + η x / s."""
        ...

    def assign(self, old: Value, new: Value) -> Value:
        """Return the new array, in place of the old one."""
        ...

    # -------------------------------------------------------------------------------------------- directions
    def weigh(self, beta: float, steps: Value) -> Value:
        """Return 1 - βᵗ, the sum of the weights in an average of t values, without cancellation."""
        ...

    def root(
        self, values: list[Value], weight: Value | None = None, *, inside: float = 0.0, outside: float = 0.0
    ) -> list[Value]:
        """Return √((v + δ) / weight) + ε as a new list, with δ inside and ε outside of the root."""
        ...

    def divide(self, values: list[Value], by: list[Value] | Value) -> list[Value]:
        """Return x / y as a new list."""
        ...

    def variance(self, squares: list[Value], mean: list[Value]) -> list[Value]:
        """Return v - m², at least 0, as a new list."""
        ...

    def add(self, values: list[Value], others: list[Value], factor: float) -> list[Value]:
        """Return x + f y as a new list."""
        ...

    def add_decay(self, values: list[Value], weights: list[Value], decay: float, *, owned: bool = False) -> list[Value]:
        """Return x + λ w for matrices and filters, and x for vectors (biases, …): a new list, unless `owned`.

        Goyal et al. 2017, §5.3: no decay on batch normalisation's coefficients.
        """
        ...

    def affine(self, values: list[Value], factor: Value, term: Value | None = None) -> list[Value]:
        """Return f x + c."""
        ...

    def normalize(self, squares: list[Value], values: list[Value], epsilon: float) -> list[Value]:
        """Return x / √(s + ε)."""
        ...

    # ------------------------------------------------------------------------------------------------ layers
    def norms(self, values: list[Value]) -> Value:
        """Return ‖x‖ of each array, (n,)."""
        ...

    def clip(self, value: Value, least: float, largest: float) -> Value:
        """Return the elements within bounds; an upper bound of 0 is none."""
        ...

    def scale_layers(
        self, values: list[Value], places: list[int], factors: Value, rest: float | None = None
    ) -> list[Value]:
        """Multiply arrays at places by their factors (n,), and the others by the rest, which makes a new list."""
        ...

    # ------------------------------------------------------------- moves, which in jax are the change of w alone
    def move(self, weights: list[Value], direction: list[Value], rate: float) -> list[Value]:
        """Return w - η d."""
        ...

    def move_by_ratios(
        self, weights: list[Value], values: list[Value], scale: list[Value], rate: float, decay: float = 0.0
    ) -> list[Value]:
        """Return w - η (x / s + λ w), with the decay λ of matrices and filters."""
        ...

    def move_rows(self, table: Value, rows: Rows, rate: float) -> Any:
        """Return w - η d for some rows of a table."""
        ...

    # ------------------------------------------------------------------------------------------------- rows
    def merge_rows(self, rows: Rows) -> Rows:
        """Add up the rows of equal ids, so that they can be squared; in jax padded with zeros at id 0."""
        ...

    def accumulate_rows(self, total: Value, rows: Rows) -> Value:
        """Return s + x for merged rows of a table."""
        ...

    def accumulate_squared_rows(self, total: Value, rows: Rows) -> tuple[Value, Value]:
        """Return s + x² for merged rows of a table: the whole table of sums, and these rows."""
        ...
