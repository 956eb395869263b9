"""What K-FAC exchanges and inverts, counted from its plan without allocating anything."""

import inspect
import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

from suite.contract import Layer
from suite.optimizers._plan import Exchange
from suite.optimizers.kfac.plan import KFACPlan


def cycle(
    layers: Mapping[str, Layer], shapes: Mapping[str, tuple[int, ...]], *, world: int, options: Mapping[str, Any]
) -> list[list[Exchange]]:
    """The exchanges of each step of one cycle, after which all repeats.

    With `stale` each factor finds its own interval while training; here all are refreshed in every step, the most that
    can be.

    Args:
        layers: of the task.
        shapes: of its parameters.
        world: number of ranks.
        options: the optimizer's configuration.
    """
    taken = {name: options[name] for name in inspect.signature(KFACPlan).parameters if name in options}
    plan = KFACPlan(layers, shapes, world=world, **taken)
    length = math.lcm(plan.factor_interval, plan.inverse_interval)
    first = -(-(plan.inverse_warmup + 1) // length) * length
    if plan.stale:
        return [_exchanges(plan, plan.factors, plan.buckets.place)]
    return [_exchanges(plan, plan.now(step), plan.inverted(step)) for step in range(first, first + length)]


def _exchanges(plan: KFACPlan, taken: Any, inverted: Any) -> list[Exchange]:
    found = []
    for key in plan.buckets.members:
        side = int(key)
        (_, sent), (_, back) = (plan.chosen(key, chosen) for chosen in (taken, inverted))
        if sent or back:
            busiest = max(Counter(back).values(), default=0)
            found.append(Exchange(key, side, sent, back, busiest * side**3, len(back) * side**3))
    return found
