"""Base of codecs. A codec encodes a flat array as one payload and decodes it, with a declared error bound.

A payload is a uint8 array in NumPy and torch. In jax it may have any unsigned type with the same little-endian bytes:
XLA on CPUs takes longer to convert words to bytes than to compute them, and sends either type unchanged.

A member's `__init__.py` has the specification in NumPy, a subclass of `Codec`. `torch.py` and `jax.py` subclass it with
`encode` and `decode` for their arrays, equal to it byte for byte. Each of the three files offers `make(**options)`. A
codec is a frozen dataclass whose fields are its options, so that it can be compared and be part of a compiled program's
key.
"""

import abc
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from suite.contract import UserError

Draw = Callable[[int], Any]  # count -> (count,) uniform numbers in (0, 1), float32, the same on every machine


@dataclass(frozen=True)
class Codec(abc.ABC):
    """Base of every codec. Values are float32, or float64 in double-precision runs, and come back in their own type.

    Attributes:
        closed: the network itself can add encoded values, in the type that `narrow` returns.
        unbiased: the mean over many encodings is the value.
        draws: `encode` uses random numbers.
        compiles: in torch, kernels are compiled (`compile=true`); the bytes are the same.
    """

    compiles: bool = field(default=False, kw_only=True)

    closed = False
    unbiased = False
    draws = False

    def __post_init__(self) -> None:
        """Check that every setting has the type of its default."""
        for setting in dataclasses.fields(self):
            value, expected = getattr(self, setting.name), type(setting.default)
            accepted = (int, float) if expected is float else (expected,)
            if setting.default is not dataclasses.MISSING and type(value) not in accepted:
                raise UserError(
                    f"codec {type(self).__name__.lower()}: {setting.name}={value} is no {expected.__name__}; "
                    f"set for example comm.codec.{setting.name}={setting.default}"
                )

    @abc.abstractmethod
    def nbytes(self, count: int, itemsize: int = 4) -> int:
        """Payload bytes of `count` values of `itemsize` bytes."""

    @abc.abstractmethod
    def bound(self, values: Any) -> Any:
        """Largest absolute error of one round trip, for each of the (n,) values; inf where there is no bound."""

    @abc.abstractmethod
    def encode(self, values: Any, draw: Draw | None = None) -> Any:
        """(n,) floating-point values to a flat payload of nbytes(n) bytes."""

    @abc.abstractmethod
    def decode(self, payload: Any, like: Any) -> Any:
        """Decode the payload to values, of the type and length of `like`."""

    def narrow(self, values: Any) -> Any:
        """Return the values in the type in which the network adds them, if the codec is closed."""
        raise TypeError(f"{type(self).__name__} is not closed under addition")
