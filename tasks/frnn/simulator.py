"""Shots of two tokamaks, simulated: slow equations of a plasma, a mode that may end it, and noisy diagnostics.

Plasma current, density, stored energy, internal inductance and rotation follow a programme. Five margins to known
limits drive the hazard of a tearing mode; once it has been triggered, its island grows and either saturates, perhaps
heals, or passes a critical width, at which the shot ends in a disruption. The island brakes rotation, radiates, costs
confinement, flattens the temperature profile where it sits, and locks to the wall, where a coil sees it through noise
and a drifting error field: a threshold on that one signal is not enough. Constants are invented, in units of order 1;
they imitate no machine.

A shot is a function of (WORLD, machine, row) alone.
"""

import functools
from dataclasses import dataclass

import numpy as np

from suite.tasks.frnn.signals import ZERO_D

WORLD = 1  # version: increase it when a formula or constant below changes
STREAM = int.from_bytes(b"plasma")  # high word of the counter: separates these draws from others with the same key
DT = 0.005  # seconds per step
STEPS = 360  # of the longest shot

Range = tuple[float, float]


@dataclass(frozen=True)
class Device:
    """Constants of one simulated tokamak; a pair is the range of a uniform draw for each shot.

    Attributes:
        current: flat-top plasma current.
        field: toroidal field.
        power: of the main heating.
        density: target density as a share of the current.
        ramp: its increase per second, as a share of the current.
        impurity: radiation's strength.
        error_field: seen by the locked-mode coil, and a cause of modes.
        growth: the island's growth rate, 1/s.
        critical: island width at which the shot ends.
        confinement: energy confinement time at unit current and power, s.
        place: the island's normalised radius.
        safety: q95 · current / field.
        units: of the archive: the factors of current, energy, power and temperature.
    """

    current: Range
    field: Range
    power: Range
    density: Range
    ramp: Range
    impurity: Range
    error_field: Range
    growth: Range
    critical: Range
    confinement: float
    place: float
    safety: float
    units: float


DEVICES = {
    "near": Device(
        current=(0.8, 1.6),
        field=(1.7, 2.2),
        power=(1.0, 6.0),
        density=(0.25, 0.85),
        ramp=(-0.1, 0.6),
        impurity=(0.15, 0.6),
        error_field=(0.0, 0.6),
        growth=(6.0, 30.0),
        critical=(0.55, 0.75),
        confinement=0.12,
        place=0.65,
        safety=2.07,
        units=1.0,
    ),
    # a larger machine: slower, hotter, less noise, island nearer the axis
    "far": Device(
        current=(1.0, 1.9),
        field=(2.0, 2.7),
        power=(2.0, 9.0),
        density=(0.3, 0.9),
        ramp=(-0.1, 0.5),
        impurity=(0.1, 0.5),
        error_field=(0.0, 0.45),
        growth=(4.0, 18.0),
        critical=(0.5, 0.7),
        confinement=0.16,
        place=0.5,
        safety=2.07,
        units=2.5,
    ),
}
BENIGN = 0.35  # share of the modes that saturate below the critical width
HEALING = 1.5  # of those, 1/s
# Spread of each diagnostic's noise, in the signal's units on the device with units=1
NOISE = {
    "q95": 0.08,
    "li": 0.03,
    "ip": 0.012,
    "betan": 0.05,
    "energy": 0.015,
    "lm": 0.05,
    "dens": 0.02,
    "pradcore": 0.05,
    "pradedge": 0.03,
    "torquein": 0.1,
    "iperr": 0.02,
    "etemp_profile": 0.08,
    "edens_profile": 0.03,
}


@dataclass(frozen=True)
class World:
    """Simulated shots.

    Attributes:
        values: (shots, STEPS, 14 + 2 · radii) float32, the 0D signals and then the two profiles; 0 after the end.
        steps: (shots,) of each shot.
        disrupted: (shots,) whether it ends in a disruption, at its last step.
        island: (shots, STEPS) the true width of the island, which no diagnostic shows.
    """

    values: np.ndarray
    steps: np.ndarray
    disrupted: np.ndarray
    island: np.ndarray


