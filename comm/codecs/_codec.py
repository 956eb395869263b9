"""What a codec is: a flat array to one payload and back, and an honest word on what is lost.

A payload is an array of bytes, uint8, in NumPy and torch. In jax it may be of any unsigned type whose little-endian
bytes are these: XLA on CPUs takes longer to make bytes of words than to make the words, and sends both as they are.

`__init__.py` of a member holds the specification in NumPy, a subclass of `Codec`; `torch.py` and `jax.py` subclass
that with `encode` and `decode` of their own arrays, equal to it byte for byte. Each of the three offers
`make(**options)`. A codec is a frozen dataclass, so that it can be compared and may stand in a compiled program's key.
"""

import abc
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Draw = Callable[[int], Any]  # how many -> as many uniform numbers in (0, 1), float32, the same on every machine


@dataclass(frozen=True)
class Codec(abc.ABC):
    """Base of every codec. Values are float32, or float64 in double-precision runs, and come back in their own type.

    Attributes:
        closed: a sum of encoded values may be taken by the network itself, in the type that `narrow` gives.
        unbiased: the mean of many decodings is the value.
        draws: `encode` uses random numbers.
        compiles: in torch, kernels are compiled (`compile=true`); the bytes are the same.
    """

    compiles: bool = field(default=False, kw_only=True)

    closed = False
    unbiased = False
    draws = False

    @abc.abstractmethod
    def nbytes(self, count: int, itemsize: int = 4) -> int:
        """Payload bytes of `count` values of `itemsize` bytes."""

    @abc.abstractmethod
    def bound(self, values: Any) -> Any:
        """Largest absolute error of one round trip, for each of the (n,) values; inf where there is no bound."""

    @abc.abstractmethod
    def encode(self, values: Any, draw: Draw | None = None) -> Any:
        """(n,) floating-point values to their payload of nbytes(n) bytes, flat."""

    @abc.abstractmethod
    def decode(self, payload: Any, like: Any) -> Any:
        """The payload of an array of `like`'s type and length, back to values."""

    def narrow(self, values: Any) -> Any:
        """The values in the type that the network sums, where the codec is closed."""
        raise TypeError(f"{type(self).__name__} is not closed under addition")
