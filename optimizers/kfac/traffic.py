"""Counts of K-FAC's exchanges and inversions, made from its plan without allocating anything."""

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

from suite.contract import Layer
from suite.optimizers._plan import Exchange
from suite.optimizers.kfac import Settings
from suite.optimizers.kfac.plan import KFACPlan

# Of OF steps with stale statistics, KEPT refresh all factors. SP-NGD with batches of 4,096 sent 23.6 % of what it sends
# without staleness (published row A2-01; 5.4 to 15.1 % with batches of 8,192 to 32,768, A2-02 to A2-04), and 4 / 17 is
# 23.5 %.
KEPT, OF = 4, 17


def cycle(
    layers: Mapping[str, Layer], shapes: Mapping[str, tuple[int, ...]], *, world: int, options: Mapping[str, Any]
) -> list[list[Exchange]]:
    """Return the exchanges of each step of one cycle, after which all repeats.

    With `stale` the intervals follow from the statistics, so they are not known in advance. SP-NGD's frequency is taken
    instead: all factors in `KEPT` of `OF` steps, and none in the others.

    Args:
        layers: of the task.
        shapes: of its parameters.
        world: number of ranks.
        options: the optimizer's configuration.
    """
    settings = Settings.given({name: options[name] for name in Settings.model_fields if name in options}, "optimizer.")
    plan = KFACPlan(layers, shapes, settings, world=world)
    if settings.stale:
        every = _exchanges(plan, plan.factors, plan.buckets.place)
        return [every] * KEPT + [list[Exchange]()] * (OF - KEPT)
    begin, period = plan.cycle
    first = -(-begin // period) * period
    return [_exchanges(plan, plan.now(step), plan.inverted(step)) for step in range(first, first + period)]


def _exchanges(plan: KFACPlan, refreshed: Collection[str], inverted: Collection[str]) -> list[Exchange]:
    """Return the exchanges of a step that refreshes and inverts these factors."""
    exchanges = []
    # sampled labels have a separate backward pass
    early = plan.exchanges(refreshed) if plan.word == "statistics" else {}
    for key in plan.buckets.members:
        side = int(key)
        (_, sent), (_, back) = (plan.chosen(key, names) for names in (refreshed, inverted))
        if sent or back:
            busiest = max(Counter(back).values(), default=0)
            before = early[key].last if key in early else None
            exchanges.append(Exchange(key, side, sent, back, busiest * side**3, len(back) * side**3, before))
    return exchanges
