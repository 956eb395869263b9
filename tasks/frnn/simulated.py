"""A source of simulated shots."""

from collections.abc import Sequence

import numpy as np

from suite.contract import Data, UserError
from suite.tasks.frnn import simulator
from suite.tasks.frnn.shots import Channels, Shots
from suite.tasks.frnn.signals import ONE_D, ZERO_D


class Simulated:
    """Shots of the simulated machines `near` and `far`; see `simulator`.

    Args:
        machines: the first is for training; the second is for the test across machines.
        shots: number of shots of each machine.
        radii: points of a profile.
        train_share: share of training shots, if one machine serves for both training and test.
    """

    dt = simulator.DT

    def __init__(self, *, machines: Sequence[str], shots: int, radii: int, train_share: float):
        if unknown := set(machines) - set(simulator.DEVICES):
            raise UserError(
                f"task.machines: no simulated machine is called {unknown.pop()}; choose from "
                f"{', '.join(simulator.DEVICES)}"
            )
        self.machines, self.train_share = tuple(machines), train_share
        self.channels, self._shots = Channels(ZERO_D, ONE_D, radii), shots

    def shots(self, machine: str) -> Shots:
        """Return the simulated shots of one machine."""
        world = simulator.simulate_shots(machine, self._shots, self.channels.radii)
        values = np.concatenate([shot[:steps] for shot, steps in zip(world.values, world.steps, strict=True)])
        starts = np.concatenate([[0], np.cumsum(world.steps)])
        return Shots(machine, values, starts, world.disrupted, np.arange(len(world.steps)))

    def data(self) -> Data:
        """Return the generator's version and size."""
        return Data(
            kind="generated",
            name="disruptions",
            identity=f"disruptions-{simulator.WORLD}/{'-'.join(self.machines)}/{self._shots}/{self.channels.radii}r",
            samples={machine: self._shots for machine in self.machines},
            unit="shots",
            note="simulated shots: a stand-in that shows patterns, not what a tokamak's alarm is worth",
        )


make = Simulated
