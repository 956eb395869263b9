"""Makes a run's channels from its configuration, for one backend."""

import functools
import os
from collections.abc import Mapping
from dataclasses import replace
from types import ModuleType
from typing import Any, Protocol

from suite.comm.channel import REST, Channels
from suite.comm.codecs._codec import Codec
from suite.comm.contract import IN_FRAMEWORK_FILES, Algorithm, Channel, Member, Policy, Schedule, Topology, check
from suite.comm.policies._policy import Situation
from suite.comm.settings import UNENCODED, ChannelSettings, CommSettings
from suite.contract import Layer, Spec, UserError, suggest_names
from suite.nodes import Part

KIBI, MEBI = 2**10, 2**20
IN_SCHEDULES = {"torch": "make", "jax": "mean"}  # what a schedule's file for each backend offers


class Described(Protocol):
    """Description of a model, on which the exchange of gradients depends."""

    def shapes(self) -> Mapping[str, Spec]:
        """Return every parameter and buffer."""
        ...

    def layers(self) -> Mapping[str, Layer]:
        """Return the layers whose weights have a kind."""
        ...


def make_channels(
    comm: CommSettings, task: Described, world: int, backend: str | None = None, compiles: bool = False
) -> Channels:
    """All channels of a run.

    Args:
        comm: the communication mode.
        task: whose gradients are sent, or another model's description.
        world: number of ranks.
        backend: "torch" or "jax"; None: without a framework, for a plan.
        compiles: whether torch compiles the codecs' kernels.

    Raises:
        UserError: for parts that do not fit together, with the reason.
    """
    make = functools.partial(make_channel, backend=backend, compiles=compiles)
    kinds = {name: make(merge_channel(comm, node)) for name, node in comm.kinds.items()}
    parameter_kinds = find_kinds(task)
    for name in kinds:
        if name not in (choices := {*parameter_kinds.values(), "linear", "conv2d", "embedding", "batchnorm", REST}):
            raise UserError(f"comm.kinds.{name}: no such kind of layer; {suggest_names(name, choices)}")
    default = make(comm)
    factors = make(merge_channel(comm, comm.factors).model_copy(update={"feedback": False}))
    if factors.codec.draws:
        raise UserError(
            "comm.factors.codec: rounds at random, which refreshes of factors do not support; "
            "set a codec that rounds to nearest"
        )
    _no_options(comm.schedule, "comm.schedule")
    return Channels(
        default=default,
        factors=factors,
        symmetric=comm.factors.symmetric,
        schedule=_schedule(comm.schedule, backend),
        delays=comm.schedule.member.REMEMBERS,
        overlaps=vars(comm.schedule.member).get("OVERLAPS", False),
        kinds=kinds,
        kind_of=parameter_kinds,
        bucket_bytes=round(comm.bucket_mib * MEBI),
        locals=count_ranks_per_host(comm.ranks_per_host, world) if comm.topology.member.LEVELS > 1 else None,
    )


def make_modes(
    comm: CommSettings, task: Described, world: int, backend: str | None, compiles: bool = False
) -> dict[str, Channels]:
    """Return the channels of each mode: of each candidate of a policy, or without a policy of the preset alone.

    Args:
        comm: the communication mode.
        task: whose gradients are sent.
        world: number of ranks.
        backend: "torch" or "jax"; None: only check.
        compiles: whether torch compiles the codecs' kernels.

    Raises:
        UserError: for parts that do not fit together, or a candidate that cannot replace another during a run.
    """
    make = functools.partial(make_channels, task=task, world=world, backend=backend, compiles=compiles)
    if not comm.policy:
        return {comm.name: make(comm)}
    _policy(comm.policy, list(comm.candidates), sorted(set(find_kinds(task).values())))
    ranks_of_host = make(comm).locals
    candidates = {name: make(node) for name, node in comm.candidates.items()}
    for name, candidate in candidates.items():
        if keeps_state(comm.candidates[name]):
            raise UserError(
                f"comm.candidates.{name}: keeps residuals or delayed gradients, which no other mode can use"
            )
        if candidate.locals != ranks_of_host:
            raise UserError(f"comm.candidates.{name}: groups ranks in another way than comm.topology; set the same")
    return candidates


def mix_modes(candidates: Mapping[str, Channels], mode: str | Mapping[str, str]) -> Channels:
    """Return the channels of a mode: those of one candidate, or of one candidate for each kind of parameter."""
    if isinstance(mode, str):
        return candidates[mode]
    kinds = {kind: candidates[name].kinds.get(kind, candidates[name].default) for kind, name in mode.items()}
    return replace(candidates[next(iter(mode.values()))], kinds=kinds)


def merge_channel(comm: CommSettings, changes: ChannelSettings) -> CommSettings:
    """Return the settings of a channel that differs from those of `comm`."""
    values = {name: getattr(changes, name) for name in ChannelSettings.model_fields}
    return comm.model_copy(update={name: value for name, value in values.items() if value is not None})


