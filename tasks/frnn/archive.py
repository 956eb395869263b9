"""Shots in a directory of files, in whichever of three formats lies there, resampled once and then mapped from disk.

`signal_data/` makes it plasma-python's text layout, `imas/` IMAS files, and `*.csv` long tables; see `text`, `imas`
and `table`. Reading text is slow, so each list's shots are written once, as one array of float32, under `cache_dir`;
memory does not grow with their number, neither then nor in a run.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from suite.contract import Data, UserError
from suite.tasks.frnn.imas import FOLDER, Imas
from suite.tasks.frnn.raw import Entry, Reader, Unusable, resample
from suite.tasks.frnn.shots import Channels, Shots
from suite.tasks.frnn.signals import ONE_D, RADII, ZERO_D
from suite.tasks.frnn.table import Table
from suite.tasks.frnn.text import SIGNALS, Text

VERSION = 1  # of the arrays in the cache: raise it when any rule of `raw` changes
CACHE = Path.home() / ".cache" / "suite" / "frnn"
COLUMNS = {"shot": "shot", "time": "time", "label": "label"}


def reader(root: Path, columns: Mapping[str, str] = COLUMNS) -> Reader:
    """The reader of the format that lies in a directory.

    Raises:
        UserError: none does.
    """
    if (root / SIGNALS).is_dir():
        return Text(root)
    if (root / FOLDER).is_dir():
        return Imas(root)
    if any(root.glob("*.csv")):
        return Table(root, columns)
    raise UserError(f"{root}: no {SIGNALS}/, {FOLDER}/ or *.csv; type data_dir=DIRECTORY")


class Archive:
    """Shots of real machines.

    Args:
        data_dir: the directory.
        machines: names of shot lists, the training machine's first; all that are there, by name, if empty.
        signals: 0D signals to read; a shot without one of them is not used.
        profiles: radial profiles to read; likewise.
        variant: `0d` reads no profile.
        radii: points a profile.
        dt: seconds a step.
        shortest: steps that a shot must exceed.
        train_share: of the shots, where one list serves for both training and test.
        columns: of tables; see `table.Table`.
        cache_dir: where resampled shots are kept; `~/.cache/suite/frnn` if not given.
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
            where = f"there are no shots in {data_dir}" if data_dir else "the machines' shots are not here"
            raise UserError(f"{where}. Type data_dir=DIRECTORY")
        self._root, self.dt, self._shortest, self.train_share = Path(data_dir), dt, shortest, train_share
        self._cache = Path(cache_dir) if cache_dir else CACHE
        self.channels = Channels(tuple(signals), tuple(profiles) if variant == "1d" else (), radii)
        self._reader = reader(self._root, columns)
        self._lists = self._reader.lists()
        self.machines = tuple(machines) or tuple(self._lists)
        if unknown := [name for name in self.machines if name not in self._lists]:
            raise UserError(
                f"{self._root}: no list of shots {unknown[0]}; there are {', '.join(self._lists) or 'none'}"
            )
        self._opened: dict[str, tuple[Shots, list[str]]] = {}

    def shots(self, machine: str) -> Shots:
        """The usable shots of one list."""
        if machine not in self._opened:
            self._opened[machine] = self._open(machine)
        return self._opened[machine][0]

    def data(self) -> Data:
        """What was found. The identity is a sha256 over list, path and size of every file, and how it is resampled."""
        return Data(
            kind="real",
            name=self._root.resolve().name,
            identity=hashlib.sha256(
                "".join(self._listing(name, times=False) for name in self.machines).encode()
            ).hexdigest(),
            samples={name: len(self._lists[name]) for name in self.machines},
            unit="shots",
            note="the identity covers names and sizes of the files, not their contents",
            skipped=tuple(fault for _, faults in self._opened.values() for fault in faults),
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
        """A list's shots from the cache, where they are put first if they are not there; and why others are not."""
        folder = self._cache / hashlib.sha256(self._listing(name, times=True).encode()).hexdigest()[:32]
        if not folder.exists():
            self._write(folder, self._lists[name])
        index = json.loads((folder / "index.json").read_text())
        starts = np.cumsum([0, *index["steps"]])
        values = np.zeros((0, self.channels.width), np.float32)
        if starts[-1]:
            values = np.memmap(folder / "values.f32", np.float32, "r", shape=(int(starts[-1]), self.channels.width))
        machine = self._lists[name][0].machine
        numbers, disrupted = np.array(index["numbers"], np.int64), np.array(index["disrupted"], bool)
        return Shots(machine, values, starts, disrupted, numbers), index["faults"]

    def _write(self, folder: Path, entries: Sequence[Entry]) -> None:
        """Resample every shot into a folder that appears when it is complete; several processes may do it at once."""
        partial = folder.with_name(f"{folder.name}.{os.getpid()}")
        partial.mkdir(parents=True, exist_ok=True)
        index: dict[str, list[object]] = {"steps": [], "numbers": [], "disrupted": [], "faults": []}
        with (partial / "values.f32").open("wb") as file:
            for entry in entries:
                try:
                    values = resample(self._reader, entry, self.channels, dt=self.dt, shortest=self._shortest)
                except Unusable as fault:
                    index["faults"].append(str(fault))
                    continue
                file.write(values.tobytes())
                index["steps"].append(len(values))
                index["numbers"].append(entry.number)
                index["disrupted"].append(entry.disruption is not None)
        (partial / "index.json").write_text(json.dumps(index))
        try:
            partial.rename(folder)
        except OSError:  # another process was faster
            shutil.rmtree(partial)

    def faults(self) -> list[str]:
        """One line for each shot that cannot be used; reads them all."""
        return [fault for name in self.machines for fault in self._open(name)[1]]

    def census(self) -> dict[str, dict[str, int]]:
        """Disruptive and other shots of each list, as listed."""
        return {
            name: {
                "disruptive": sum(entry.disruption is not None for entry in entries),
                "clear": sum(entry.disruption is None for entry in entries),
            }
            for name, entries in self._lists.items()
        }


class Absent:
    """DIII-D's sizes without its shots: enough to say what a run would be.

    3,449 shots are those of the original 0D set (plasma-python, docs/A21-DL-Workload-README.md).
    """

    def __init__(self, *, signals: Sequence[str], profiles: Sequence[str], variant: str, radii: int, dt: float):
        self.channels = Channels(tuple(signals), tuple(profiles) if variant == "1d" else (), radii)
        self.machines, self.train_share, self.dt = ("d3d",), 0.75, dt

    def shots(self, machine: str) -> Shots:
        """Nothing can be read."""
        raise UserError("DIII-D's shots are not here; type data_dir=DIRECTORY")

    def data(self) -> Data:
        """What was published; lengths were not, so the samples are shots, each of them many chunks."""
        train = round(self.train_share * 3449)
        return Data("real", "DIII-D", "not here", {"train": train, "valid": 3449 - train}, unit="shots")


make = Archive
