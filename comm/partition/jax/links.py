"""Messages between the devices of a pipeline: directly inside a process, by `ppermute` between processes."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from suite.comm.codecs._codec import Codec
from suite.comm.partition.jax.messages import (
    Shape,
    count_bytes,
    decode_values,
    encode_values,
    list_payloads,
    pack_values,
    unpack_values,
)
from suite.comm.partition.jax.stages import Device
from suite.comm.partition.peers import PeerLost, guard_exchange
from suite.comm.transport import Ledger, make_entry

AXIS = "pair"


@dataclass(frozen=True)
class Item:
    """An array that one rank sends to another.

    Attributes:
        name: in the ledger and in errors.
        number: of the micro-batch.
        detail: tells items of one name and number apart.
        coded: whether the codec of the links encodes it.
    """

    name: str
    number: int
    detail: str = ""
    coded: bool = False


class Links:
    """Messages between the ranks of a pipeline.

    Sender and receiver meet at each message, so every process must call `exchange` for its ranks in one order of all
    messages. A thread waits for the peers, while the process computes.

    Args:
        devices: of the ranks.
        ledger: counts the bytes that this process's first rank sends.
        describe: a rank to words, for errors.
        codec: encodes the float32 and float64 values of coded items; None: they keep their bits.
    """

    def __init__(
        self,
        devices: Sequence[Device],
        ledger: Ledger,
        describe: Callable[[int], str],
        codec: Codec | None = None,
    ):
        self.devices, self.ledger, self.describe, self.codec = devices, ledger, describe, codec
        self.first = next(rank for rank in range(len(self.devices)) if self._here(rank))
        self.exchanges: dict[tuple[int, int], Callable[[Array], Array]] = {}
        self.empty: dict[tuple[int, int], Array] = {}  # operands of receivers, by rank and length
        self.pack = jax.jit(lambda values: pack_values(values)[None])
        self.unpack = jax.jit(lambda message, shapes: unpack_values(message[0], shapes), static_argnames="shapes")
        if codec:
            self.encode = jax.jit(lambda values: encode_values(values, codec))
            self.decode = jax.jit(lambda sent, shapes: decode_values(sent, shapes, codec), static_argnames="shapes")
        self.leaving: dict[tuple[Item, int], Sequence[Array]] = {}
        self.coming: dict[tuple[Item, int], Callable[[], Sequence[Array]]] = {}
        self.failed: PeerLost | None = None
        self.sending: list[Future[Any]] = []
        self.queue: SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = SimpleQueue()
        threading.Thread(target=self._work, daemon=True).start()  # must not keep a failed process alive

    def leave(self, item: Item, sender: int, values: Sequence[Array]) -> None:
        """Keep a local rank's arrays until they are exchanged."""
        self.leaving[item, sender] = values

    def exchange(self, item: Item, sender: int, receiver: int, shapes: Sequence[Shape]) -> None:
        """Send arrays from one rank to another, as far as they are in this process; without waiting.

        Args:
            item: that the sender left.
            sender: a rank.
            receiver: a rank.
            shapes: of the arrays.
        """
        values, whole = self.leaving.pop((item, sender), ()), tuple(shapes)
        coded = self.codec if item.coded else None
        if coded:
            values, shapes = self.encode(list(values)), list_payloads(shapes, coded)
        sends, receives = self._here(sender), self._here(receiver)
        if sender == self.first and shapes:
            self.ledger.add([make_entry("shift", item.name, "uint8", count_bytes(shapes), 2)])
        if sends and receives:
            self.coming[item, receiver] = lambda: jax.device_put(list(values), self.devices[receiver])
        elif sends and shapes:
            self.send(item.name, sender, receiver, values)
        elif receives and shapes:
            self.coming[item, receiver] = self.receive(item.name, sender, receiver, shapes)
        if coded and (item, receiver) in self.coming:
            arrive = self.coming[item, receiver]
            self.coming[item, receiver] = lambda: self.decode(list(arrive()), shapes=whole)

    def take(self, item: Item, receiver: int) -> Sequence[Array]:
        """Wait for the arrays that a local rank receives; none if there are none.

        Raises:
            PeerLost: if another process ended.
        """
        return self.coming.pop((item, receiver))() if (item, receiver) in self.coming else ()

    def _here(self, rank: int) -> bool:
        return self.devices[rank].process_index == jax.process_index()

    def send(self, name: str, sender: int, receiver: int, values: Sequence[Array]) -> None:
        """Send arrays from a local rank to one of another process, without waiting."""
        message = self.pack(list(values))
        work = self._meet(name, sender, receiver, message, peer=receiver)
        self.sending.append(work)

    def receive(self, name: str, sender: int, receiver: int, shapes: Sequence[Shape]) -> Callable[[], list[Array]]:
        """Receive arrays at a local rank from one of another process; the result waits for them."""
        size = count_bytes(shapes)
        key = receiver, size
        if key not in self.empty:
            self.empty[key] = jax.device_put(jnp.zeros((1, size), jnp.uint8), self.devices[receiver])
        work = self._meet(name, sender, receiver, self.empty[key], peer=sender)
        return lambda: self.unpack(work.result(), shapes=tuple(shapes))

    def finish(self) -> None:
        """Wait until everything has been sent.

        Raises:
            PeerLost: if another process ended.
        """
        for work in self.sending:
            work.result()
        self.sending = []

    def _meet(self, name: str, sender: int, receiver: int, message: Array, peer: int) -> "Future[Array]":
        work: Future[Array] = Future()
        exchange = self._exchange(sender, receiver)
        words = f"{self.describe(peer)} while exchanging {name}"
        self.queue.put((lambda: guard_exchange(words, lambda: jax.block_until_ready(exchange(message))), work))
        return work

    def _exchange(self, sender: int, receiver: int) -> Callable[[Array], Array]:
        """Return the function from this process's operand, (1, n), to its result."""
        if (sender, receiver) not in self.exchanges:
            mesh = Mesh(np.array([self.devices[sender], self.devices[receiver]]), (AXIS,))
            split = NamedSharding(mesh, P(AXIS))
            maps: dict[str, Any] = {"mesh": mesh, "in_specs": P(AXIS), "out_specs": P(AXIS), "check_vma": False}
            permute = jax.jit(jax.shard_map(lambda value: lax.ppermute(value, AXIS, [(0, 1)]), **maps))

            def exchange(message: Array) -> Array:
                whole = jax.make_array_from_single_device_arrays((2, message.shape[1]), split, [message])
                return permute(whole).addressable_shards[0].data

            self.exchanges[sender, receiver] = exchange
        return self.exchanges[sender, receiver]

    def _work(self) -> None:
        """Run one exchange after another; after a failure, none."""
        while True:
            exchange, work = self.queue.get()
            try:
                if self.failed:
                    raise self.failed
                work.set_result(exchange())
            except PeerLost as error:
                self.failed = error
                work.set_exception(error)
            except BaseException as error:
                work.set_exception(error)
