"""Reads IMAS files: `imas/<machine>/<shot>/<ids>.h5`, written by the access layer's HDF5 backend.

Shot lists are as in `text`. The name of a signal is its path in the data dictionary. Arrays of structures have an
index, or [] for an array over time: `magnetics/flux_loop[5]/flux`, `core_profiles/profiles_1d[]/electrons/temperature`.
"""

import re
from pathlib import Path

import numpy as np

from suite.tasks.frnn.raw import Entry, Series, Unusable
from suite.tasks.frnn.shots import Channels
from suite.tasks.frnn.text import read_shot_lists

FOLDER = "imas"
PATHS = {
    "q95": "equilibrium/time_slice[]/global_quantities/q_95",
    "li": "equilibrium/time_slice[]/global_quantities/li_3",
    "ip": "magnetics/ip[0]",
    "betan": "equilibrium/time_slice[]/global_quantities/beta_normal",
    "energy": "equilibrium/time_slice[]/global_quantities/energy_mhd",
    "dens": "interferometer/channel[0]/n_e_line_average",
    "pradtot": "summary/global_quantities/power_radiated/value",
    "pin": "summary/heating_current_drive/power_launched_nbi/value",
    "etemp_profile": "core_profiles/profiles_1d[]/electrons/temperature",
    "edens_profile": "core_profiles/profiles_1d[]/electrons/density",
}
EMPTY = -9e40  # the access layer's value for missing numbers
RADIUS = "profiles_1d[]&grid&rho_tor_norm"


class Imas:
    """Reads the layout described above."""

    shifted = False

    def __init__(self, root: Path):
        self._root = root

    def lists(self) -> dict[str, list[Entry]]:
        """Shots by the name of their list."""
        return read_shot_lists(self._root)

    def _file(self, entry: Entry, ids: str) -> Path:
        return self._root / FOLDER / entry.machine / str(entry.number) / f"{ids}.h5"

    def files(self, entry: Entry, channels: Channels) -> list[str]:
        """Return the files of a shot; they may be missing."""
        ids = {PATHS.get(name, name).partition("/")[0] for name in (*channels.signals, *channels.profiles)}
        return [str(self._file(entry, name).relative_to(self._root)) for name in sorted(ids)]

    def read(self, entry: Entry, name: str, *, profile: bool) -> Series:
        """One signal of one shot."""
        import h5py

        ids, _, path = PATHS.get(name, name).partition("/")
        file = self._file(entry, ids)
        if not file.exists():
            raise Unusable(f"{file}: no such file")
        # `flux_loop[5]/flux` is row 5 of the data set `flux_loop[]&flux&data`
        index = [int(number) for number in re.findall(r"\[(\d+)\]", path)]
        base = re.sub(r"\[\d+\]", "[]", path).replace("/", "&")
        try:
            with h5py.File(file) as opened:
                group = opened[ids]
                values = _first(group, (f"{base}&data", base), index)
                time = _first(group, (f"{base}&time", "profiles_1d[]&time", "time_slice[]&time", "time"), index)
                radius = _first(group, (RADIUS,), []) if profile else None
        except (OSError, KeyError, IndexError) as error:
            raise Unusable(f"{file}: {PATHS.get(name, name)} cannot be read: {error}") from error
        if len(values) != len(time):
            raise Unusable(f"{file}: {PATHS.get(name, name)} has {len(values)} values at {len(time)} times")
        return Series(time, values.reshape(len(time), -1), radius, str(file))


def _first(group: object, names: tuple[str, ...], index: list[int]) -> np.ndarray:
    """Return the first data set that exists, at `index` if it has these leading axes; missing numbers become nan."""
    for name in names:
        if name in group:  # type: ignore[operator]
            values = np.asarray(group[name], np.float64)  # type: ignore[index]
            for number in index if values.ndim > len(index) else ():
                values = values[number]
            return np.where(values == EMPTY, np.nan, values)
    raise KeyError(names[0])
