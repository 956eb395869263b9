"""Messages between the stages of a pipeline, over `torch.distributed`."""

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from suite.comm.codecs._codec import Codec
from suite.comm.partition.peers import guard_exchange
from suite.comm.partition.torch.rehearsal import Form
from suite.comm.transport import Ledger, make_entry

ALIGNED = 16  # bytes; each tensor of a message starts at a multiple, as views of other types need


def count_bytes(forms: Iterable[Form], codec: Codec | None = None) -> int:
    """Bytes of the message that holds tensors of these forms; `codec` encodes those of floating-point numbers."""
    return sum(_padded(_nbytes(form, codec)) for form in forms)


def pack_values(values: Sequence[Tensor], forms: Sequence[Form], codec: Codec | None = None) -> Tensor:
    """Tensors as one message of bytes."""
    message = torch.zeros(count_bytes(forms, codec), dtype=torch.uint8, device=values[0].device)
    start = 0
    for value, form in zip(values, forms, strict=True):
        sent = value.as_strided(form.sent_shape, value.stride()) if form.sent_shape != form.shape else value
        flat = sent.resolve_conj().resolve_neg().contiguous().view(-1)
        size = _nbytes(form, codec)
        message[start : start + size] = codec.encode(flat) if codec and _coded(form) else flat.view(torch.uint8)
        start += _padded(size)
    return message


def unpack_values(message: Tensor, forms: Sequence[Form], codec: Codec | None = None) -> tuple[Tensor, ...]:
    """Return the tensors of a message, with the strides of their forms."""
    values = []
    start = 0
    for form in forms:
        size = _nbytes(form, codec)
        part = message[start : start + size]
        value = torch.empty_strided(form.sent_shape, form.stride, dtype=form.dtype, device=message.device)
        like = value.new_empty(value.numel())
        flat = codec.decode(part, like) if codec and _coded(form) else part.view(form.dtype)
        values.append(value.copy_(flat.view(form.sent_shape)).expand(form.shape))
        start += _padded(size)
    return tuple(values)


def _coded(form: Form) -> bool:
    """Return whether a codec may encode a tensor; integers, such as words, masks and random states, must stay exact."""
    return form.dtype in (torch.float32, torch.float64)


def _nbytes(form: Form, codec: Codec | None) -> int:
    """Bytes of a tensor in a message."""
    return codec.nbytes(math.prod(form.sent_shape), form.dtype.itemsize) if codec and _coded(form) else form.nbytes


def _padded(nbytes: int) -> int:
    return -(-nbytes // ALIGNED) * ALIGNED


@dataclass(frozen=True)
class Expected:
    """A message that this rank will receive."""

    rank: int
    forms: tuple[Form, ...]


class Link:
    """Messages in one direction. Every pair of ranks sends and receives its messages in the same order.

    A receive is posted before the message is needed, so that it travels while the device computes.

    Args:
        name: in the ledger.
        ledger: counts the bytes.
        device: of the tensors.
        deadline: seconds that a rank waits for a message; None: torch's default.
        describe: a rank to words, for errors.
        codec: encodes float32 and float64 values; None: none is changed.

    Attributes:
        waited: seconds that `receive` has waited for messages.
    """

    def __init__(
        self,
        name: str,
        ledger: Ledger,
        device: torch.device,
        deadline: float | None,
        describe: Callable[[int], str],
        codec: Codec | None = None,
    ):
        self.codec, self.waited = codec, 0.0
        self.name, self.ledger, self.device, self.describe = name, ledger, device, describe
        self.group: Any = dist.new_group(timeout=timedelta(seconds=deadline) if deadline else None)
        self.sending: deque[tuple[Any, Tensor, int]] = deque()
        self.coming: deque[Expected] = deque()
        self.posted: deque[tuple[Any, Tensor, Expected]] = deque()

    def expect(self, messages: Iterable[Expected]) -> None:
        """Announce the messages of a step, in the order in which `receive` will return them."""
        self.coming.extend(message for message in messages if message.forms)
        self._post()

    def _post(self) -> None:
        if self.coming and not self.posted:
            expected = self.coming.popleft()
            buffer = torch.empty(count_bytes(expected.forms, self.codec), dtype=torch.uint8, device=self.device)
            work = self._met(expected.rank, lambda: dist.irecv(buffer, expected.rank, group=self.group))
            self.posted.append((work, buffer, expected))

    def receive(self) -> tuple[Tensor, ...]:
        """Wait for the next message and return its tensors."""
        work, buffer, expected = self.posted.popleft()
        began = time.perf_counter()
        self._met(expected.rank, work.wait)
        self.waited += time.perf_counter() - began
        self._post()
        return unpack_values(buffer, expected.forms, self.codec)

    def send(self, rank: int, values: Sequence[Tensor], forms: Sequence[Form]) -> None:
        """Send tensors to a rank without waiting."""
        if not forms:
            return
        message = pack_values(values, forms, self.codec)
        self.ledger.add([make_entry("shift", self.name, "uint8", message.numel(), 2)])
        work = self._met(rank, lambda: dist.isend(message, rank, group=self.group))
        self.sending.append((work, message, rank))

    def finish(self) -> None:
        """Wait until everything has been sent."""
        while self.sending:
            work, _, rank = self.sending.popleft()
            self._met(rank, work.wait)

    def _met(self, rank: int, wait: Callable[[], Any]) -> Any:
        return guard_exchange(f"{self.describe(rank)} while exchanging {self.name}", wait)
