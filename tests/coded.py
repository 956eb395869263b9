"""Every codec of the tree and outside it, with the options that any preset gives it, in NumPy, torch and jax."""

import json
from dataclasses import replace
from typing import Any

import engines
import jax
import numpy as np
import torch
import yaml
from conftest import OUTSIDE

from suite import load
from suite.comm import setup

CAST = ("float16", "bfloat16")  # by frameworks themselves, each of which has NaNs of its own bits
FRACTIONS = (0, 1, 0x3FF, 0x400, 0x1000, 0x3FFFFF, 0x400000, 0x7FE000, 0x7FF000, 0x7FFFFF)
MODULES = [f"suite.comm.codecs.{name}" for name in load.find_members("codecs")] + ["mylab.truncate16"]


def nodes() -> dict[str, dict[str, Any]]:
    """Return the nodes that stand for a codec in any preset, by a readable name."""
    found = [{"module": module} for module in MODULES]

    def collect(value: Any) -> None:
        if isinstance(value, dict):
            if str(value.get("module", "")).rpartition(".")[0] in ("suite.comm.codecs", "mylab"):
                found.append(value)
            for item in value.values():
                collect(item)

    for path in load.find_files("comm", OUTSIDE / "conf"):
        collect(yaml.safe_load(path.read_text()))
    return {name(node): node for node in found}


def name(node: dict[str, Any]) -> str:
    """`minifloat(exponent=4,mantissa=3)`."""
    options = ",".join(f"{key}={value}" for key, value in node.items() if key != "module")
    return node["module"].rpartition(".")[2] + (f"({options})" if options else "")


NODES = nodes()


def halves(node: dict[str, Any]) -> dict[str, Any]:
    """Make the specification and both backends' halves."""
    return {backend or "numpy": setup.make_codec(engines.part(**node), backend) for backend in (None, "torch", "jax")}


def compiled(node: dict[str, Any]) -> Any:
    """torch's half with compiled kernels."""
    return replace(halves(node)["torch"], compiles=True)


def encode(codec: Any, backend: str, values: np.ndarray, draw: Any = None) -> np.ndarray:
    """Return the payload that one half makes of NumPy values."""
    if backend == "torch":
        drawn = (lambda count: torch.from_numpy(draw(count))) if draw else None
        return codec.encode(_tensor(values), drawn).numpy()
    if backend == "jax":
        drawn = (lambda count: jax.numpy.asarray(draw(count))) if draw else None
        return np.asarray(jax.jit(lambda v: codec.encode(v, drawn))(values)).view(np.uint8)
    return codec.encode(values, draw)


def decode(codec: Any, backend: str, payload: np.ndarray, like: np.ndarray) -> np.ndarray:
    """Return the values that one half makes of a payload."""
    if backend == "torch":
        return codec.decode(_tensor(payload), _tensor(like)).numpy()
    if backend == "jax":
        drawn = lambda count: jax.numpy.zeros(count)  # noqa: E731
        words = jax.eval_shape(lambda v: codec.encode(v, drawn), like).dtype  # any unsigned type
        return np.asarray(jax.jit(codec.decode)(payload.view(words), like))
    return codec.decode(payload, like)


def _tensor(values: np.ndarray) -> torch.Tensor:
    """A copy with torch's own strides: those of an empty NumPy array are zero."""
    given = torch.from_numpy(values.copy())
    return torch.empty(given.shape, dtype=given.dtype).copy_(given)


def samples(count: int, seed: int = 0, kind: str = "heavy") -> np.ndarray:
    """float32 values as gradients are: `normal`, or `heavy` in the tails."""
    generator = np.random.default_rng(seed)
    values = 1e-3 * generator.normal(size=count)
    return (values * np.exp(1.5 * generator.normal(size=count)) if kind == "heavy" else values).astype(np.float32)


def patterns(finite: bool) -> np.ndarray:
    """2**16 floats: both signs of every exponent with some fractions, then random bits; shuffled, NaNs and all."""
    generator = np.random.default_rng(0)
    upper = np.arange(512, dtype=np.uint32) << 23
    chosen = (upper[:, None] | np.array(FRACTIONS, np.uint32)).reshape(-1)
    bits = np.concatenate([chosen, generator.integers(0, 2**32, 2**16 - len(chosen), np.uint32)])
    special = (bits & 0x7F800000) == 0x7F800000
    return generator.permutation(np.where(special & finite, bits & 0xBFFFFFFF, bits)).view(np.float32)


def fingerprint(payload: np.ndarray) -> str:
    """Of a payload, for golden values."""
    import hashlib

    return hashlib.sha256(payload.tobytes()).hexdigest()[:16]


def golden() -> dict[str, str]:
    """Return what `python tests/coded.py` writes to tests/comm/golden.json."""
    values = samples(1000)
    draw = lambda count: np.random.default_rng(1).random(count, np.float32)  # noqa: E731
    return {key: fingerprint(halves(node)["numpy"].encode(values, draw)) for key, node in sorted(NODES.items())}


if __name__ == "__main__":
    from pathlib import Path

    (Path(__file__).parent / "comm" / "golden.json").write_text(json.dumps(golden(), indent=1) + "\n")
