"""How arrays are laid out before a codec sees them; nothing is lost. Buckets of gradients are in `suite.comm.channel`.

A symmetric matrix travels as its lower triangle, row by row: number row (row + 1) / 2 + column, as in SP-NGD's code
(Osawa et al. 2019, arXiv:1811.12019, section 5.2).

A stack's rows have owners, who alone work at them: `owners` names the rank of each row, and `slots` is the order in
which rows stand where every rank has equally many.
"""

import functools


@functools.lru_cache(maxsize=1024)
def slots(owners: tuple[int, ...], world: int) -> tuple[int, ...]:
    """Rows by owner, as many of each as the one with the most has; -1 where nothing stands."""
    mine: list[list[int]] = [[] for _ in range(world)]
    for row, owner in enumerate(owners):
        mine[owner].append(row)
    most = max(map(len, mine))
    return tuple(row for rows in mine for row in rows + [-1] * (most - len(rows)))


@functools.lru_cache(maxsize=1024)
def places(owners: tuple[int, ...], world: int) -> tuple[int, ...]:
    """Where each row stands in `slots`."""
    found = {row: slot for slot, row in enumerate(slots(owners, world))}
    return tuple(found[row] for row in range(len(owners)))
