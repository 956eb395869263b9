"""Protocols of the members of `comm/`; `suite.comm.exchange` has the array operations that a member may use.

A member is a module; its attributes and functions are those of its protocol. `suite.comm.setup` rejects a member that
lacks one. Algorithms and topologies are written once for both frameworks, over `Array`, `Transport` and `Encoder`. A
member that needs a framework's own functions puts its functions into `torch.py` and `jax.py` instead.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

from suite.comm.exchange import Encoder, Encoders, Handle, Transport, Value
from suite.comm.layout import cut_pieces
from suite.contract import UserError

if TYPE_CHECKING:
    from suite.comm.codecs._codec import Codec
    from suite.comm.policies._policy import Situation
    from suite.comm.projection.timeline import Step
    from suite.comm.transport import Entry


IN_FRAMEWORK_FILES = ("mean", "to_owners", "gather")  # functions that may be in `torch.py` and `jax.py` of a member


class Member(Protocol):
    """Attributes that every member states.

    Attributes:
        SUMMARY: one line for `suite list`.
        CITATION: the publication; empty where there is none.
    """

    SUMMARY: str
    CITATION: str


class Algorithm(Member, Protocol):
    """Takes the mean of an array over ranks, with a codec: a module of `comm/algorithms`.

    Attributes:
        CLOSED: whether it works only with codecs whose encoded values can be added up (`Codec.closed`).
    """

    CLOSED: bool

    def mean(
        self, name: str, values: Value, *, encoder: Encoder[Value, Handle], transport: Transport[Value, Handle]
    ) -> Value:
        """Return the mean over ranks of a flat (n,) array, which may be overwritten."""
        ...

    def traffic(self, name: str, count: int, *, channel: Channel, itemsize: int, world: int, level: str) -> list[Entry]:
        """Return what `mean` sends, as the ledger will count it on rank 0.

        Args:
            name: of the array.
            count: number of values.
            channel: whose codec encodes them.
            itemsize: bytes of a value before it is encoded.
            world: number of ranks.
            level: "flat", or "outer" between hosts.
        """
        ...


class Topology(Member, Protocol):
    """Takes means over all ranks, by exchanges within groups of ranks: a module of `comm/topologies`.

    `channel` names the codecs and the algorithm. The three functions with `traffic` in their name say in advance what
    the others send, as the ledger will count it on rank 0; `locals` is the number of ranks of one host, 1 with one
    level.

    Attributes:
        LEVELS: 1, or 2 for a topology that distinguishes ranks of one host from ranks of others.
    """

    LEVELS: int

    def mean(
        self,
        name: str,
        values: Value,
        *,
        channel: Channel,
        encoders: Encoders[Value, Handle],
        transport: Transport[Value, Handle],
    ) -> Value:
        """Return the mean over ranks of a flat (n,) array, which may be overwritten."""
        ...

    def to_owners(
        self,
        name: str,
        rows: Value,
        *,
        channel: Channel,
        encoders: Encoders[Value, Handle],
        transport: Transport[Value, Handle],
    ) -> Value:
        """Row r of the mean over ranks of (world, k), on rank r; (k,)."""
        ...

    def gather(
        self,
        name: str,
        mine: Value,
        *,
        channel: Channel,
        encoders: Encoders[Value, Handle],
        transport: Transport[Value, Handle],
    ) -> Value:
        """Every rank's (k,) values on all ranks, (world, k)."""
        ...

    def traffic(
        self, name: str, count: int, *, channel: Channel, itemsize: int, world: int, locals: int
    ) -> list[Entry]:
        """Return what `mean` sends of `count` values."""
        ...

    def to_owners_traffic(
        self, name: str, count: int, *, channel: Channel, itemsize: int, world: int, locals: int
    ) -> list[Entry]:
        """Return what `to_owners` sends of (world, count) values."""
        ...

    def gather_traffic(
        self, name: str, count: int, *, channel: Channel, itemsize: int, world: int, locals: int
    ) -> list[Entry]:
        """Return what `gather` sends of a rank's (count,) values."""
        ...