def _draws(name: str, shots: int, radii: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Per shot: 24 uniforms (24, shots), uniforms (2, STEPS, shots), and normals (shots, STEPS, 3 + 14 + 2 radii)."""
    once, along = np.empty((24, shots)), np.empty((2, STEPS, shots))
    normal = np.empty((shots, STEPS, 17 + 2 * radii), np.float32)
    for row in range(shots):
        counter = [0, 0, list(DEVICES).index(name), STREAM]
        draws = np.random.Generator(np.random.Philox(key=[WORLD, row], counter=counter))
        once[:, row], along[..., row] = draws.random(24), draws.random((2, STEPS))
        draws.standard_normal(out=normal[row], dtype=np.float32)
    return once, along, normal


@functools.lru_cache(maxsize=8)  # shared within the process
def simulate_shots(name: str, shots: int, radii: int) -> World:
    """Return the first `shots` shots of one device, `near` or `far`, with `radii` points per profile."""
    device = DEVICES[name]
    once, along, normal = _draws(name, shots, radii)

    def between(draw: int, limits: Range) -> np.ndarray:
        return limits[0] + (limits[1] - limits[0]) * once[draw]

    length = between(0, (0.9, 1.8))
    steps = (length / DT).astype(int)
    top, rise, fall = between(1, device.current), between(2, (0.12, 0.2)), between(3, (0.12, 0.2))
    heating, more = between(4, device.power), between(5, (0.0, device.power[1] / 2)) * (once[6] < 0.5)
    on, later = between(7, (0.2, 0.5)), between(8, (0.5, 0.9))
    density, ramp = between(9, device.density) * top, between(10, device.ramp) * top
    field, error, impurity = between(11, device.field), between(12, device.error_field), between(13, device.impurity)
    critical, growth, phase = between(14, device.critical), between(15, device.growth), between(16, (0, 2 * np.pi))
    saturation = np.where(once[17] < BENIGN, between(18, (0.25, 0.5)), 1.0)

    time = DT * np.arange(STEPS)[:, None]
    target = top * np.minimum(time / rise, (steps * DT - time) / fall).clip(0.05, 1)
    power = 0.3 + (time < steps * DT - fall) * ((time > on) * heating + (time > later) * more)

    current, energy, dense, inductance = (
        target[0].copy(),
        np.full(shots, 0.02),
        np.full(shots, 0.1),
        np.full(shots, 1.1),
    )
    rotation, island, hazard = np.zeros(shots), np.zeros(shots), np.zeros(shots)
    patience, growing, alive = -np.log(once[19]), np.zeros(shots, bool), np.ones(shots, bool)
    ends, disrupted = steps.copy(), np.zeros(shots, bool)
    names = ("current", "energy", "density", "inductance", "rotation", "island", "radiation", "beta", "safety")
    path = {key: np.zeros((STEPS, shots)) for key in names}
    for step in range(int(steps.max())):
        kicks = normal[:, step, :3].T
        current += DT / 0.03 * (target[step] - current) + 0.002 * kicks[0]
        current = current.clip(0.02)
        tau = device.confinement * current**0.9 * (power[step] + 0.5) ** -0.5 * (1 - 0.6 * island)
        wanted = (density + ramp * time[step]) * np.minimum(1, current / top)
        dense = (dense + DT / 0.1 * (wanted - dense) + 0.003 * kicks[1]).clip(0.02)
        radiation = 0.56 * impurity * dense**2 / (energy + 0.1) + 0.6 * island + 0.05
        gain = power[step] + 0.4 - 0.5 * radiation - energy / tau.clip(0.02)
        energy = (energy + DT * gain).clip(0.005)
        inductance += DT / 0.25 * (0.85 + 0.25 * radiation / (power[step] + 0.5) - inductance)
        beta, safety = 3.2 * energy / (current * field), device.safety * field / current
        rotation += DT / 0.08 * (0.3 * power[step] - rotation * (1 + 24 * island**2))
        margin = np.maximum.reduce(
            [
                3.2 * (dense / current - 0.95),  # density limit, as a share of Greenwald's
                1.6 * (beta - 2.6 * inductance),  # pressure against the current's profile
                2.0 * (2.35 - safety),  # low q95
                2.2 * (radiation / (power[step] + 0.4) - 0.9),  # radiated fraction
                1.2 * (error - 0.45) - 0.6 * rotation,  # an error field that rotation does not shield
            ]
        )
        hazard += DT * np.exp((3.0 * margin - 0.9).clip(-12, 4))
        triggered = ~growing & (hazard > patience) & (time[step] > 0.15)
        island = np.where(triggered, 0.04, island)
        growing |= triggered
        island += growing * (DT * growth * island * (1 - island / saturation) + 0.004 * kicks[2])
        island = np.where(growing, island.clip(0.01), 0.0)
        healed = growing & (saturation < 1) & (along[0, step] < DT * HEALING)
        growing, island, hazard = growing & ~healed, island * ~healed, hazard * ~healed
        patience = np.where(healed, -np.log(along[1, step]), patience)
        now = current, energy, dense, inductance, rotation, island, radiation, beta, safety
        for key, value in zip(names, now, strict=True):
            path[key][step] = value
        over = alive & (island > critical) & (step < steps)
        ends[over], disrupted[over] = step + 1, True
        alive &= ~over & (step < steps)
    values = _diagnose(device, path, target, power, normal[..., 3:], error, phase, radii)
    seen = (np.arange(STEPS) < ends[:, None])[..., None]
    return World(values * seen, ends, disrupted, path["island"].T * seen[..., 0])


def _diagnose(
    device: Device,
    path: dict[str, np.ndarray],
    target: np.ndarray,
    power: np.ndarray,
    normal: np.ndarray,
    error: np.ndarray,
    phase: np.ndarray,
    radii: int,
) -> np.ndarray:
    """Return what the diagnostics show, (shots, STEPS, 14 + 2 · radii) float32; arrays of `path` are (STEPS, shots)."""
    island, drift = path["island"], 1 + 0.3 * np.sin(6 * DT * np.arange(len(target))[:, None] + phase)
    locked = island**2 / (1 + 2 * path["rotation"]) + 0.22 * error * drift
    clean = {
        "q95": path["safety"],
        "li": path["inductance"],
        "ip": path["current"],
        "betan": path["beta"],
        "energy": path["energy"],
        "lm": locked,
        "dens": path["density"],
        "pradcore": path["radiation"] * (0.6 + 0.4 * island),
        "pradedge": path["radiation"] * 0.4,
        "pin": power,
        "torquein": path["rotation"],
        "ipdirect": np.ones_like(target),
        "iptarget": target,
        "iperr": path["current"] - target,
    }
    values = np.empty((*target.T.shape, len(ZERO_D) + 2 * radii), np.float32)
    for place, name in enumerate(ZERO_D):
        noisy = clean[name].T + NOISE.get(name, 0.0) * normal[..., place]
        values[..., place] = np.abs(noisy) if name == "lm" else noisy
    radius = np.linspace(0, 1, radii)
    heat = (2 * path["energy"] / path["density"].clip(0.05)).T[..., None]
    width = island.T[..., None] * 0.8 * np.exp(-(((radius - device.place) / 0.12) ** 2))
    flat = 0.7 * (1 - device.place**2) ** 1.5  # the island's inside has one temperature, below that of its place
    temperature = heat * ((1 - width) * (1 - radius**2) ** 1.5 + width * flat)
    pressure = path["density"].T[..., None] * (1 - 0.7 * radius**2)
    first = len(ZERO_D)
    values[..., first : first + radii] = temperature + NOISE["etemp_profile"] * normal[..., first : first + radii]
    values[..., first + radii :] = pressure + NOISE["edens_profile"] * normal[..., first + radii :]
    scaled = [ZERO_D.index(name) for name in ("ip", "energy", "pin", "iptarget", "iperr")]
    values[..., [*scaled, *range(first, first + radii)]] *= device.units
    return values
