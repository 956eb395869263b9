"""From a run's configuration to its channels: which codec, algorithm and topology carry what, in one backend."""

import functools
import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from suite import load
from suite.comm.channel import REST, Channel, Channels
from suite.comm.codecs._codec import Codec
from suite.contract import Task, UserError

KIBI, MEBI = 2**10, 2**20


def channels(
    comm: dict[str, Any], task: Task, world: int, backend: str | None = None, compiles: bool = False
) -> Channels:
    """How a run's values travel.

    Args:
        comm: the configuration's node of that name; conf/comm/float32.yaml says what stands in it.
        task: whose gradients travel.
        world: number of ranks.
        backend: whose halves are loaded; None for the framework-free ones, which can be planned with but not run.
        compiles: whether torch compiles the codecs' kernels.

    Raises:
        UserError: for parts that do not fit together, with the reason.
    """
    made = functools.partial(channel, backend=backend, compiles=compiles)
    kinds = {name: made(comm | node) for name, node in comm["kinds"].items()}
    known = kind_of(task)
    for name in kinds:
        if name not in (choices := {*known.values(), "linear", "conv2d", "embedding", "batchnorm", REST}):
            raise UserError(f"comm.kinds.{name}: no such kind of layer; {load.nearest(name, choices)}")
    default, factors = made(comm), made(comm | comm["factors"] | {"feedback": False})
    if factors.codec.draws:
        raise UserError("comm.factors.codec: draws random numbers, of which a refresh has none; type one that rounds")
    levels = load.common(comm["topology"]["module"]).LEVELS
    return Channels(
        default=default,
        factors=factors,
        symmetric=comm["factors"]["symmetric"],
        schedule=_member(comm["schedule"]["module"], backend),
        kinds=kinds,
        kind_of=known,
        bucket_bytes=comm["bucket_mib"] * MEBI,
        locals=ranks_per_host(comm["ranks_per_host"], world) if levels > 1 else None,
    )


def modes(comm: dict[str, Any], task: Task, world: int, backend: str, compiles: bool = False) -> dict[str, Channels]:
    """All that a policy chooses from, by name; only the preset itself, under its own name, where there is none.

    With `compiles` the codecs' kernels are compiled, in torch; in jax everything is.

    Raises:
        UserError: for a candidate that cannot be changed for another on the way.
    """
    made = functools.partial(channels, task=task, world=world, backend=backend, compiles=compiles)
    if not comm["policy"]:
        return {comm["name"]: made(comm)}
    levels = made(comm).locals
    found = {name: made(node) for name, node in comm["candidates"].items()}
    for name, each in found.items():
        if remembers(comm["candidates"][name]):
            raise UserError(f"comm.candidates.{name}: keeps residuals or late gradients, which no other mode can use")
        if each.locals != levels:
            raise UserError(f"comm.candidates.{name}: groups ranks in another way than comm.topology; type the same")
    return found


def mixed(found: Mapping[str, Channels], mode: str | Mapping[str, str]) -> Channels:
    """The channels of a mode: one candidate's, or a candidate's for each kind of parameter."""
    if isinstance(mode, str):
        return found[mode]
    first = found[next(iter(mode.values()))]
    return replace(first, kinds={kind: found[name].kinds.get(kind, found[name].default) for kind, name in mode.items()})


def remembers(comm: Mapping[str, Any]) -> bool:
    """Whether anything is kept from step to step: residuals, or gradients that are still to travel."""
    kinds = comm["kinds"].values()
    feedback = comm["feedback"] or any(node.get("feedback", False) for node in kinds)
    return feedback or load.common(comm["schedule"]["module"]).REMEMBERS


def channel(node: Mapping[str, Any], backend: str | None, compiles: bool = False) -> Channel:
    """One channel.

    Raises:
        UserError: for parts that do not fit together.
    """
    algorithm = node["algorithm"]["module"]
    made = Channel(
        codec=codec(node["codec"], backend, compiles),
        inner=codec(node["inner"], backend, compiles),
        algorithm=_member(algorithm, backend),
        topology=_member(node["topology"]["module"], backend),
        feedback=node["feedback"],
        piece_bytes=node["piece_kib"] * KIBI or float("inf"),
    )
    if load.common(algorithm).CLOSED and (made.feedback or not made.codec.closed):
        pair = f"codec {_short(node['codec']['module'])} with algorithm {_short(algorithm)}"
        why = (
            "its payloads cannot be added up"
            if not made.codec.closed
            else "what is rounded off is not known to any rank"
        )
        raise UserError(f"{pair}: {why}; type comm.algorithm.module=suite.comm.algorithms.all_to_all")
    return made


def codec(node: Mapping[str, Any], backend: str | None, compiles: bool = False) -> Codec:
    """A codec with its options.

    Raises:
        UserError: for an option that it does not have.
    """
    return replace(load.made(_member(node["module"], backend).make, node, "comm.codec"), compiles=compiles)


def ranks_per_host(asked: int | str, world: int) -> int:
    """Ranks of one host; `auto` is what torchrun says, and else all, on this one.

    Raises:
        UserError: where the world is no multiple of it.
    """
    found = int(os.environ.get("LOCAL_WORLD_SIZE", world)) if asked == "auto" else int(asked)
    if found < 1 or world % found:
        raise UserError(f"comm.ranks_per_host={found}: world={world} is no multiple of it")
    return found


def kind_of(task: Task) -> dict[str, str]:
    """Each parameter's kind, in the model's order: a layer's weight has the layer's kind, all else is `other`."""
    weights = {layer.parameters[0]: layer.kind for layer in task.layers().values()}
    return {name: weights.get(name, REST) for name, spec in task.shapes().items() if spec.kind == "parameter"}


def _member(module: str, backend: str | None) -> Any:
    return load.half(module, backend) if backend else load.common(module)


def _short(module: str) -> str:
    return module.rpartition(".")[2]
