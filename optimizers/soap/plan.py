"""SOAP's plan: which sides of which matrices have a basis, and when it is refreshed. Shared by torch and jax."""

from collections.abc import Mapping

from suite.contract import Plan
from suite.optimizers._plan import assign_owners, merge_to_matrix
from suite.optimizers.soap import Settings


class SOAPPlan(Plan):
    """Matrices of equal shape are in one stack, and bases are refreshed at fixed intervals.

    The bases of one size are refreshed together; each rank owns a slice of them.

    Args:
        shapes: of the parameters, by name.
        settings: of the optimizer; the plan reads those that do not change while training.
        world: ranks that share the bases.

    Attributes:
        precondition_frequency: steps between refreshes; may be edited while training, with immediate effect.
        start: the first step with a refresh. Before the first update there are no statistics to decompose.
        members: names of the matrices in each stack, keyed by `<rows>x<columns>`.
        sizes: rows of each stack of bases, by `<rows>x<columns>/left` (Q_L) and `…/right` (Q_R).
        equal: the stacks of bases of each size; they are refreshed together.
        rest: names of the parameters without any basis.
    """

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], settings: Settings, *, world: int = 1):
        self.precondition_frequency = settings.precondition_frequency
        self.start = settings.start_preconditioning
        self.world = world
        self.members: dict[str, list[str]] = {}
        self.sizes: dict[str, int] = {}
        for name, shape in shapes.items():
            sides = merge_to_matrix(shape)
            if len(sides) < 2:
                continue
            limit = min(settings.max_size, *sides) if settings.one_sided else settings.max_size
            key = "x".join(map(str, sides))
            sizes = dict(zip((f"{key}/left", f"{key}/right"), sides, strict=True))
            bases = {basis: size for basis, size in sizes.items() if size <= limit}
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
        """Return the rank that owns each matrix of a size; each rank owns a slice."""
        return assign_owners(sum(map(self.count, self.equal[size])), self.world)

    @property
    def cycle(self) -> tuple[int, int]:
        """(begin, period): from step `begin` on, `programs` repeats every `period` steps."""
        return self.start, self.precondition_frequency

    def programs(self, step: int) -> tuple[str, ...]:
        """Return the refreshes of this step, one for each size; the first ones are in step `start`."""
        since = step - self.start
        return tuple(self.equal) if since >= 0 and since % self.precondition_frequency == 0 else ()


make = SOAPPlan
