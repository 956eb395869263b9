"""Counts of a run in torch: the operations of its steps."""

from collections import Counter
from collections.abc import Callable, Iterable
from itertools import accumulate
from typing import Any

from torch._ops import OpOverload
from torch.autograd.profiler import profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

# these operators copy a value to the host, and wait for the device
WAITING = ("aten::_local_scalar_dense", "aten::equal")


class Operators(TorchDispatchMode):
    """Counts the operators that run inside, by name. Views and marks of profilers run nothing."""

    def __init__(self):
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func: OpOverload, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name().partition(".")[0]
        if not func.is_view and not name.startswith("profiler::"):
            self.calls[name] += 1
        return func(*args, **(kwargs or {}))


def count_work(engine: Any, warm: Callable[[], None], steps: Callable[[], None]) -> dict[str, Any]:
    """Run steps, and count.

    Args:
        engine: of `suite.engine.torch`.
        warm: prepares the engine.
        steps: makes the steps.

    Returns:
        Of all steps together: `operators` and those that wait for the device (`synchronisations`), by name; and
        `flops`, of products and convolutions. `peak_bytes`: most bytes that were held beyond those held before.
    """
    warm()
    operators = Operators()
    memory = profile(profile_memory=True)
    with memory, FlopCounterMode(display=False) as flops, operators:
        steps()
    assert memory.kineto_results is not None
    return {
        "peak_bytes": _peak(memory.kineto_results.events()),
        "flops": flops.get_total_flops(),
        "synchronisations": sum(operators.calls[name] for name in WAITING),
        "operators": {name.removeprefix("aten::"): calls for name, calls in sorted(operators.calls.items())},
    }


def _peak(events: Iterable[Any]) -> int:
    """Compute the largest sum of allocations less releases, in the order of the profiler's events."""
    memory = [event for event in events if event.name() == "[memory]"]
    sizes = (event.nbytes() for event in sorted(memory, key=lambda event: event.start_ns()))
    return max(accumulate(sizes), default=0)
