"""Averages over the ranks of one stage, and the losses on all ranks."""

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import jax
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from suite.comm.channel import REST, Channels
from suite.comm.partition.jax.stages import Device, Grads, divide_values
from suite.comm.partition.jax.tape import Tree
from suite.comm.reduce.jax import Reduce
from suite.comm.transport import Entry
from suite.comm.transport.jax import AXIS, Transport


class Replicas:
    """Ranks that hold the same arrays, each on its device.

    Args:
        devices: of the ranks.
        channels: how gradients are averaged; None: exactly, in their own type.
        seed: of codecs that draw random numbers.
        locals: how many of these ranks are on one host; None with one level.

    Attributes:
        entries: what each rank sent in the last average.
        residuals: of error feedback, (ranks, …) by name; empty before the first average.
    """

    def __init__(
        self,
        devices: Sequence[Device],
        channels: Channels | None = None,
        seed: int = 0,
        locals: int | None = None,
    ):
        self.devices, self.seed = list(devices), seed
        self.locals = locals
        mesh = Mesh(np.array(self.devices).reshape(-1, self.locals or len(self.devices)), AXIS)
        self.split, self.same = NamedSharding(mesh, P(AXIS)), NamedSharding(mesh, P())
        self.residuals: Grads = {}
        self.entries: list[Entry] = []
        self._maps: dict[str, Any] = {"mesh": mesh, "check_vma": False}
        self._sum = jax.jit(jax.shard_map(_sum, in_specs=P(AXIS), out_specs=P(), **self._maps))
        self._programs: dict[int, Any] = {}  # of each mode that was used
        self._sent: dict[tuple[int, frozenset[str]], list[Entry]] = {}  # what they send of these arrays
        self.use(channels)

    def use(self, channels: Channels | None) -> None:
        """Average through these channels from now on; their program is kept for the next time."""
        self.channels = channels
        if id(channels) not in self._programs:
            specs = {"in_specs": (P(AXIS), P(AXIS), P()), "out_specs": (P(), P(AXIS))}
            average = functools.partial(self._average, channels)
            code = functools.partial(self._coded, channels)
            coding = {"in_specs": (P(AXIS), P()), "out_specs": P(AXIS)}
            programs = [
                jax.jit(jax.shard_map(body, **spec, **self._maps)) for body, spec in ((average, specs), (code, coding))
            ]
            self._programs[id(channels)] = channels, *programs
        _, self._mean, self._code = self._programs[id(channels)]

    def mean(self, shares: Mapping[Device, Mapping[str, Array]], step: int) -> dict[Device, Grads]:
        """Return the mean over all ranks; with delayed gradients, that of the last step.

        Args:
            shares: of this process's ranks, by device.
            step: number of the step, for codecs that draw random numbers.

        Returns:
            The mean, on each of these devices.
        """
        if len(self.devices) == 1 and not (self.channels and self.channels.delays):
            return {device: divide_values(dict(share), np.float64(1)) for device, share in shares.items()}
        names = next(iter(shares.values()))
        stacked = {name: self._stacked([share[name] for share in shares.values()]) for name in names}
        key = jax.device_put(np.array([self.seed, step], np.uint32), self.same)
        means, self.residuals = self._mean(stacked, self.residuals, key)
        self.entries = self._sent[id(self.channels), frozenset(names)]
        return {device: {name: _on(mean, device) for name, mean in means.items()} for device in shares}

    def exchange(self, values: Mapping[Device, Mapping[str, Array]]) -> None:
        """Average arrays of this process's ranks, discard the result and wait, to measure the time."""
        if len(self.devices) > 1:
            residuals = self.residuals
            jax.block_until_ready(list(self.mean(values, 0).values()))
            self.residuals = residuals

    def code(self, values: Mapping[Device, Mapping[str, Array]]) -> None:
        """Encode and decode arrays of this process's ranks and wait; nothing is sent."""
        key = jax.device_put(np.array([self.seed, 0], np.uint32), self.same)
        names = next(iter(values.values()))
        stacked = {name: self._stacked([value[name] for value in values.values()]) for name in names}
        jax.block_until_ready(self._code(stacked, key))

    def held(self, device: Device) -> Grads:
        """Return the residuals (1, …) of the rank on a device of this process."""
        return {name: _on(value, device) for name, value in self.residuals.items()}

    def restore(self, parts: Mapping[Device, Mapping[str, Array]]) -> None:
        """Continue with the residuals that `held` returned for each of this process's devices."""
        names = next(iter(parts.values()))
        self.residuals = {name: self._stacked([part[name][0] for part in parts.values()]) for name in names}

    def sum(self, values: Mapping[Device, Array]) -> Array:
        """Return the sum over all ranks of an array of each, on this process's first device."""
        return _on(self.sums(values), next(iter(values)))

    def sum_each(self, values: Mapping[Device, Grads]) -> dict[Device, Grads]:
        """Return the sums over all ranks of each array, on each of this process's devices."""
        sums = self.sums(values)
        return {device: {name: _on(total, device) for name, total in sums.items()} for device in values}

    def sums(self, values: Mapping[Device, Tree]) -> Tree:
        """Return the sums over all ranks of the arrays of each, on every device."""
        return self._sum(jax.tree.map(lambda *parts: self._stacked(parts), *values.values()))

    def _stacked(self, values: Sequence[Array]) -> Array:
        """One array of all ranks, (world, …), from the values of this process's ranks."""
        shape = (len(self.devices), *values[0].shape)
        return jax.make_array_from_single_device_arrays(shape, self.split, [value[None] for value in values])

    def _average(self, channels: Channels | None, stacked: Grads, residuals: Grads, key: Array) -> tuple[Grads, Grads]:
        transport = Transport(len(self.devices), self.locals)
        shares = {name: value[0] for name, value in stacked.items()}
        chosen, channels = channels, channels and _known(channels, shares)
        reduce = Reduce(transport, cast(Channels, channels), state=residuals, key=key)
        means = channels.schedule.mean(reduce, shares) if channels else reduce.exact(shares)
        self._sent[id(chosen), frozenset(shares)] = transport.entries
        return means, reduce.state

    def _coded(self, channels: Channels | None, stacked: Grads, key: Array) -> Grads:
        values = {name: value[0] for name, value in stacked.items()}
        if channels is None:
            return stacked
        reduce = Reduce(Transport(len(self.devices), self.locals), _known(channels, values), state={}, key=key)
        return {name: value[None] for name, value in reduce.code(values).items()}


def _known(channels: Channels, names: Iterable[str]) -> Channels:
    """Return the channels, which send a parameter whose kind they do not know as `other`."""
    return replace(channels, kind_of={name: channels.kind_of.get(name, REST) for name in names})


def _sum(values: Tree) -> Tree:
    return jax.tree.map(lambda value: jax.lax.psum(value[0], AXIS), values)


def _on(value: Array, device: Device) -> Array:
    """Return the part of an array that is on a device."""
    return next(shard.data for shard in value.addressable_shards if shard.device == device)
