"""Bytes over a mesh axis inside `shard_map`.

A collective is counted when it is traced: the engine keeps a program's entries and adds them to the ledger each time
the program runs.
"""

from jax import Array, lax

from suite.comm.transport import Entry, entry

AXIS = "data"


class Transport:
    """Collectives over the mesh axis `data`, for one trace.

    `entries` collects what this trace sends on each rank.
    """

    def __init__(self, world: int):
        self.world = world
        self.entries: list[Entry] = []

    @property
    def rank(self) -> Array:
        """This device's place on the axis, a traced integer."""
        return lax.axis_index(AXIS)

    def _count(self, operation: str, name: str, value: Array) -> None:
        self.entries.append(entry(operation, name, str(value.dtype), value.size * value.dtype.itemsize, self.world))

    def all_reduce(self, name: str, value: Array) -> Array:
        """The sum over ranks, in the array's own type."""
        self._count("all_reduce", name, value)
        return lax.psum(value, AXIS)

    def all_to_all(self, name: str, value: Array) -> Array:
        """Row r of (world, …) goes to rank r; the rows that came back, in rank order."""
        self._count("all_to_all", name, value)
        return lax.all_to_all(value, AXIS, split_axis=0, concat_axis=0, tiled=True)

    def all_gather(self, name: str, value: Array) -> Array:
        """Every rank's (k, …) rows one after another: (world · k, …)."""
        self._count("all_gather", name, value)
        return lax.all_gather(value, AXIS, tiled=True)
