"""K-FAC's plan: which factor stands where, and when it is refreshed. Shared by torch and jax."""

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from suite.contract import Layer, Parcel, Plan, UserError
from suite.optimizers._plan import group_blocks, read_layers, turn_shapes
from suite.optimizers.kfac import Settings

SMALLEST = 1e-12  # least mean eigenvalue in π
# steps T between changes of λ with `quadratic_model`, and ωᵀ, its factor (Martens and Grosse 2015, section 6.5)
ADAPTATION_INTERVAL = 5
ADAPTATION = (19 / 20) ** ADAPTATION_INTERVAL


class KFACPlan(Plan):
    """Factors of equal size in one bucket, owned slice by slice; refreshes every so many steps, or when due.

    Args:
        layers: of the model, by module name.
        shapes: of its parameters, by name.
        settings: the optimizer's; the plan reads those that do not change while training.
        world: ranks that share the factors.

    Attributes:
        layers: what is preconditioned: all but those that share their matrix with another.
        covered: names of their parameters.
        rest: names of the parameters that AdamW updates: all others, with a `fallback_ratio`.
        kronecker: names of layers with two dense factors, `<layer>/in` (A) and `<layer>/out` (G).
        embedding: names of layers with a diagonal A and a dense G.
        whole: names of batch normalisations with one dense factor, `<layer>`, of 2C scales and shifts.
        unit: names of batch normalisations with a 2x2 block for each channel, `<layer>`.
        sizes: rows of each factor but the unit-wise, dense or diagonal; `sides` is their order.
        paired: how many of `sides` are an A or a G; those of a layer stand next to each other.
        factors: every factor's name: `sides`, then `unit`.
        replicated: shapes of the factors that all ranks hold, by the name of their statistics.
        buckets: the dense factors, keyed by their size.
        settings: as given.
        world: as given.
        warm_start: batches whose statistics are averaged before the first step.

    Raises:
        UserError: for `stale` together with an interval; for `quadratic_model` with a setting that it replaces.
    """

    def __init__(
        self,
        layers: Mapping[str, Layer],
        shapes: Mapping[str, tuple[int, ...]],
        settings: Settings,
        *,
        world: int = 1,
    ):
        if settings.stale and (settings.factor_interval, settings.inverse_interval) != (1, 1):
            raise UserError(
                "optimizer.stale=true: each factor has its own interval; "
                "set optimizer.factor_interval=1 optimizer.inverse_interval=1"
            )
        if settings.quadratic_model:
            _check_model(settings)
        layers = read_layers(layers, shapes)
        shapes = turn_shapes(layers, shapes)
        # a matrix that two layers use has no separate factors
        uses = Counter(layer.parameters[0] for layer in layers.values())
        self.layers = layers = {name: layer for name, layer in layers.items() if uses[layer.parameters[0]] == 1}
        self.covered = {parameter for layer in layers.values() for parameter in layer.parameters}
        self.rest = [name for name in shapes if settings.fallback_ratio and name not in self.covered]
        self.shapes, self.settings, self.world = shapes, settings, world
        self.warm_start, self.together = settings.warm_start, not settings.stale
        self.word = "statistics" if settings.fisher == "empirical" else "sampled"
        self.kronecker = [name for name, layer in layers.items() if layer.kind in ("linear", "conv2d")]
        self.embedding = [name for name, layer in layers.items() if layer.kind == "embedding"]
        normalised = [name for name, layer in layers.items() if layer.kind == "batchnorm"]
        self.whole, self.unit = (normalised, []) if settings.batchnorm == "full" else ([], normalised)
        self.sizes = self._sizes()
        self.paired = len(self.sizes)
        self.sizes |= {name: 2 * shapes[layers[name].parameters[0]][0] for name in self.whole}
        diagonal = {f"{name}/in" for name in self.embedding}
        self.buckets = group_blocks(
            {side: str(size) for side, size in self.sizes.items() if side not in diagonal}, world
        )
        self.sides = list(self.sizes)
        self.factors = [*self.sides, *self.unit]
        self.index = {name: number for number, name in enumerate(self.factors)}
        self.replicated: dict[str, tuple[int, ...]] = {
            name: (shapes[layers[name].parameters[0]][0], 3) for name in self.unit
        }
        self.replicated |= {f"{name}/in": (self.sizes[f"{name}/in"],) for name in self.embedding}
        self.partner = [number ^ 1 for number in range(self.paired)]
        self._due: dict[str, int] = {}  # the step at which each factor is due, as far as it has been read
        self._last: int | None = None

    def _sizes(self) -> dict[str, int]:
        """Rows of the A and the G of each layer."""
        sizes = {}
        for name in self.kronecker:
            weight, *bias = self.layers[name].parameters
            sizes[f"{name}/in"] = math.prod(self.shapes[weight][1:]) + len(bias)
            sizes[f"{name}/out"] = self.shapes[weight][0]
        for name in self.embedding:
            sizes[f"{name}/in"], sizes[f"{name}/out"] = self.shapes[self.layers[name].parameters[0]]
        return sizes

    def rows(self, key: str) -> list[int]:
        """Return the number in `sides` of each member of a bucket."""
        return [self.index[side] for side in self.buckets.members[key]]

    def chosen(self, key: str, names: Collection[str]) -> tuple[list[int], tuple[int, ...]]:
        """Return the rows of a bucket's stack that hold some of these factors, and the owner of each."""
        rows = [row for row, side in enumerate(self.buckets.members[key]) if side in names]
        return rows, tuple(row // self.buckets.share[key] for row in rows)

    def exchanges(self, names: Collection[str]) -> dict[str, Parcel]:
        """How some dense factors travel to their owners, by bucket."""
        parcels = {}
        for key, members in self.buckets.members.items():
            rows, owners = self.chosen(key, names)
            if rows:
                sides = tuple(members[row] for row in rows)
                matrices = {self.layers[side.partition("/")[0]].parameters[0] for side in sides}
                parcels[key] = Parcel(sides, owners, next(name for name in self.shapes if name in matrices))
        return parcels

    def parcels(self, step: int) -> dict[str, Parcel]:
        """Return the factors that are refreshed in this step, by the names under which they are sent."""
        return {f"factor/{key}": parcel for key, parcel in self.exchanges(self.now(step)).items()}

    # ------------------------------------------------------------------------------------------------ when
    def now(self, step: int) -> tuple[str, ...]:
        """Return the factors whose statistics are refreshed in this step.

        With `stale` they follow from the waiting times last read. Before the first reading, even steps refresh all and
        odd ones none, so that both kinds of step are compiled in advance.
        """
        if not self.settings.stale:
            return tuple(self.factors) if step % self.settings.factor_interval == 0 else ()
        if not self._due:
            return tuple(self.factors) if step % 2 == 0 else ()
        return tuple(name for name in self.factors if self._due[name] <= step)

    def asks(self, step: int) -> bool:
        """Return whether the waiting times must be read before this step: after a refresh, and after a jump."""
        known = self._last is not None and self._last == step - 1 and not self.now(step - 1)
        self._last = step
        return self.settings.stale and not known

    def read(self, step: int, wait: Sequence[int]) -> None:
        """Take over how many steps each of `factors` waits, counted from this step."""
        self._due = {name: step + steps for name, steps in zip(self.factors, wait, strict=True)}

    def phase(self, step: int) -> tuple[str, ...]:
        """`statistics`, or `sampled` (labels drawn from the model), where factors are due; `damping` where λ adapts."""
        adapts = self.settings.quadratic_model and (step + 1) % ADAPTATION_INTERVAL == 0
        return ("damping",) * adapts + (self.word,) * bool(self.now(step))

    def inverted(self, step: int) -> tuple[str, ...]:
        """Return the dense factors that are inverted in this step."""
        if self.settings.stale:
            return tuple(name for name in self.now(step) if name in self.buckets.place)
        due = step <= self.settings.inverse_warmup or step % self.settings.inverse_interval == 0
        return tuple(self.buckets.place) if due else ()

    @property
    def cycle(self) -> tuple[int, int]:
        """(begin, period): from step `begin` on, `phase` and `programs` repeat themselves; not with `stale`."""
        settings = self.settings
        adapts = ADAPTATION_INTERVAL if settings.quadratic_model else 1
        return settings.inverse_warmup + 1, math.lcm(settings.factor_interval, settings.inverse_interval, adapts)

    def programs(self, step: int) -> tuple[str, ...]:
        """Return the buckets with a factor that is inverted in this step."""
        due = {self.buckets.place[side][0] for side in self.inverted(step)}
        return tuple(key for key in self.buckets.members if key in due)


def _check_model(settings: Settings) -> None:
    """Raise a UserError for settings that the quadratic model replaces."""
    replaced = {
        "kl_clip=0": settings.kl_clip == 0,
        "momentum_on=direction": settings.momentum_on == "direction",
        "rescale=false": not settings.rescale,
        "damping=1": settings.damping != 0,
    }
    if wrong := [option for option, is_set in replaced.items() if not is_set]:
        raise UserError(
            "optimizer.quadratic_model=true: a step's length, its momentum and the damping follow from the model; "
            f"set {' '.join(f'optimizer.{option}' for option in wrong)}"
        )
    if not isinstance(settings.damping, (int, float)):
        raise UserError("quadratic_model=True: damping is where λ begins, so it cannot be a schedule; pass a number")


make = KFACPlan
