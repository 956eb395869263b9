"""What several models share: initial values in NumPy here, layers in torch.py and jax.py."""

import functools
import zlib

import numpy as np

from suite.contract import Spec

CHUNK = 4096  # rows drawn together: any slice of a large table can be made without the rest


def draw(spec: Spec, seed: int, name: str, rows: slice | None = None) -> np.ndarray:
    """The initial value of one parameter or buffer, or some rows of it.

    Args:
        spec: its `initializer` is `zeros`, `ones`, `normal(σ)`, or `fan_out_normal`: variance 2 / fan-out
            (He et al. 2015, eq. 14, backward case).
        seed: the run's seed.
        name: the parameter's name; each has a stream of its own.
        rows: a slice of the leading axis; all of it by default.

    Returns:
        float32, of `spec.shape` with the leading axis cut to `rows`.
    """
    start, stop, _ = (rows or slice(None)).indices(spec.shape[0])
    shape = (stop - start, *spec.shape[1:])
    kind, _, argument = spec.initializer.rstrip(")").partition("(")
    if kind in ("zeros", "ones"):
        return np.full(shape, float(kind == "ones"), np.float32)
    fan_out = spec.shape[0] * int(np.prod(spec.shape[2:]))
    deviation = {"normal": lambda: float(argument), "fan_out_normal": lambda: (2.0 / fan_out) ** 0.5}[kind]()
    chunks = range(start // CHUNK, -(-stop // CHUNK))
    values = np.concatenate([_normal(seed, name, chunk, spec.shape) for chunk in chunks])
    offset = start - chunks.start * CHUNK
    return values[offset : offset + stop - start] * np.float32(deviation)


@functools.lru_cache(maxsize=1)
def _normal(seed: int, name: str, chunk: int, shape: tuple[int, ...]) -> np.ndarray:
    generator = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, zlib.crc32(name.encode()), chunk])))
    rows = min(CHUNK, shape[0] - chunk * CHUNK)
    return generator.standard_normal((rows, *shape[1:]), np.float32)
