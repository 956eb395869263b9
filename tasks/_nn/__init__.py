"""Shared code of the models: initial values (NumPy, here) and layers (torch.py and jax.py)."""

import functools
import math
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from suite.contract import Spec, suggest_names

CHUNK = 4096  # rows drawn together, so that a slice of a large table can be drawn without the rest
Shape = tuple[int, ...]


def keeps_result(version: str, options: Mapping[str, Any]) -> bool:
    """Version 2 of the tasks with dropout has other draws; see `suite.contract.KeepsResults`."""
    return version == "1" and not options.get("dropout")


def mark_undefined(outputs: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Return the number that makes a score undefined: NaN for each sample of outputs that are not finite, else 0.

    Args:
        outputs: of a model, (n, …).
        weight: of the samples, (n,); padding has weight 0 and is never marked.
    """
    finite = np.isfinite(outputs).reshape(len(outputs), -1).all(1)
    return np.where(finite | (weight == 0), 0.0, np.nan)


def compute_fans(shape: Shape) -> tuple[int, int]:
    """Fan-in and fan-out of a weight in torch's shape (out, in, …)."""
    receptive = math.prod(shape[2:])
    return shape[1] * receptive, shape[0] * receptive


# For each initializer, the distribution's scale from the weight's shape and the number in brackets.
NORMAL: dict[str, Callable[[Shape, float], float]] = {
    "normal": lambda shape, deviation: deviation,
    "fan_in_normal": lambda shape, _: math.sqrt(2.0 / compute_fans(shape)[0]),  # He et al. 2015, eq. 10
    "fan_out_normal": lambda shape, _: math.sqrt(2.0 / compute_fans(shape)[1]),  # He et al. 2015, eq. 14, backward case
    "glorot_normal": lambda shape, _: math.sqrt(2.0 / sum(compute_fans(shape))),  # Glorot and Bengio 2010, eq. 12
}
UNIFORM: dict[str, Callable[[Shape, float], float]] = {  # between minus and plus this
    "uniform": lambda shape, bound: bound,
    "fan_in_uniform": lambda shape, _: 1.0 / math.sqrt(compute_fans(shape)[0]),  # torch's Linear and Conv2d
    "glorot_uniform": lambda shape, _: math.sqrt(6.0 / sum(compute_fans(shape))),  # Glorot and Bengio 2010, eq. 16
}
CUT = 2.0  # deviations at which truncated_normal(σ) is cut, as in TensorFlow's initializer


def draw_initial_value(spec: Spec, seed: int, name: str, rows: slice | None = None) -> np.ndarray:
    """Return the initial value of one parameter or buffer, or some rows of it.

    Args:
        spec: its `initializer` is `zeros`, `ones`, `constant(c)`, a key of NORMAL or UNIFORM, with its number in
            brackets if it has one, or `truncated_normal(σ)`.
        seed: the run's seed.
        name: the parameter's name; each has its own stream.
        rows: a slice of the leading axis; None draws all rows.

    Returns:
        float32, of `spec.shape` with the leading axis reduced to `rows`.

    Raises:
        ValueError: there is no such initializer.
    """
    start, stop, _ = (rows or slice(None)).indices(spec.shape[0])
    kind, _, argument = spec.initializer.rstrip(")").partition("(")
    number = float(argument or 0)
    constants = {"zeros": 0.0, "ones": 1.0, "constant": number}
    known = (*constants, *UNIFORM, *NORMAL, "truncated_normal")
    if kind not in known:
        raise ValueError(f"{name}: initializer {spec.initializer}: unknown; {suggest_names(kind, known)}")
    if kind in constants:
        return np.full((stop - start, *spec.shape[1:]), constants[kind], np.float32)
    if kind in UNIFORM:
        fill, scale = _uniform, UNIFORM[kind](spec.shape, number)
    elif kind == "truncated_normal":
        fill, scale = _truncated, number
    else:
        fill, scale = _normal, NORMAL[kind](spec.shape, number)
    chunks = range(start // CHUNK, -(-stop // CHUNK))
    values = np.concatenate([fill(seed, name, chunk, spec.shape) for chunk in chunks])
    offset = start - chunks.start * CHUNK
    return values[offset : offset + stop - start] * np.float32(scale)


def _stream(seed: int, name: str, chunk: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, zlib.crc32(name.encode()), chunk])))


def _chunk(shape: Shape, chunk: int) -> Shape:
    return min(CHUNK, shape[0] - chunk * CHUNK), *shape[1:]


@functools.lru_cache(maxsize=1)
def _normal(seed: int, name: str, chunk: int, shape: Shape) -> np.ndarray:
    return _stream(seed, name, chunk).standard_normal(_chunk(shape, chunk), np.float32)


@functools.lru_cache(maxsize=1)
def _uniform(seed: int, name: str, chunk: int, shape: Shape) -> np.ndarray:
    return 2.0 * _stream(seed, name, chunk).random(_chunk(shape, chunk), np.float32) - 1.0


@functools.lru_cache(maxsize=1)
def _truncated(seed: int, name: str, chunk: int, shape: Shape) -> np.ndarray:
    generator = _stream(seed, name, chunk)
    values = generator.standard_normal(_chunk(shape, chunk), np.float32)
    while (outside := np.abs(values) > CUT).any():
        values[outside] = generator.standard_normal(int(outside.sum()), np.float32)
    return values
