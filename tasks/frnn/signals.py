"""Signals that FRNN reads, and their paths in each machine's archive.

Names, paths, shifts and tolerances are those of plasma-python (PPPLDeepLearning/plasma-python@b13dbed,
data/signals.py).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

ZERO_D = (
    *("q95", "li", "ip", "betan", "energy", "lm", "dens", "pradcore", "pradedge", "pin", "torquein", "ipdirect"),
    *("iptarget", "iperr"),
)
ONE_D = ("etemp_profile", "edens_profile")
UNSCALED = ("q95",)  # not divided by their spread
POSITIVE = ("dens",)  # negative values are set to 0
RADII = 64  # points of a profile, over a normalised radius of 0…1


@dataclass(frozen=True)
class Machine:
    """A tokamak's archive.

    Attributes:
        paths: each signal's folder or channel in the archive; by default the signal's name.
        current: the plasma current, in the archive's units, at which a shot begins.
        shifts: delay in seconds with which a signal reaches the control system (causal shift).
        tolerances: seconds by which a signal may end before the disruption; 0 by default.
    """

    paths: Mapping[str, str] = field(default_factory=dict)
    current: float = 0.0
    shifts: Mapping[str, float] = field(default_factory=dict)
    tolerances: Mapping[str, float] = field(default_factory=dict)


D3D = Machine(
    paths={
        "q95": "EFIT01/RESULTS.AEQDSK.Q95",
        "li": "efsli",
        "ip": "ipspr15V",
        "betan": "efsbetan",
        "energy": "efswmhd",
        "lm": "dusbradial",
        "dens": "dssdenest",
        "pradcore": r"\bol_l15_p",
        "pradedge": r"\bol_l03_p",
        "pin": "bmspinj",
        "torquein": "bmstinj",
        "ipdirect": "iptdirect",
        "iptarget": "ipsiptargt",
        "iperr": "ipeecoil",
        "etemp_profile": "ZIPFIT01/PROFILES.ETEMPFIT",
        "edens_profile": "ZIPFIT01/PROFILES.EDENSFIT",
    },
    current=0.2,  # MA
    shifts={"q95": 0.010, "etemp_profile": 0.010, "edens_profile": 0.010},
    tolerances={"q95": 0.02, "etemp_profile": 0.02, "edens_profile": 0.02},
)
JET = Machine(
    paths={
        "q95": "ppf/efit/q95",
        "li": "jpf/gs/bl-li<s",
        "ip": "jpf/da/c2-ipla",
        "energy": "jpf/gs/bl-wmhd<s",
        "lm": "jpf/da/c2-loca",
        "dens": "jpf/df/g1r-lid:003",
        "pradcore": "ppf/bolo/kb5h/channel14",
        "pradedge": "ppf/bolo/kb5h/channel10",
        "pradtot": "jpf/db/b5r-ptot>out",
        "pin": "jpf/gs/bl-ptot<s",
        "energydt": "jpf/gs/bl-fdwdt<s",
        "etemp_profile": "ppf/hrts/te",
        "edens_profile": "ppf/hrts/ne",
    },
    current=1e5,  # A
    shifts={"q95": 0.015},
    tolerances={"q95": 0.03, "etemp_profile": 0.05, "edens_profile": 0.05},
)
MACHINES = {"d3d": D3D, "jet": JET}


def find_machine(name: str) -> Machine:
    """A machine by name; an unknown machine has each signal under the signal's name."""
    return MACHINES.get(name, Machine())
