"""Shots on an even time grid: their division into splits, their training targets, and their streams of chunks."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from suite.contract import Data, UserError
from suite.tasks._data import order
from suite.tasks.frnn.signals import POSITIVE, UNSCALED

SPREAD = 100.0  # a scaled signal is clipped to ± this (plasma-python, norm_stat_range)
LONGEST = 1000.0  # seconds until the disruption, for a shot without one (plasma-python, T_max)
SPLIT_SEED = 0  # of the random split into training and test shots: the same in every run


@dataclass(frozen=True)
class Channels:
    """Numbers of one time step: the 0D signals, then each profile's points from the axis outwards."""

    signals: tuple[str, ...]
    profiles: tuple[str, ...]
    radii: int

    @property
    def width(self) -> int:
        """Number of values per time step."""
        return len(self.signals) + len(self.profiles) * self.radii

    def parts(self) -> dict[str, slice]:
        """Return the columns of each signal and profile."""
        columns = {name: slice(place, place + 1) for place, name in enumerate(self.signals)}
        first = len(self.signals)
        for name in self.profiles:
            columns[name] = slice(first, first + self.radii)
            first += self.radii
        return columns


@dataclass(frozen=True)
class Shots:
    """All usable shots of one list, as measured, concatenated.

    Attributes:
        machine: of the shots; each machine has its own scale.
        values: (all steps, channels.width) float32, in memory or mapped from a file.
        starts: (shots + 1,) the first row of each shot, and the end of the last.
        disrupted: (shots,) whether the shot ends in a disruption, at its last step.
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
    """A source of shots."""

    channels: Channels
    dt: float  # seconds per step
    machines: tuple[str, ...]  # lists of shots, by name
    train_share: float  # share of training shots in a list that serves for both training and test

    def shots(self, machine: str) -> Shots:
        """Return the shots of one list."""
        ...

    def data(self) -> Data:
        """Describes the shots; `samples` counts shots."""
        ...


class Split:
    """Shots of one or several lists, scaled.

    The scale of a signal is the median over shots of its standard deviation within a shot; a profile has one scale for
    all radii. No mean is subtracted. q95 and constant signals are not scaled.

    Args:
        parts: for each list, its shots and the rows that belong to the split.
        scales: (channels.width,) by machine.
        channels: the numbers of a step.
    """

    def __init__(self, parts: Sequence[tuple[Shots, np.ndarray]], scales: dict[str, np.ndarray], *, channels: Channels):
        self._places = [(shots, int(row)) for shots, rows in parts for row in rows]
        self._scales, self._parts = scales, channels.parts()
        self.steps = np.concatenate([np.diff(shots.starts)[rows] for shots, rows in parts])
        self.disrupted = np.concatenate([shots.disrupted[rows] for shots, rows in parts])

    def __len__(self) -> int:
        return len(self._places)

    def read(self, shot: int, steps: slice = slice(None)) -> np.ndarray:
        """Scaled values of one shot, or some steps of it: (steps, channels.width) float32."""
        values = np.array(self.raw(shot, steps)[None], np.float32)
        self.rescale(values, [shot])
        return values[0]

    def raw(self, shot: int, steps: slice) -> np.ndarray:
        """Measured values of some steps of one shot, without scaling."""
        shots, row = self._places[shot]
        return shots.shot(row)[steps]

    def rescale(self, values: np.ndarray, chosen: Iterable[int]) -> None:
        """Scale measured values (n, steps, channels.width) of n chosen shots, in place."""
        for name in POSITIVE:
            if name in self._parts:
                part = values[..., self._parts[name]]
                np.maximum(part, 0, out=part)
        values /= np.stack([self._scales[self._places[shot][0].machine] for shot in chosen])[:, None]
        np.clip(values, -SPREAD, SPREAD, out=values)


def compute_scales(parts: Sequence[tuple[Shots, np.ndarray]], channels: Channels) -> np.ndarray:
    """Return the scale of each channel over the shots of one machine, (channels.width,) float32."""
    columns = channels.parts()
    spreads = [
        [shots.shot(row)[:, part].std(dtype=np.float64) for part in columns.values()]
        for shots, rows in parts
        for row in rows
    ]
    scales = np.ones(channels.width, np.float32)
    for (name, part), median in zip(
        columns.items(), np.median(spreads, 0) if spreads else np.ones(len(columns)), strict=True
    ):
        if name not in UNSCALED and median > 0:
            scales[part] = median
    return scales


def split_shots(source: Source, protocol: str, *, glimpse: int) -> dict[str, Split]:
    """Divide shots into training and validation (Kates-Harbeck et al. 2019, table 1).

    - `single`: the first machine, split at random.
    - `cross`: train on the first machine, test on the second.
    - `glimpse`: like cross, but `glimpse` random shots of the second machine are used for training.

    A machine's scale comes from its training shots. A machine without training shots is scaled by its test shots,
    without their labels, as in plasma-python.

    Raises:
        UserError: if there are too few machines for the protocol, or both lists have the same shot.
    """
    needed = 1 if protocol == "single" else 2
    if len(source.machines) < needed:
        raise UserError(
            f"task.protocol={protocol} needs {needed} lists of shots, but there are only "
            f"{', '.join(source.machines) or 'none'}; "
            "set task.sources.archive.options.machines=[TRAIN,TEST], or task.protocol=single"
        )
    home = source.shots(source.machines[0])
    rows = order.draw_permutation(len(home), seed=SPLIT_SEED, epoch=0)
    if protocol == "single":
        count = round(source.train_share * len(home))
        train, valid = [(home, rows[:count])], [(home, rows[count:])]
    else:
        away = source.shots(source.machines[1])
        if home.machine == away.machine and len(both := np.intersect1d(home.numbers, away.numbers)):
            raise UserError(
                f"shot {both[0]} is in both lists, {' and '.join(source.machines[:2])}; its training steps would be "
                "test steps, too. Remove it from one list"
            )
        others = order.draw_permutation(len(away), seed=SPLIT_SEED, epoch=0)
        seen = glimpse if protocol == "glimpse" else 0
        train = [(home, rows), (away, others[:seen])] if seen else [(home, rows)]
        valid = [(away, others[seen:])]
    scales = {}
    for machine in {shots.machine for shots, _ in [*train, *valid]}:
        training = [part for part in train if part[0].machine == machine]
        scales[machine] = compute_scales(
            training or [part for part in valid if part[0].machine == machine], source.channels
        )
    return {
        name: Split(parts, scales, channels=source.channels) for name, parts in (("train", train), ("valid", valid))
    }


def check_splits(splits: dict[str, Split]) -> None:
    """Check that splits can be trained on and scored.

    Raises:
        UserError: if there are no training shots, or not both kinds of test shots.
    """
    test = splits["valid"].disrupted
    if not len(splits["train"]) or not 0 < test.sum() < len(test):
        raise UserError(
            f"{len(splits['train'])} training and {len(test)} test shots, {test.sum()} of these disruptive; an ROC "
            "curve needs disruptive and other test shots. Add shots to the lists"
        )


def compute_targets(kind: str, steps: int, disrupted: bool, *, dt: float, warning: float) -> np.ndarray:
    """Return the target of each step of a shot, (steps,) float32, larger towards a disruption.

    With u the logarithm of the time until the disruption, log10(t_end - t + dt / 10):

    - `hinge`: 1 if u is below log10(warning), else -1;
    - `ttd`: -min(u, log10(warning)).
    """
    until = dt * np.arange(steps)[::-1] if disrupted else np.full(steps, LONGEST)
    logarithm, limit = np.log10(until.clip(0, LONGEST) + dt / 10), np.log10(warning)
    values = np.where(logarithm < limit, 1.0, -1.0) if kind == "hinge" else -np.minimum(logarithm, limit)
    return values.astype(np.float32)


class Streams:
    """Endless queues of whole shots, cut into chunks of equal length; a batch contains one chunk of each stream.

    In every epoch, in random order, each shot is assigned to the stream that is free first (the lowest one at a tie),
    and occupies it for as many batches as it has chunks. No shot is dropped, shortened or read twice in an epoch, and
    no stream is idle. The assignment is a pure function of the arguments; it is computed when needed, and stored.

    Args:
        chunks: (shots,) chunks of each shot.
        streams: number of parallel streams.
        seed: the run's seed.
    """

    def __init__(self, chunks: np.ndarray, *, streams: int, seed: int):
        self._chunks, self._seed, self._epochs = chunks, seed, 0
        self._free = np.zeros(streams, np.int64)  # the batch at which each stream's queue ends
        self._starts: list[list[int]] = [[] for _ in range(streams)]
        self._shots: list[list[int]] = [[] for _ in range(streams)]

    def at(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Shot and chunk of each stream in batch `index`, (streams,) int64 each; a chunk of 0 begins a shot."""
        while self._free.min() <= index:
            self._extend()
        places = [bisect_right(starts, index) - 1 for starts in self._starts]
        shots = np.array([shots[place] for shots, place in zip(self._shots, places, strict=True)])
        begun = np.array([starts[place] for starts, place in zip(self._starts, places, strict=True)])
        return shots, index - begun

    def _extend(self) -> None:
        for shot in order.draw_permutation(len(self._chunks), seed=self._seed, epoch=self._epochs):
            stream = int(self._free.argmin())
            self._starts[stream].append(int(self._free[stream]))
            self._shots[stream].append(int(shot))
            self._free[stream] += self._chunks[shot]
        self._epochs += 1
