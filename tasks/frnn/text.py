"""Reads plasma-python's layout: `signal_data/<machine>/<signal path>/<shot>.txt` and `shot_lists/<list>.txt`.

A 0D signal has one line for each sample: time and value. A profile of T samples has 2 T lines: T of time and radii,
then T of the same times and values. A file that contains only -1 means that there is no data. Times include the causal
shifts, which plasma-python adds when it downloads a signal. A shot list has one line for each shot: its number and the
time of its disruption, or -1. The last line of a file ends like the others; otherwise the file may be cut off.
"""

from pathlib import Path

import numpy as np

from suite.contract import UserError
from suite.tasks.frnn.raw import CUT_OFF, Entry, Series, Unusable
from suite.tasks.frnn.shots import Channels
from suite.tasks.frnn.signals import find_machine

SIGNALS, LISTS = "signal_data", "shot_lists"
ROUNDED = 1e-6  # relative difference of equal times that were written with seven digits or more
NONE = -1.0  # the time of a disruption that did not happen


def read_shot_lists(root: Path) -> dict[str, list[Entry]]:
    """Shots by list, from all of a directory's shot lists.

    The files of one list share the words before the last underscore: `jet_ilw_clear.txt` and `jet_ilw_disrupt.txt`
    are the list `jet_ilw`, and its machine is the first word, `jet`.

    Raises:
        UserError: for a line that is not a number and a time, or is cut off, and for a shot that a list has twice.
    """
    shot_lists: dict[str, list[Entry]] = {}
    places: dict[tuple[str, int], str] = {}
    for path in sorted((root / LISTS).glob("*.txt")):
        name = path.stem.rpartition("_")[0] or path.stem
        for number, line in enumerate(path.read_bytes().splitlines(keepends=True), 1):
            words = line.split()
            try:
                shot, time = (int(words[0]), float(words[1])) if len(words) == 2 else (None, None)
            except ValueError:
                shot = time = None
            where = f"{path}:{number}"
            if shot is None or time is None or not np.isfinite(time) or (time < 0 and time != NONE):
                if words:
                    raise UserError(f"{where}: must contain a shot's number and the time of its disruption (-1: none)")
                continue
            if line == line.rstrip(b"\r\n"):
                raise UserError(f"{where}: {CUT_OFF}")
            if (first := places.setdefault((name, shot), where)) != where:
                raise UserError(f"{where}: shot {shot} is in the list twice, first in {first}; remove one of them")
            entry = Entry(name.partition("_")[0], shot, time if time >= 0 else None, where)
            shot_lists.setdefault(name, []).append(entry)
    return shot_lists


class Text:
    """Reads the layout described above."""

    shifted = True

    def __init__(self, root: Path):
        self._root = root

    def lists(self) -> dict[str, list[Entry]]:
        """Shots by the name of their list."""
        return read_shot_lists(self._root)

    def _file(self, entry: Entry, name: str) -> Path:
        path = find_machine(entry.machine).paths.get(name, name)
        return self._root / SIGNALS / entry.machine / path / f"{entry.number}.txt"

    def files(self, entry: Entry, channels: Channels) -> list[str]:
        """Return the files of a shot; they may be missing."""
        names = (*channels.signals, *channels.profiles)
        return [str(self._file(entry, name).relative_to(self._root)) for name in names]

    def read(self, entry: Entry, name: str, *, profile: bool) -> Series:
        """One signal of one shot."""
        path = self._file(entry, name)
        rows = read_table(path)
        if not profile:
            if rows.shape[1] != 2:
                raise Unusable(f"{path}:1: {rows.shape[1]} columns instead of 2 (time and value)")
            return Series(rows[:, 0], rows[:, 1:], None, str(path))
        half, odd = divmod(len(rows), 2)
        if odd:
            raise Unusable(
                f"{path}:{len(rows)}: an odd number of lines; a profile has as many lines of values as of radii"
            )
        if (other := np.flatnonzero(~np.isclose(rows[:half, 0], rows[half:, 0], rtol=ROUNDED, atol=0.0))).size:
            line = int(other[0]) + 1
            raise Unusable(
                f"{path}:{half + line}: the time of these values differs from that of the radii, line {line}"
            )
        return Series(rows[:half, 0], rows[half:, 1:], rows[:half, 1:], str(path))


def read_table(path: Path) -> np.ndarray:
    """Read a file of numbers, (lines, columns).

    Raises:
        Unusable: if the file is damaged; names the first damaged line.
    """
    if not path.exists():
        raise Unusable(f"{path}: no such file")
    if not path.stat().st_size:
        raise Unusable(f"{path}: empty")
    try:
        rows = np.loadtxt(path, ndmin=2, encoding="utf-8", comments=None)
    except ValueError as error:
        raise Unusable(_fault(path)) from error
    if rows.size == 1 and rows[0, 0] == -1.0:
        raise Unusable(f"{path}: no data (-1)")
    if np.isnan(rows).any():
        raise Unusable(f"{path}:{int(np.isnan(rows).any(1).argmax()) + 1}: NaN")
    if len(rows) != path.read_bytes().count(b"\n"):  # `loadtxt` passes over empty lines
        raise Unusable(_fault(path))
    return rows


def _fault(path: Path) -> str:
    """Describe the first line that is not numeric, is cut off, or has other columns than the first line."""
    columns = 0
    for number, line in enumerate(path.read_bytes().splitlines(keepends=True), 1):
        words = line.split()
        try:
            count = len([float(word) for word in words])
        except ValueError:
            return f"{path}:{number}: not a number"
        columns = columns or count
        if not words:
            return f"{path}:{number}: an empty line"
        if count != columns:
            return f"{path}:{number}: {count} columns, but the lines before have {columns}"
        if line == line.rstrip(b"\r\n"):
            return f"{path}:{number}: {CUT_OFF}"
    return f"{path}: cannot be read"
