"""Shots on an even grid of time, end to end in one array; who trains on which of them; and what they are held to."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from suite.contract import Data, UserError
from suite.tasks._data import order
from suite.tasks.frnn.signals import POSITIVE, UNSCALED

PROTOCOLS = ("single", "cross", "glimpse")
TARGETS = ("hinge", "ttd")
SPREAD = 100.0  # a scaled signal is clipped to ± this (plasma-python, norm_stat_range)
LONGEST = 1000.0  # seconds until the disruption of a shot that has none (plasma-python, T_max)
SPLIT_SEED = 0  # of the random split into training and test shots: the same in every run


@dataclass(frozen=True)
class Channels:
    """What one time step holds: the 0D signals, and then each profile's points from the axis outwards."""

    signals: tuple[str, ...]
    profiles: tuple[str, ...]
    radii: int

    @property
    def width(self) -> int:
        """Numbers a time step."""
        return len(self.signals) + len(self.profiles) * self.radii

    def parts(self) -> dict[str, slice]:
        """Where each signal and profile stands."""
        found = {name: slice(place, place + 1) for place, name in enumerate(self.signals)}
        first = len(self.signals)
        for name in self.profiles:
            found[name] = slice(first, first + self.radii)
            first += self.radii
        return found


@dataclass(frozen=True)
class Shots:
    """All usable shots of one list, as measured, one after the other.

    Attributes:
        machine: where they were made; normalisation is by machine.
        values: (all steps, channels.width) float32, in memory or mapped from a file.
        starts: (shots + 1,) the first row of each shot, and the end.
        disrupted: (shots,) whether each ends in a disruption, at its last step.
        numbers: (shots,) the archive's numbers.
    """

    machine: str
    values: np.ndarray
    starts: np.ndarray
    disrupted: np.ndarray
    numbers: np.ndarray

    def __len__(self) -> int:
        return len(self.numbers)

    def shot(self, row: int) -> np.ndarray:
        """One shot, (steps, channels.width)."""
        return self.values[self.starts[row] : self.starts[row + 1]]


class Source(Protocol):
    """Where shots come from."""

    channels: Channels
    dt: float  # seconds a step
    machines: tuple[str, ...]  # lists of shots, by name
    train_share: float  # of a list that serves for both training and test

    def shots(self, machine: str) -> Shots:
        """The shots of one list."""
        ...

    def data(self) -> Data:
        """What was found; `samples` are counted in shots."""
        ...


class Split:
    """Shots of one or several lists, scaled.

    The scale of a signal is the median, over shots, of its standard deviation within a shot (a profile has one for
    all radii). Nothing is subtracted. q95 keeps its unit; a signal that never moves is left as it is.

    Args:
        parts: (shots, rows of them) of each list.
        scales: (channels.width,) by machine.
        channels: what a step holds.
    """

    def __init__(self, parts: Sequence[tuple[Shots, np.ndarray]], scales: dict[str, np.ndarray], *, channels: Channels):
        self._where = [(shots, int(row)) for shots, rows in parts for row in rows]
        self._scales, self._parts = scales, channels.parts()
        self.steps = np.concatenate([np.diff(shots.starts)[rows] for shots, rows in parts])
        self.disrupted = np.concatenate([shots.disrupted[rows] for shots, rows in parts])

    def __len__(self) -> int:
        return len(self._where)

    def read(self, shot: int, steps: slice = slice(None)) -> np.ndarray:
        """Scaled values of one shot, or some steps of it: (steps, channels.width) float32."""
        values = np.array(self.raw(shot, steps)[None], np.float32)
        self.rescale(values, [shot])
        return values[0]

    def raw(self, shot: int, steps: slice) -> np.ndarray:
        """The same as measured."""
        shots, row = self._where[shot]
        return shots.shot(row)[steps]

    def rescale(self, values: np.ndarray, chosen: Iterable[int]) -> None:
        """Scale measured values (n, steps, channels.width) of n chosen shots in their place."""
        for name in POSITIVE:
            if name in self._parts:
                part = values[..., self._parts[name]]
                np.maximum(part, 0, out=part)
        values /= np.stack([self._scales[self._where[shot][0].machine] for shot in chosen])[:, None]
        np.clip(values, -SPREAD, SPREAD, out=values)