def keeps_state(comm: CommSettings) -> bool:
    """Return whether anything is kept from step to step: residuals, or gradients that are sent later."""
    feedback = comm.feedback or any(kind.feedback for kind in comm.kinds.values())
    return feedback or comm.schedule.member.REMEMBERS


def make_channel(comm: CommSettings, backend: str | None, compiles: bool = False) -> Channel:
    """One channel.

    Raises:
        UserError: for parts that do not fit together.
    """
    _no_options(comm.algorithm, "comm.algorithm")
    _no_options(comm.topology, "comm.topology")
    parts = Channel(
        codec=make_codec(comm.codec, backend, compiles),
        inner=make_codec(comm.inner, backend, compiles),
        algorithm=_member(comm.algorithm, Algorithm, backend),
        topology=_member(comm.topology, Topology, backend),
        feedback=comm.feedback,
        piece_bytes=comm.piece_kib * KIBI or float("inf"),
    )
    if comm.inner.module != UNENCODED and comm.topology.member.LEVELS == 1:
        raise UserError(
            f"codec {_short(comm.inner.module)} within a host: topology {_short(comm.topology.module)} has one level, "
            "and does not use it; set comm.inner=float32, or comm.topology=two_level"
        )
    if comm.algorithm.member.CLOSED and (parts.feedback or not parts.codec.closed):
        pair = f"codec {_short(comm.codec.module)} with algorithm {_short(comm.algorithm.module)}"
        why = (
            "its payloads cannot be added up"
            if not parts.codec.closed
            else "what is rounded off is not known to any rank"
        )
        raise UserError(f"{pair}: {why}; set comm.algorithm.module=suite.comm.algorithms.all_to_all")
    return parts


def make_codec(part: Part, backend: str | None, compiles: bool = False) -> Codec:
    """A codec with its options.

    Raises:
        UserError: for an option that it does not have, or a value out of its range.
    """
    check(part.module, Member, part.member)
    codec: Codec = part.build(backend)
    return replace(codec, compiles=compiles)


def count_local_ranks(world: int) -> int:
    """Return the ranks of this host: LOCAL_WORLD_SIZE, where a launcher such as torchrun sets it, else all.

    Raises:
        UserError: where LOCAL_WORLD_SIZE is no number of ranks.
    """
    text = os.environ.get("LOCAL_WORLD_SIZE", str(world))
    if not text.isdecimal() or not int(text):
        raise UserError(f"LOCAL_WORLD_SIZE={text}: must be the number of ranks of this host; unset it, or set a number")
    return int(text)


def count_ranks_per_host(asked: int | str, world: int) -> int:
    """Ranks of one host; `auto` is torchrun's value, or without torchrun all ranks.

    Raises:
        UserError: where the world is no multiple of it.
    """
    try:
        ranks = count_local_ranks(world) if asked == "auto" else int(asked)
    except ValueError as error:
        raise UserError(f"comm.ranks_per_host={asked}: must be auto or a whole number") from error
    if ranks < 1 or world % ranks:
        raise UserError(f"comm.ranks_per_host={ranks}: world={world} is no multiple of it")
    return ranks


def find_kinds(task: Described) -> dict[str, str]:
    """Each parameter's kind, in the model's order: the kind of the layer for a weight, else `other`."""
    weights = {layer.parameters[0]: layer.kind for layer in task.layers().values()}
    return {name: weights.get(name, REST) for name, spec in task.shapes().items() if spec.kind == "parameter"}


def _schedule(part: Part, backend: str | None) -> ModuleType:
    """A schedule's file for one backend; without a backend, its module.

    Raises:
        UserError: naming what it lacks.
    """
    module, common = part.module, part.member
    check(module, Schedule, common, later=("projected",))  # only `suite plan` needs it
    if backend is None:
        return common
    half, name = part.implementation(backend), IN_SCHEDULES[backend]
    if name not in vars(half):
        hint = "suite.comm.contract.Schedule says what it is"
        raise UserError(f"schedule {module}: {backend}.py has no {name}; add it ({hint})")
    return half


def _member(part: Part, protocol: type, backend: str | None) -> Any:
    """An algorithm or topology as one backend runs it; without a backend only its attributes and traffic are used."""
    module, common = part.module, part.member
    if backend is None:
        check(module, protocol, common, later=IN_FRAMEWORK_FILES)
        return common
    member = part.implementation(backend)
    check(module, protocol, common, member)
    return member


def _policy(part: Part, candidates: list[str], kinds: list[str]) -> None:
    """Check a policy and its options; the generator that `decide` returns is not started."""
    check(part.module, Policy, part.member)
    start = Situation(0, 0, (), float("inf"))
    part.call(part.member.decide, candidates, kinds, start, place="comm.policy")


def _no_options(part: Part, place: str) -> None:
    """Reject options of a part that has none: only codecs and policies have options."""
    for option in part.options():
        raise UserError(f"{place}.{option}: {_short(part.module)} has no such option; leave it out")


def _short(module: str) -> str:
    return module.rpartition(".")[2]
