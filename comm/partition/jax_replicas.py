"""Averages over the ranks of one stage, and the losses on all ranks."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import jax
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from suite.comm.channel import REST, Channels
from suite.comm.partition.jax_stages import Device, Grads, divided
from suite.comm.reduce.jax import Reduce
from suite.comm.transport import Entry
from suite.comm.transport.jax import AXIS, Transport


class Replicas:
    """Ranks that hold the same arrays, each on its device.

    Args:
        devices: of the ranks.
        channels: how gradients are averaged; None: exactly, in their own type.
        seed: of codecs that draw random numbers.

    Attributes:
        entries: what each rank sends in one average.
        residuals: of error feedback, (ranks, …) by name; empty before the first average.
    """

    def __init__(self, devices: Sequence[Device], channels: Channels | None = None, seed: int = 0):
        self.devices, self.channels, self.seed = list(devices), channels, seed
        self.locals = channels.locals if channels else None
        mesh = Mesh(np.array(self.devices).reshape(-1, self.locals or len(self.devices)), AXIS)
        self.split, self.same = NamedSharding(mesh, P(AXIS)), NamedSharding(mesh, P())
        self.residuals: Grads = {}
        self.entries: list[Entry] = []
        maps: dict[str, Any] = {"mesh": mesh, "check_vma": False}
        specs = {"in_specs": (P(AXIS), P(AXIS), P()), "out_specs": (P(), P(AXIS))}
        self._mean = jax.jit(jax.shard_map(self._average, **specs, **maps))
        self._sum = jax.jit(jax.shard_map(_sum, in_specs=P(AXIS), out_specs=P(), **maps))

    def mean(self, shares: Mapping[Device, Mapping[str, Array]], step: int) -> dict[Device, Grads]:
        """The mean over all ranks.

        Args:
            shares: of this process's ranks, by device.
            step: number of the step, for codecs that draw random numbers.

        Returns:
            The mean, on each of these devices.
        """
        if len(self.devices) == 1:
            return {device: divided(dict(share), np.float64(1)) for device, share in shares.items()}
        names = next(iter(shares.values()))
        stacked = {name: self._stacked([share[name] for share in shares.values()]) for name in names}
        key = jax.device_put(np.array([self.seed, step], np.uint32), self.same)
        means, self.residuals = self._mean(stacked, self.residuals, key)
        return {device: {name: _on(mean, device) for name, mean in means.items()} for device in shares}

    def held(self, device: Device) -> Grads:
        """The residuals (1, …) of the rank on a device of this process."""
        return {name: _on(value, device) for name, value in self.residuals.items()}

    def restore(self, parts: Mapping[Device, Mapping[str, Array]]) -> None:
        """Continue with the residuals that `held` returned for each of this process's devices."""
        names = next(iter(parts.values()))
        self.residuals = {name: self._stacked([part[name][0] for part in parts.values()]) for name in names}

    def sum(self, values: Mapping[Device, Array]) -> Array:
        """The sum over all ranks of an array of each, on this process's first device."""
        return _on(self.sums(values), next(iter(values)))

    def sums(self, values: Mapping[Device, Array]) -> Array:
        """The sum over all ranks of an array of each, on every device."""
        return self._sum(self._stacked(list(values.values())))

    def _stacked(self, values: Sequence[Array]) -> Array:
        """One array of all ranks, (world, …), from the values of this process's ranks."""
        shape = (len(self.devices), *values[0].shape)
        return jax.make_array_from_single_device_arrays(shape, self.split, [value[None] for value in values])

    def _average(self, stacked: Grads, residuals: Grads, key: Array) -> tuple[Grads, Grads]:
        transport = Transport(len(self.devices), self.locals)
        shares = {name: value[0] for name, value in stacked.items()}
        channels = self.channels
        if channels:  # a parameter whose kind they do not know is sent as `other`
            channels = replace(channels, kind_of={name: channels.kind_of.get(name, REST) for name in shares})
        reduce = Reduce(transport, cast(Channels, channels), state=residuals, key=key)
        means = reduce.mean("gradients", shares, gradients=True) if channels else reduce.exact(shares)
        self.entries = transport.entries
        return means, reduce.state


def _sum(values: Array) -> Array:
    return jax.lax.psum(values[0], AXIS)


def _on(value: Array, device: Device) -> Array:
    """The part of an array that is on a device."""
    return next(shard.data for shard in value.addressable_shards if shard.device == device)
