"""Specification of SM3 in float64 NumPy: Anil et al. 2019 (arXiv:1901.11150), algorithms SM3-I and SM3-II.

With the momentum of the authors' code (google-research/sm3). The sets S_r that cover a tensor are its slices;
`mu[axis]` holds those along one axis. Every minimum and maximum is written out element by element.
"""

from itertools import product
from typing import Any

import numpy as np

from suite.optimizers.sm3 import EPSILON, Settings

Tree = dict[str, np.ndarray]


def init(params: Tree) -> dict[str, Any]:
    """μ₀(r) = 0 for every slice; of vectors, for every element."""
    covers = {name: [np.zeros(length) for length in np.atleast_1d(value).shape] for name, value in params.items()}
    return {"covers": covers, "velocity": {name: np.zeros_like(value) for name, value in params.items()}}


def update(
    params: Tree, grads: Tree, state: dict[str, Any], settings: Settings, **_: Any
) -> tuple[Tree, dict[str, Any]]:
    """One step; returns new parameters and state."""
    new, covers, velocity = {}, {}, {}
    momentum, variant = settings.momentum, settings.variant
    for name, w in params.items():
        g = np.atleast_1d(grads[name] + (settings.weight_decay * w if w.ndim > 1 else 0.0))
        mu, nu = state["covers"][name], np.zeros(g.shape)
        after = [value.copy() if variant == "I" else np.zeros_like(value) for value in mu]
        places = list(product(*map(range, g.shape)))
        if variant == "I":
            for axis, value in enumerate(mu):
                for r in range(len(value)):  # μ_t(r) ← μ_{t-1}(r) + max over j in S_r of g_t²(j)
                    after[axis][r] = value[r] + max(g[j] ** 2 for j in places if j[axis] == r)
            for i in places:  # ν_t(i) ← min over the sets that hold i of μ_t(r)
                nu[i] = min(value[i[axis]] for axis, value in enumerate(after))
        else:
            for i in places:
                nu[i] = min(value[i[axis]] for axis, value in enumerate(mu)) + g[i] ** 2  # ν'_t(i)
                for axis, value in enumerate(after):  # μ'_t(r) ← max{μ'_t(r), ν'_t(i)} for the sets that hold i
                    value[i[axis]] = max(value[i[axis]], nu[i])
        scaled = (g / np.sqrt(nu + EPSILON)).reshape(w.shape)  # 0/0 = 0
        velocity[name] = momentum * state["velocity"][name] + (1.0 - momentum) * scaled
        new[name], covers[name] = w - settings.lr * velocity[name], after
    return new, {"covers": covers, "velocity": velocity}
