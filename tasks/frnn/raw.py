"""Resamples measured signals, each with its own times, to one shot on an even grid, by plasma-python's rules.

A shot that breaks a rule raises `Unusable`, which names the file and, if possible, the line.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from suite.tasks.frnn.shots import Channels
from suite.tasks.frnn.signals import find_machine

AFTER_CURRENT = 0.05  # seconds that are kept after the plasma current has ended, for the disruption
CUT_OFF = "the file ends within this line; if the line is complete, add a newline"
SLACK = 1e-6  # share of a step: a sample at a grid point belongs to it despite rounding


class Unusable(Exception):
    """A shot that cannot be used, with the place and the reason."""


@dataclass(frozen=True)
class Entry:
    """A line of a shot list.

    Attributes:
        machine: where the shot was made.
        number: of the shot.
        disruption: time of the disruption in seconds; None without one.
        where: file and line.
    """

    machine: str
    number: int
    disruption: float | None
    where: str


@dataclass(frozen=True)
class Series:
    """A signal as measured.

    Attributes:
        time: (samples,) seconds.
        values: (samples, points), one point for a 0D signal.
        radius: (samples, points) normalised radius of a profile's points; None for a 0D signal.
        where: the file.
    """

    time: np.ndarray
    values: np.ndarray
    radius: np.ndarray | None
    where: str


class Reader(Protocol):
    """One format's files."""

    shifted: bool  # whether the times include the causal shifts

    def lists(self) -> dict[str, list[Entry]]:
        """Shots by the name of their list."""
        ...

    def files(self, entry: Entry, channels: Channels) -> list[str]:
        """Return the files of a shot, as paths from the directory."""
        ...

    def read(self, entry: Entry, name: str, *, profile: bool) -> Series:
        """One signal, or profile, of one shot.

        Raises:
            Unusable: if it is missing or damaged.
        """
        ...


def resample_shot(reader: Reader, entry: Entry, channels: Channels, *, dt: float, shortest: int) -> np.ndarray:
    """Resample one shot: (steps, channels.width) float32, every `dt` from the latest start to the earliest end.

    A disruptive shot ends at the disruption; each of its signals may end earlier by its tolerance. Each step has the
    last value at or before it. Values are not interpolated in time, because that would use later values.

    Raises:
        Unusable: if a signal is missing, empty, all zero, ends too early or contains NaN; if a profile's values and
            radii differ in number; if there is no current; or if the shot has at most `shortest` steps.
    """
    archive = find_machine(entry.machine)
    signals: dict[str, Series] = {}
    start, end = -np.inf, np.inf
    for name in (*channels.signals, *channels.profiles):
        series = _whole(name, reader.read(entry, name, profile=name in channels.profiles))
        if name == "ip":
            series = _with_current(series, archive.current)
        if series.radius is not None:
            series = _remapped(series, channels.radii)
        shift = 0.0 if reader.shifted else archive.shifts.get(name, 0.0)
        signals[name] = series = Series(series.time + shift, series.values, None, series.where)
        last = series.time[-1] + (archive.tolerances.get(name, 0.0) if entry.disruption is not None else 0.0)
        if entry.disruption is not None and last < entry.disruption - SLACK * dt:
            early = entry.disruption - last
            raise Unusable(f"{series.where}: {name} ends {early:.3g} s too early before the disruption ({entry.where})")
        start, end = max(start, series.time[0]), min(end, last)
    end = entry.disruption if entry.disruption is not None else end
    steps = int(np.ceil((end - start) / dt - SLACK)) if end > start else 0
    if steps <= shortest:
        raise Unusable(f"{entry.where}: shot {entry.number} has {steps} steps, but needs {shortest + 1}")
    grid = start + dt * np.arange(steps)
    columns = []
    for series in signals.values():
        rows = np.searchsorted(series.time, grid + SLACK * dt, side="right") - 1
        columns.append(series.values[rows.clip(0)])
    return np.concatenate(columns, 1).astype(np.float32)


def _whole(name: str, series: Series) -> Series:
    """Check a signal, and sort it by time."""
    if len(series.time) < 2:
        raise Unusable(f"{series.where}: {name} has {len(series.time)} samples, but needs 2")
    if not np.isfinite(series.time).all() or not np.isfinite(series.values).all():
        row = int(np.argmin(np.isfinite(series.time) & np.isfinite(series.values).all(1)))
        raise Unusable(f"{series.where}: {name} contains NaN, first in sample {row + 1}")
    if series.radius is not None and series.radius.shape != series.values.shape:
        shapes = f"{series.radius.shape} radii for {series.values.shape} values"
        raise Unusable(f"{series.where}: {name} has {shapes}; each value needs its radius")
    if not series.values.any():
        raise Unusable(f"{series.where}: {name} is always zero")
    rows = np.argsort(series.time, kind="stable")
    radius = None if series.radius is None else series.radius[rows]
    return Series(series.time[rows], series.values[rows], radius, series.where)


def _with_current(series: Series, threshold: float) -> Series:
    """Cut a signal to the time with plasma current, and AFTER_CURRENT."""
    flowing = np.flatnonzero(np.abs(series.values[:, 0]) >= threshold)
    if not len(flowing):
        raise Unusable(f"{series.where}: ip never reaches {threshold:g}")
    until = series.time <= series.time[flowing[-1]] + AFTER_CURRENT
    rows = slice(flowing[0], int(until.sum()))
    return Series(series.time[rows], series.values[rows], None, series.where)


def _remapped(series: Series, radii: int) -> Series:
    """Interpolate a profile linearly at even radii from 0 to 1; it is constant outside the measured radii."""
    assert series.radius is not None
    grid, values = np.linspace(0, 1, radii), np.empty((len(series.time), radii))
    for row, (radius, value) in enumerate(zip(series.radius, series.values, strict=True)):
        unique, order = np.unique(radius, return_index=True)
        if len(unique) < 3 or not np.isfinite(unique).all():
            raise Unusable(f"{series.where}: profile {row + 1} has {len(unique)} radial points, but needs 3")
        values[row] = np.interp(grid, unique, value[order])
    return Series(series.time, values, None, series.where)
