"""Reads shots from a directory in one of three formats, resamples them once, and memory-maps the result.

A directory with `signal_data/` has plasma-python's text layout, one with `imas/` IMAS files, and one with `*.csv` long
tables; see `text`, `imas` and `table`. Reading text is slow, so each list's shots are written once to `cache_dir`, as
one array of float32. Memory does not grow with the number of shots.
"""

import hashlib
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from suite.contract import DAMAGED, Data, UserError
from suite.tasks._data.prepared import read_manifest, report_damage, write_manifest
from suite.tasks.frnn.imas import FOLDER, Imas
from suite.tasks.frnn.raw import Entry, Reader, Unusable, resample_shot
from suite.tasks.frnn.shots import Channels, Shots
from suite.tasks.frnn.signals import ONE_D, RADII, ZERO_D
from suite.tasks.frnn.table import Table
from suite.tasks.frnn.text import SIGNALS, Text

VERSION = 1  # of the arrays in the cache: increase it when a rule of `raw` changes
INDEX, VALUES = "index.json", "values.f32"
CACHE = Path.home() / ".cache" / "suite" / "frnn"
COLUMNS = {"shot": "shot", "time": "time", "label": "label"}


def choose_reader(root: Path, columns: Mapping[str, str] = COLUMNS) -> Reader:
    """Return the reader of a directory's format.

    Raises:
        UserError: if the directory has none of the formats.
    """
    if (root / SIGNALS).is_dir():
        return Text(root)
    if (root / FOLDER).is_dir():
        return Imas(root)
    if any(root.glob("*.csv")):
        return Table(root, columns)
    raise UserError(f"{root}: contains no {SIGNALS}/, {FOLDER}/ or *.csv; set data_dir=DIRECTORY")


