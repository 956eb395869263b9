"""SOAP's plan: which sides of which matrices have a basis, and when it is refreshed. Shared by torch and jax."""

from collections.abc import Mapping

from suite.contract import Plan, UserError
from suite.optimizers._plan import dealt, merge


class SOAPPlan(Plan):
    """Matrices of equal shape in one stack, bases of equal size owned slice by slice; refreshes every so many steps.

    Attributes:
        precondition_frequency: steps between refreshes; may be edited while training, and counts at once.
        start: the first step with a refresh.
        members: names of the matrices in each stack, keyed by `<rows>x<columns>`.
        sizes: rows of each stack of bases, by `<rows>x<columns>/left` (Q_L) and `…/right` (Q_R).
        equal: the stacks of bases of each size; they are refreshed together.
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
        self.world = world
        self.members: dict[str, list[str]] = {}
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
                self.members.setdefault(key, []).append(name)
        covered = {name for names in self.members.values() for name in names}
        self.rest = [name for name in shapes if name not in covered]
        self.equal: dict[str, list[str]] = {}
        for stack, size in self.sizes.items():
            self.equal.setdefault(str(size), []).append(stack)

    def count(self, stack: str) -> int:
        """Matrices in a stack."""
        return len(self.members[stack.partition("/")[0]])

    def owners(self, size: str) -> tuple[int, ...]:
        """The rank that owns each matrix of a size, a slice each."""
        return dealt(sum(map(self.count, self.equal[size])), self.world)

    def programs(self, step: int) -> tuple[str, ...]:
        """The refreshes of this step, one for each size; those after `start` updates are the first."""
        since = step - self.start
        return tuple(self.equal) if since >= 0 and since % self.precondition_frequency == 0 else ()