def scale(parts: Sequence[tuple[Shots, np.ndarray]], channels: Channels) -> np.ndarray:
    """The spread of each channel over the shots of one machine, (channels.width,) float32."""
    where = channels.parts()
    spreads = [
        [shots.shot(row)[:, part].std(dtype=np.float64) for part in where.values()]
        for shots, rows in parts
        for row in rows
    ]
    found = np.ones(channels.width, np.float32)
    for (name, part), median in zip(
        where.items(), np.median(spreads, 0) if spreads else np.ones(len(where)), strict=True
    ):
        if name not in UNSCALED and median > 0:
            found[part] = median
    return found


def divide(source: Source, protocol: str, *, glimpse: int) -> dict[str, Split]:
    """Who trains on which shots (Kates-Harbeck et al. 2019, table 1).

    - `single`: the first machine, split at random.
    - `cross`: all of the first machine in training, all of the second in the test.
    - `glimpse`: as cross, but `glimpse` shots of the second, drawn at random, move over to training.

    A machine's scale is taken from its training shots; from its test shots, without their labels, where it has none
    in training, as plasma-python does.

    Raises:
        UserError: too few machines for the protocol.
    """
    if protocol not in PROTOCOLS:
        raise UserError(f"task.protocol={protocol}: unknown; one of {', '.join(PROTOCOLS)}")
    needed = 1 if protocol == "single" else 2
    if len(source.machines) < needed:
        raise UserError(
            f"task.protocol={protocol} needs {needed} lists of shots, here are {', '.join(source.machines) or 'none'}; "
            "type task.machines=[TRAIN,TEST], or task.protocol=single"
        )
    home = source.shots(source.machines[0])
    rows = order.permutation(len(home), seed=SPLIT_SEED, epoch=0)
    if protocol == "single":
        kept = round(source.train_share * len(home))
        train, valid = [(home, rows[:kept])], [(home, rows[kept:])]
    else:
        away = source.shots(source.machines[1])
        others = order.permutation(len(away), seed=SPLIT_SEED, epoch=0)
        seen = glimpse if protocol == "glimpse" else 0
        train = [(home, rows), (away, others[:seen])] if seen else [(home, rows)]
        valid = [(away, others[seen:])]
    scales = {}
    for machine in {shots.machine for shots, _ in [*train, *valid]}:
        own = [part for part in train if part[0].machine == machine]
        scales[machine] = scale(own or [part for part in valid if part[0].machine == machine], source.channels)
    return {
        name: Split(parts, scales, channels=source.channels) for name, parts in (("train", train), ("valid", valid))
    }


def require(splits: dict[str, Split]) -> None:
    """Refuse splits that cannot be trained on and scored.

    Raises:
        UserError: no training shots, or not both kinds of test shots.
    """
    test = splits["valid"].disrupted
    if not len(splits["train"]) or not 0 < test.sum() < len(test):
        raise UserError(
            f"{len(splits['train'])} training and {len(test)} test shots, {test.sum()} of these disruptive; an ROC "
            "curve needs both kinds. Add shots to the lists"
        )


def target(kind: str, steps: int, disrupted: bool, *, dt: float, warning: float) -> np.ndarray:
    """What the output is held to at each step of a shot, (steps,) float32, larger towards a disruption.

    With u the logarithm of the time until the disruption, log10(t_end - t + dt / 10):

    - `hinge`: 1 where u is below log10(warning), else -1;
    - `ttd`: -min(u, log10(warning)).
    """
    until = dt * np.arange(steps)[::-1] if disrupted else np.full(steps, LONGEST)
    logarithm, limit = np.log10(until.clip(0, LONGEST) + dt / 10), np.log10(warning)
    found = np.where(logarithm < limit, 1.0, -1.0) if kind == "hinge" else -np.minimum(logarithm, limit)
    return found.astype(np.float32)
