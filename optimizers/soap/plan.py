"""SOAP's plan: which sides of which matrices have a basis, and when it is refreshed. Shared by torch and jax."""

from collections.abc import Mapping

from suite.contract import Plan, UserError
from suite.optimizers._plan import bucket, merge


class SOAPPlan(Plan):
    """Matrices of equal shape in one stack, their bases owned slice by slice; refreshes every so many steps.

    Attributes:
        precondition_frequency: steps between refreshes; may be edited while training, and counts at once.
        start: the first step with a refresh.
        buckets: names of the matrices, keyed by `<rows>x<columns>`.
        sizes: rows of each basis, by `<bucket>/left` (Q_L) and `<bucket>/right` (Q_R): a program each.
        rest: names of the parameters without any basis.
    """

    def __init__(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        *,
        world: int,
        max_size: int,
        one_sided: bool,
        precondition_frequency: int,
        start_preconditioning: int,
    ):
        if precondition_frequency < 1:
            raise UserError(f"optimizer.precondition_frequency={precondition_frequency}: steps; type 1 or more")
        self.precondition_frequency = precondition_frequency
        self.start = max(start_preconditioning, 1)  # before the first update there is nothing to decompose
        keys: dict[str, str] = {}
        self.sizes: dict[str, int] = {}
        for name, shape in shapes.items():
            sides = merge(shape)
            if len(sides) < 2:
                continue
            limit = min(max_size, *sides) if one_sided else max_size
            key = "x".join(map(str, sides))
            bases = {f"{key}/{at}": side for at, side in zip(("left", "right"), sides, strict=True) if side <= limit}
            self.sizes |= bases
            if bases:
                keys[name] = key
        self.buckets = bucket(keys, world)
        self.rest = [name for name in shapes if name not in keys]

    def count(self, basis: str) -> int:
        """Matrices in a stack."""
        return len(self.buckets.members[basis.partition("/")[0]])

    def filler(self, basis: str) -> int:
        """Rows that make a stack a multiple of the ranks."""
        return self.buckets.filler(basis.partition("/")[0])

    def programs(self, step: int) -> tuple[str, ...]:
        """The refreshes of this step, `<basis>/start` where it is the first: its method is another."""
        since = step - self.start
        due = since >= 0 and since % self.precondition_frequency == 0
        return tuple(basis if since else f"{basis}/start" for basis in self.sizes) if due else ()
