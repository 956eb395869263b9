"""Reads long tables: one CSV file for each list, one line for each time step; a shot's lines are sorted by time.

Columns are identified by name: the shot's number, the time in seconds, a label, and one column for each signal. The
label is not 0 if the shot ends in a disruption, which is at the last such time. The last line ends like the others;
otherwise the file may be cut off.
"""

import csv
import functools
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from suite.contract import UserError
from suite.tasks.frnn.raw import CUT_OFF, Entry, Series, Unusable
from suite.tasks.frnn.shots import Channels


class Table:
    """Reads such files: once to locate the shots, then one shot at a time.

    Args:
        root: the directory.
        columns: names of the columns `shot`, `time` and `label`.
    """

    shifted = False

    def __init__(self, root: Path, columns: Mapping[str, str]):
        self._root, self._columns = root, columns
        self._places: dict[tuple[str, int], tuple[int, int, int]] = {}  # byte, line and number of lines
        self._headers: dict[str, list[str]] = {}

    def lists(self) -> dict[str, list[Entry]]:
        """Return the shots of each file, by the file's name.

        Raises:
            UserError: if a column is missing or there twice, a line does not match the header or is cut off, or the
                lines of a shot do not follow each other in time; also for a file without shots.
        """
        return {path.stem: self._scan(path) for path in sorted(self._root.glob("*.csv"))}

    def _scan(self, path: Path) -> list[Entry]:
        entries: dict[int, Entry] = {}
        with path.open("rb") as file:
            header = next(csv.reader([_text(path, 1, file.readline())]), [])
            if missing := [name for name in self._columns.values() if name not in header]:
                advice = "set task.sources.archive.options.columns.NAME=COLUMN"
                raise UserError(f"{path}:1: no column {missing[0]}; {advice}")
            if doubled := next((name for name in header if header.count(name) > 1), None):
                raise UserError(f"{path}:1: two columns are called {doubled}; rename or remove one of them")
            shot, time, label = (header.index(self._columns[name]) for name in ("shot", "time", "label"))
            self._headers[path.stem] = header
            last, before, place, number = None, -math.inf, file.tell(), 1
            while line := file.readline():
                number += 1
                content = _text(path, number, line)
                words = content.rstrip("\r\n").split(",")
                if len(words) != len(header):
                    raise UserError(f"{path}:{number}: {len(words)} columns, but the header has {len(header)}")
                if not content.endswith("\n"):
                    raise UserError(f"{path}:{number}: {CUT_OFF}")
                try:
                    current, moment, positive = int(words[shot]), float(words[time]), float(words[label])
                except ValueError as error:
                    raise UserError(f"{path}:{number}: {error}") from error
                if not math.isfinite(moment + positive):
                    raise UserError(f"{path}:{number}: the time {words[time]} or the label {words[label]} is no number")
                if current != last:
                    if current in entries:
                        raise UserError(f"{path}:{number}: shot {current} continues here; sort the lines by shot")
                    entries[current] = Entry(path.stem, current, None, f"{path}:{number}")
                    self._places[path.stem, current] = place, number, 0
                elif moment <= before:
                    raise UserError(
                        f"{path}:{number}: the time {moment:g} of shot {current} does not follow {before:g} in the "
                        "line before; sort the lines of a shot by time, and remove those that are there twice"
                    )
                if positive:
                    entries[current] = Entry(path.stem, current, moment, entries[current].where)
                start, first, count = self._places[path.stem, current]
                self._places[path.stem, current] = start, first, count + 1
                last, before, place = current, moment, file.tell()
        if not entries:
            raise UserError(f"{path}: contains no shot, only a header; remove the file, or restore its lines")
        return list(entries.values())

    def files(self, entry: Entry, channels: Channels) -> list[str]:
        """Return the table that contains the shot."""
        return [f"{entry.machine}.csv"]

    def read(self, entry: Entry, name: str, *, profile: bool) -> Series:
        """One column of one shot."""
        path, header = self._root / f"{entry.machine}.csv", self._headers[entry.machine]
        if name not in header or profile:
            raise Unusable(f"{path}:1: no {'profile' if profile else 'column'} {name}")
        rows = self._rows(entry)
        return Series(rows[:, header.index(self._columns["time"])], rows[:, [header.index(name)]], None, entry.where)

    @functools.lru_cache(maxsize=1)  # noqa: B019 all signals of one shot are read in sequence
    def _rows(self, entry: Entry) -> np.ndarray:
        """All columns of one shot, (lines, columns); an empty field is nan."""
        path = self._root / f"{entry.machine}.csv"
        start, first, count = self._places[entry.machine, entry.number]
        rows = []
        with path.open("rb") as file:
            file.seek(start)
            for number in range(first, first + count):
                words = file.readline().decode().rstrip("\r\n").split(",")
                try:
                    rows.append([float(word) if word else np.nan for word in words])
                except ValueError as error:
                    raise Unusable(f"{path}:{number}: {error}") from error
        return np.array(rows)


def _text(path: Path, number: int, line: bytes) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise UserError(f"{path}:{number}: not UTF-8") from error