class Archive:
    """Shots of real machines.

    Args:
        data_dir: the directory.
        machines: names of shot lists, the training machine's first; if empty, all lists by name.
        signals: 0D signals to read; a shot without one of them is not used.
        profiles: radial profiles to read; likewise.
        variant: `0d` reads no profile.
        radii: points of a profile.
        dt: seconds per step.
        shortest: a shot must have more steps than this.
        train_share: share of training shots, if one list serves for both training and test.
        columns: of tables; see `table.Table`.
        cache_dir: the folder for resampled shots; None uses `~/.cache/suite/frnn`.
    """

    def __init__(
        self,
        data_dir: str | None,
        *,
        machines: Sequence[str] = (),
        signals: Sequence[str] = ZERO_D,
        profiles: Sequence[str] = ONE_D,
        variant: str = "1d",
        radii: int = RADII,
        dt: float = 0.001,
        shortest: int = 286,
        train_share: float = 0.75,
        columns: Mapping[str, str] = COLUMNS,
        cache_dir: str | None = None,
    ):
        if data_dir is None or not Path(data_dir).is_dir():
            reason = f"there are no shots in {data_dir}" if data_dir else "the machines' shots are not here"
            raise UserError(f"{reason}. Set data_dir=DIRECTORY")
        self._root, self.dt, self._shortest, self.train_share = Path(data_dir), dt, shortest, train_share
        self._cache = Path(cache_dir) if cache_dir else CACHE
        self.channels = Channels(tuple(signals), tuple(profiles) if variant == "1d" else (), radii)
        self._reader = choose_reader(self._root, columns)
        self._lists = self._reader.lists()
        self.machines = tuple(machines) or tuple(self._lists)
        if unknown := [name for name in self.machines if name not in self._lists]:
            raise UserError(
                f"{self._root}: no list of shots is called {unknown[0]}; there are {', '.join(self._lists) or 'none'}"
            )
        self._opened: dict[str, tuple[Shots, list[str]]] = {}

    def shots(self, machine: str) -> Shots:
        """Return the usable shots of one list."""
        if machine not in self._opened:
            self._opened[machine] = self._open(machine)
        return self._opened[machine][0]

    def data(self) -> Data:
        """Describes the shots. The identity is a sha256 over list, path and size of every file, and the resampling."""
        identity, stamp = (
            hashlib.sha256("".join(self._listing(name, times=times) for name in self.machines).encode()).hexdigest()
            for times in (False, True)
        )
        faults = tuple(fault for _, list_faults in self._opened.values() for fault in list_faults)
        return Data(
            kind="real",
            name=self._root.resolve().name,
            identity=identity,
            samples={name: len(self._lists[name]) for name in self.machines},
            unit="shots",
            note="the identity covers names and sizes of the files, not their contents",
            skipped=faults,
            dropped={DAMAGED: len(faults)} if faults else {},
            dropped_unit="shots" if faults else "",
            dropped_of=sum(len(self._lists[name]) for name in self._opened) if faults else 0,
            stamp=stamp,
        )

    def _listing(self, name: str, *, times: bool) -> str:
        """One line for each file of a list, and the settings."""
        lines = [repr((VERSION, name, self.channels, self.dt, self._shortest))]
        for entry in self._lists[name]:
            for file in self._reader.files(entry, self.channels):
                path = self._root / file
                stat = path.stat() if path.exists() else None
                size = [stat.st_size, stat.st_mtime_ns][: 1 + times] if stat else None
                lines.append(f"{entry.number}\t{entry.disruption}\t{file}\t{size}")
        return "\n".join(lines)

    def _open(self, name: str) -> tuple[Shots, list[str]]:
        """Read a list's shots from the cache, which is filled if necessary, and a line for each unusable shot."""
        folder = self._cache / hashlib.sha256(self._listing(name, times=True).encode()).hexdigest()[:32]
        if not folder.exists():
            self._write(folder, self._lists[name])
        again = f"delete {folder}, and the shots are resampled again"
        prepared = read_manifest(folder / INDEX, again)
        prepared.check_files(again)
        with report_damage(folder / INDEX, again):
            index = prepared.content
            starts = np.cumsum([0, *index["steps"]])
            values = np.zeros((0, self.channels.width), np.float32)
            if starts[-1]:
                values = np.memmap(folder / VALUES, np.float32, "r", shape=(int(starts[-1]), self.channels.width))
            machine = self._lists[name][0].machine
            numbers, disrupted = np.array(index["numbers"], np.int64), np.array(index["disrupted"], bool)
            return Shots(machine, values, starts, disrupted, numbers), index["faults"]

    def _write(self, folder: Path, entries: Sequence[Entry]) -> None:
        """Resample every shot. The folder appears when it is complete; several processes may do this at once."""
        partial = folder.with_name(f"{folder.name}.{os.getpid()}")
        partial.mkdir(parents=True, exist_ok=True)
        index: dict[str, list[object]] = {"steps": [], "numbers": [], "disrupted": [], "faults": []}
        with (partial / VALUES).open("wb") as file:
            for entry in entries:
                try:
                    values = resample_shot(self._reader, entry, self.channels, dt=self.dt, shortest=self._shortest)
                except Unusable as fault:
                    index["faults"].append(str(fault))
                    continue
                file.write(values.tobytes())
                index["steps"].append(len(values))
                index["numbers"].append(entry.number)
                index["disrupted"].append(entry.disruption is not None)
        write_manifest(partial / INDEX, index, [VALUES])
        try:
            partial.rename(folder)
        except OSError:  # another process was faster
            shutil.rmtree(partial)

    def faults(self) -> list[str]:
        """Read all shots; return one line for each that cannot be used."""
        return [fault for name in self.machines for fault in self._open(name)[1]]

    def census(self) -> dict[str, dict[str, int]]:
        """Return the number of disruptive and other shots in each list."""
        return {
            name: {
                "disruptive": sum(entry.disruption is not None for entry in entries),
                "clear": sum(entry.disruption is None for entry in entries),
            }
            for name, entries in self._lists.items()
        }


class Absent:
    """DIII-D's sizes without its shots, which is enough for a plan.

    The 3,449 shots are those of the original 0D set (plasma-python, docs/A21-DL-Workload-README.md).
    """

    def __init__(self, *, signals: Sequence[str], profiles: Sequence[str], variant: str, radii: int, dt: float):
        self.channels = Channels(tuple(signals), tuple(profiles) if variant == "1d" else (), radii)
        self.machines, self.train_share, self.dt = ("d3d",), 0.75, dt

    def shots(self, machine: str) -> Shots:
        """Raise `UserError`, because the data is absent."""
        raise UserError("DIII-D's shots are not here; set data_dir=DIRECTORY")

    def data(self) -> Data:
        """Return the published sizes. Lengths were not published, so a sample is a shot instead of a chunk."""
        train = round(self.train_share * 3449)
        return Data("real", "DIII-D", "not here", {"train": train, "valid": 3449 - train}, unit="shots")


make = Archive
