"""Lossless layout of arrays before a codec encodes them. Buckets of gradients are in `suite.comm.channel`.

Long arrays are sent in pieces, each with its own payload: while one piece is sent the next can be encoded, and a
short message does not wait for a long one.

A symmetric matrix is sent as its lower triangle, row by row: entry (row, column) has the number row (row + 1) / 2 +
column, as in SP-NGD's code (Osawa et al. 2019, arXiv:1811.12019, section 5.2).

Each row of a stack has an owner, the only rank that computes with it. `owners` names the rank of each row; `slots` is
the order of the rows in an array in which every rank has equally many.
"""

import functools

from suite.comm.codecs._codec import Codec

GROUP = 3 * 2**9  # values: float21 packs three, int8 has a scale for each 512, and whole bytes hold eight words
MANY = 16  # pieces of one array, at most about


@functools.lru_cache(maxsize=1024)
def list_slots(owners: tuple[int, ...], world: int) -> tuple[int, ...]:
    """Rows by owner, padded with -1 to the largest number of rows of one owner; (world · k,)."""
    by_owner: list[list[int]] = [[] for _ in range(world)]
    for row, owner in enumerate(owners):
        by_owner[owner].append(row)
    most = max(map(len, by_owner))
    return tuple(row for rows in by_owner for row in rows + [-1] * (most - len(rows)))


@functools.lru_cache(maxsize=1024)
def locate_parts(owners: tuple[int, ...], world: int) -> tuple[int, ...]:
    """Return the index of each row in `slots`."""
    index = {row: slot for slot, row in enumerate(list_slots(owners, world))}
    return tuple(index[row] for row in range(len(owners)))


@functools.lru_cache(maxsize=4096)
def cut_pieces(codec: Codec, count: int, itemsize: int, most: float) -> tuple[int, ...]:
    """Lengths of the pieces in which `count` values of `itemsize` bytes are encoded.

    All but the last have `GROUP` values times a power of two: the largest length whose payload has at most `most`
    bytes, or the smallest with no more than about `MANY` pieces, because XLA compiles each piece separately.
    """
    length = GROUP
    while length < count and (codec.nbytes(2 * length, itemsize) <= most or count > MANY * length):
        length *= 2
    whole, rest = divmod(count, length)
    return (length,) * whole + ((rest,) if rest or not whole else ())
