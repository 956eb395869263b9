"""A wrong byte in torch."""

import dataclasses
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from mylab.flips import PHASE, RANK, STEP
from suite.comm.algorithms import all_to_all
from suite.comm.transport.torch import Arriving


@dataclass
class Flip:
    """End of a transfer: it changes a bit of what has come."""

    value: Tensor

    def wait(self) -> None:
        self.value[0, 1] ^= 64


class Faulty:
    """A transport whose exchange in one phase changes a bit of what this rank receives."""

    def __init__(self, transport: Any):
        self.transport = transport

    def __getattr__(self, name: str) -> Any:
        return getattr(self.transport, name)

    def all_to_all(self, name: str, value: Tensor) -> Arriving:
        return self._flipped(self.transport.all_to_all(name, value), "scatter")

    def all_gather(self, name: str, value: Tensor) -> Arriving:
        return self._flipped(self.transport.all_gather(name, value), "gather")

    def _flipped(self, arriving: Arriving, phase: str) -> Arriving:
        if phase != PHASE:
            return arriving
        return dataclasses.replace(arriving, works=[*arriving.works, Flip(arriving.value)])


def mean(name: str, values: Tensor, *, encoder: Any, transport: Any) -> Tensor:
    """Return the mean over ranks of a flat (n,) array."""
    hit = encoder.key[1] == STEP and transport.rank == RANK
    return all_to_all.mean(name, values, encoder=encoder, transport=Faulty(transport) if hit else transport)
