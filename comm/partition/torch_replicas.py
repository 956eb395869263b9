"""Averages over the ranks of one stage, in torch."""

import itertools
from dataclasses import replace

from torch import Tensor

from suite.comm.channel import REST, Channels
from suite.comm.partition.peers import met
from suite.comm.partition.placement import Grid
from suite.comm.reduce.torch import Reduce
from suite.comm.transport import Ledger
from suite.comm.transport.torch import Transport
from suite.contract import UserError


class Replicas:
    """The ranks that hold this rank's stage, over all pipelines. Every rank of the run makes its own at the same time.

    Args:
        grid: the ranks of all stages.
        stage: of this rank.
        ledger: counts the bytes, as `averages`.
        channels: how gradients are averaged; None: exactly, in their own type.
        deadline: seconds that a rank waits for another; None: torch's default.

    Attributes:
        transport: between these ranks.
        residuals: of error feedback, by name; they belong to this rank.

    Raises:
        UserError: if the channels have two levels, and the hosts have different numbers of these ranks.
    """

    def __init__(
        self, grid: Grid, stage: int, ledger: Ledger, channels: Channels | None = None, deadline: float | None = None
    ):
        self.stage, self.channels = stage, channels
        groups = [grid.group(number) for number in range(len(grid.replicas))]
        locals = channels.locals if channels else None
        if locals:
            check_hosts(groups, locals)
        self.transport = Transport(ledger, None, deadline).among(groups, locals)
        self.residuals: dict[str, Tensor] = {}

    def mean(self, shares: dict[str, Tensor], key: tuple[int, int]) -> dict[str, Tensor]:
        """The mean over these ranks.

        Args:
            shares: of this rank, by name of the parameter; the same names in the same order on all of these ranks.
            key: (seed, step), for codecs that draw random numbers.

        Raises:
            PeerLost: if another rank ended or did not answer.
        """
        if self.transport.world == 1:
            return shares
        words = f"a rank of stage {self.stage} while averaging gradients"
        return met(words, lambda: self._coded(self.channels, shares, key) if self.channels else self._exact(shares))

    def _exact(self, shares: dict[str, Tensor]) -> dict[str, Tensor]:
        """The mean in the type of the shares."""
        sums = {name: self.transport.all_reduce("averages", share) for name, share in shares.items()}
        return {name: self.transport.averaged(total) for name, total in sums.items()}

    def _coded(self, channels: Channels, shares: dict[str, Tensor], key: tuple[int, int]) -> dict[str, Tensor]:
        """The mean through channels; a parameter whose kind they do not know is sent as `other`."""
        kinds = {name: channels.kind_of.get(name, REST) for name in shares}
        reduce = Reduce(self.transport, replace(channels, kind_of=kinds))
        reduce.key, reduce.state = key, self.residuals
        return reduce.mean(f"averages/{self.stage}", shares, gradients=True)


def check_hosts(groups: list[list[int]], locals: int) -> None:
    """Check that each stage has equally many ranks on all of its hosts.

    Args:
        groups: ranks of each stage.
        locals: ranks of one host.

    Raises:
        UserError: if it has not.
    """
    for stage, ranks in enumerate(groups):
        counts = [len(list(members)) for _, members in itertools.groupby(ranks, lambda rank: rank // locals)]
        if len(set(counts)) > 1:
            raise UserError(
                f"stage {stage} has {' and '.join(map(str, counts))} ranks on hosts of {locals} ranks; a mode with two "
                "levels needs equally many; type comm.topology.module=suite.comm.topologies.flat"
            )
