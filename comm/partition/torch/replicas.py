"""Averages over the ranks of one stage, in torch."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from suite.comm.channel import REST, Channels
from suite.comm.partition.peers import guard_exchange
from suite.comm.partition.placement import Grid, ranks_per_host
from suite.comm.reduce.torch import Reduce
from suite.comm.schedules._base.torch import Schedule
from suite.comm.transport import Ledger
from suite.comm.transport.torch import Transport


class Replicas:
    """Ranks that hold this rank's stage, over all pipelines. Every rank of the run makes its own at the same time.

    Args:
        grid: the ranks of all stages.
        stage: of this rank.
        named: the stage's parameters, by name; the same on all of these ranks.
        ledger: counts the bytes, as `averages`.
        channels: how gradients are averaged; None: exactly, in their own type.
        deadline: seconds that a rank waits for another; None: torch's default.

    Attributes:
        transport: between these ranks.
        residuals: of error feedback, and delayed gradients, by name; they belong to this rank.

    Raises:
        UserError: if the channels have two levels, and the hosts have different numbers of these ranks.
    """

    def __init__(
        self,
        grid: Grid,
        stage: int,
        named: Mapping[str, Tensor],
        ledger: Ledger,
        channels: Channels | None = None,
        deadline: float | None = None,
    ):
        self.stage, self.named = stage, named
        groups = [grid.group(number) for number in range(len(grid.replicas))]
        locals = channels.locals if channels else None
        if locals:
            ranks_per_host(groups, locals)
        self.transport = Transport(ledger, None, deadline).among(groups, locals)
        self.residuals: dict[str, Tensor] = {}
        self._words = f"a rank of stage {stage} while averaging"
        self.schedule: Schedule | None = None
        if channels:
            self.use(channels)

    def use(self, channels: Channels) -> None:
        """Average through these channels from now on; a parameter whose kind they do not know is sent as `other`."""
        kinds = {name: channels.kind_of.get(name, REST) for name in self.named}
        reduce = Reduce(self.transport, replace(channels, kind_of=kinds))
        # a stage has all its gradients at once, and sends them while earlier stages compute
        make = Schedule if channels.overlaps else channels.schedule.make
        schedule: Schedule = make(reduce, self.named)
        schedule.name = f"averages/{self.stage}"
        self.schedule = schedule

    def begin(self, key: tuple[int, int]) -> None:
        """Begin a step; delayed gradients of the last one are sent while it computes.

        Args:
            key: (seed, step), for codecs that draw random numbers.
        """
        if self.schedule:
            self.schedule.reduce.key, self.schedule.reduce.state = key, self.residuals
            self.schedule.begin()

    def last_pass(self) -> contextlib.AbstractContextManager[None]:
        """A context for the last backward pass of a step, in which the rest of the delayed gradients is sent."""
        unused = torch.ones(())  # only schedules that send during the pass use the weight
        return self.schedule.watch(unused, parcels={}) if self.schedule else contextlib.nullcontext()

    def mean(self, sums: dict[str, Tensor], weight: Tensor) -> dict[str, Tensor]:
        """Return the mean over these ranks of `sums` / `weight`; with delayed gradients, that of the last step.

        Args:
            sums: of this rank, by name of the parameter; their memory is used again.
            weight: mean over these ranks of the weights of their samples, a scalar on the device.

        Raises:
            PeerLost: if another rank ended or did not answer.
        """
        if not sums:
            return {}
        mean = self.schedule.mean if self.schedule else self._exact
        return guard_exchange(self._words, lambda: mean(sums, weight))

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum over these ranks of an array, uncompressed; its memory is used again.

        Raises:
            PeerLost: if another rank ended or did not answer.
        """
        if self.transport.world == 1:
            return values
        return guard_exchange(self._words, lambda: self.transport.all_reduce("buffers", values))

    @torch.no_grad()
    def exchange(self, names: Sequence[str]) -> None:
        """Average some parameters as if they were gradients, and discard the result, to measure its time."""
        if schedule := self.schedule:
            values = {name: self.named[name].detach() for name in names}
            guard_exchange(self._words, lambda: schedule.reduce.mean(schedule.name, values, gradients=True))

    @torch.no_grad()
    def code(self, names: Sequence[str]) -> None:
        """Encode and decode some parameters as if they were gradients; nothing is sent."""
        if self.schedule:
            self.schedule.reduce.code({name: self.named[name].detach() for name in names})

    def _exact(self, sums: dict[str, Tensor], weight: Tensor) -> dict[str, Tensor]:
        """Return the mean in the type of the sums."""
        torch._foreach_div_(list(sums.values()), weight)
        if self.transport.world == 1:
            return sums
        totals = {name: self.transport.all_reduce("averages", share) for name, share in sums.items()}
        return {name: self.transport.averaged(total) for name, total in totals.items()}