@dataclass(frozen=True)
class Channel:
    """One way to send values.

    Attributes:
        codec: encodes the values; with two levels, between hosts.
        inner: encodes the values inside a host, with two levels.
        algorithm: takes means with the codec.
        topology: takes means over all ranks, with the algorithm.
        feedback: add the codec's error to the next values of the same name (error feedback).
        piece_bytes: approximate size of a payload that one rank sends another; longer arrays are cut into pieces,
            except inside a host.
    """

    codec: Codec
    inner: Codec
    algorithm: Algorithm
    topology: Topology
    feedback: bool = False
    piece_bytes: float = float("inf")

    def payloads(self, count: int, itemsize: int) -> list[int]:
        """Payload bytes of `count` values of `itemsize` bytes, piece by piece."""
        return [
            self.codec.nbytes(length, itemsize) for length in cut_pieces(self.codec, count, itemsize, self.piece_bytes)
        ]


class Schedule(Member, Protocol):
    """When gradients are sent: a module of `comm/schedules`.

    Its `torch.py` offers `make(reduce, named)`, which returns a `suite.comm.schedules._base.torch.Schedule`, and its
    `jax.py` offers `mean(reduce, grads)`, which is part of the compiled step.

    Attributes:
        REMEMBERS: whether it keeps gradients from step to step. Such a schedule is no candidate of a policy.
        OVERLAPS: optional; whether it sends during the backward pass. Every stage of a pipeline has all its gradients
            at once, and sends them while earlier stages compute, so that such a schedule is not used there.
    """

    REMEMBERS: bool

    def projected(self, parts: Step) -> float:
        """Seconds of a step from the seconds of its parts; `suite plan network=…` needs it, a run does not."""
        ...


class Policy(Member, Protocol):
    """Chooses how gradients are sent in the next steps: a module of `comm/policies`.

    Attributes:
        READS: keys of the run's configuration that it reads beside its own options, for example `("network",)`.
    """

    READS: tuple[str, ...]

    def decide(
        self, candidates: Sequence[str], kinds: Sequence[str], situation: Situation, **options: Any
    ) -> Generator[Any, Any, None]:
        """Yield requests and decisions; `comm/policies/_policy.py` lists them.

        Args:
            candidates: modes to choose from, by name.
            kinds: kinds of the model's parameters.
            situation: the state of the run.
            options: what `comm.policy` sets.
        """
        ...


def check(module: str, protocol: type, *parts: ModuleType, later: Iterable[str] = ()) -> None:
    """Check that a member offers what its protocol states.

    Args:
        module: the member's address, as the user typed it.
        protocol: what it must offer.
        parts: the member's module, and its framework file where it has one and the framework is known.
        later: names that are not checked now.

    Raises:
        UserError: for the first name that is missing, or function that takes other arguments.
    """
    member, hint = f"{protocol.__name__.lower()} {module}", f"suite.comm.contract.{protocol.__name__} says what it is"
    for name, arguments in _stated(protocol).items():
        offers = [vars(part)[name] for part in parts if name in vars(part)]
        if name in later:
            continue
        if not offers:
            raise UserError(f"{member}: has no {name}; add it to the module ({hint})")
        if arguments and not _takes(offers[-1], arguments):
            takes = inspect.signature(offers[-1])
            raise UserError(f"{member}: {name}{takes} must take {', '.join(arguments)} ({hint})")


def _stated(protocol: type) -> dict[str, list[str]]:
    """Return what a protocol declares: names of attributes, and of functions with the names of their arguments."""
    stated: dict[str, list[str]] = {}
    for base in reversed(protocol.__mro__):
        stated |= {name: [] for name in inspect.get_annotations(base) if name.isupper()}
        for name, value in vars(base).items():
            if inspect.isfunction(value) and not name.startswith("_") and Member in base.__mro__:
                stated[name] = list(inspect.signature(value).parameters)[1:]
    return stated


def _takes(function: Callable[..., Any], arguments: Sequence[str]) -> bool:
    """Return whether a function has arguments of these names; `options` stands for any others."""
    parameters = inspect.signature(function).parameters.values()
    names = {"options", *(parameter.name for parameter in parameters)}
    return names.issuperset(arguments) or any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
