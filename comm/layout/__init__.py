"""How arrays are laid out before a codec sees them; nothing is lost. Buckets of gradients are in `suite.comm.channel`.

What goes to one rank at a time goes in pieces, each with a payload of its own: while one is on its way the next can be
encoded, and what is short does not wait behind what is long.

A symmetric matrix travels as its lower triangle, row by row: number row (row + 1) / 2 + column, as in SP-NGD's code
(Osawa et al. 2019, arXiv:1811.12019, section 5.2).

A stack's rows have owners, who alone work at them: `owners` names the rank of each row, and `slots` is the order in
which rows stand where every rank has equally many.
"""

import functools

from suite.comm.codecs._codec import Codec

GROUP = 3 * 2**9  # values: float21 packs three, int8 has a scale for each 512, and whole bytes hold eight words
MANY = 16  # pieces


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


@functools.lru_cache(maxsize=4096)
def pieces(codec: Codec, count: int, itemsize: int, most: float) -> tuple[int, ...]:
    """Lengths of the pieces in which `count` values of `itemsize` bytes are encoded.

    All but the last have `GROUP` values times a power of two: the largest whose payload is of at most `most` bytes, or
    the smallest that makes no more than `MANY` pieces, XLA compiling each by itself.
    """
    length = GROUP
    while length < count and (codec.nbytes(2 * length, itemsize) <= most or count > MANY * length):
        length *= 2
    whole, rest = divmod(count, length)
    return (length,) * whole + ((rest,) if rest or not whole else ())
