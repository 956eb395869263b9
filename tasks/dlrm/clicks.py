"""Generated clicks whose probability is known, written in Criteo's format and read by the same loader as real ones.

A click's logit is a constant, a linear part in the logarithms of 13 counts, a bias for each of 26 categories, and the
inner products of 12 pairs of latent vectors: what an interaction of embeddings can learn and a linear model cannot.
Rows are drawn in chunks, each with its own counter-based stream, so that any row can be made without the others.
"""

import functools
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from suite.contract import Data
from suite.tasks.dlrm import criteo
from suite.tasks.dlrm.architecture import DENSE, FEATURES

WORLD = 1  # version: increase it when a formula or constant below changes
SPLITS = {"train": 0, "valid": 1}
STREAM = int.from_bytes(b"clicks")
CHUNK = 8192
# a power law between 8 and 10,000, rounded
ROWS = (8, 12, 20, 30, 40, 60, 80, 100, 150, 200, 250, 300, 400, 500, 600, 800, 1000, 1200, 1500, 2000, 2500, 3000)
ROWS += (4000, 5000, 8000, 10000)
ZIPF = 1.1  # of the categories' frequencies
LATENT, PAIRS, STRENGTH = 4, 12, 1.05
BASE = -1.6  # chosen so that about a quarter of the rows are clicks


@dataclass(frozen=True)
class World:
    """Constants of all rows: frequencies and hexadecimal names of the categories, and the formula of the logit."""

    cumulative: list[np.ndarray]
    names: list[list[str]]
    biases: list[np.ndarray]
    latent: list[np.ndarray]
    pairs: np.ndarray
    dense: np.ndarray


@functools.lru_cache(maxsize=1)
def make_world() -> World:
    """Return the world of version WORLD."""
    draws = np.random.Generator(np.random.Philox(key=[WORLD, 0], counter=[0, 0, 2, STREAM]))
    latent = [draws.normal(size=(rows, LATENT)) / LATENT**0.5 for rows in ROWS]
    biases = [draws.normal(0, 0.21 if field % 2 else 0.07, rows) for field, rows in enumerate(ROWS)]
    order = np.argsort(draws.random(FEATURES * (FEATURES - 1) // 2))[:PAIRS]
    pairs = np.stack(np.tril_indices(FEATURES, -1))[:, order]
    names, cumulative = [], []
    for field, rows in enumerate(ROWS):
        codes = np.unique(draws.integers(1, 2**32, 2 * rows + 16))
        chosen = draws.permutation(codes)[:rows]
        # every third field leaves its rarest category empty, as Criteo's files do for unknown values
        names.append([f"{code:08x}" for code in chosen[:-1]] + (["" if field % 3 == 0 else f"{chosen[-1]:08x}"]))
        share = np.arange(1, rows + 1) ** -ZIPF
        cumulative.append(np.cumsum(share / share.sum()))
    return World(cumulative, names, biases, latent, pairs, draws.normal(0, 0.25, DENSE))


def draw_chunk(split: str, chunk: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """One chunk of rows.

    Returns:
        Counts (CHUNK, 13) int64, categories (CHUNK, 26) int64, each row's probability of a click (CHUNK,) float64, and
        clicks (CHUNK,) int64.
    """
    fixed = make_world()
    draws = np.random.Generator(np.random.Philox(key=[WORLD, chunk], counter=[0, 0, SPLITS[split], STREAM]))
    dense = np.floor(draws.lognormal(1.0, 1.2, (CHUNK, DENSE))).astype(np.int64)
    ranks = draws.random((FEATURES, CHUNK))
    ids = np.stack([np.searchsorted(c, r).clip(0, len(c) - 1) for c, r in zip(fixed.cumulative, ranks, strict=True)], 1)
    logit = BASE + (np.log1p(dense) - 1.2) @ fixed.dense
    vectors = [latent[ids[:, field]] for field, latent in enumerate(fixed.latent)]
    for field, bias in enumerate(fixed.biases):
        logit += bias[ids[:, field]]
    for one, other in fixed.pairs.T:
        logit += STRENGTH * (vectors[one] * vectors[other]).sum(1)
    probability = 1.0 / (1.0 + np.exp(-logit))
    return dense, ids, probability, (draws.random(CHUNK) < probability).astype(np.int64)


def format_rows(split: str, samples: int) -> Iterator[str]:
    """Rows as Criteo writes them: label, 13 integers, 26 hexadecimal words, with tabs between; empty if unknown."""
    names = make_world().names
    for chunk in range(-(-samples // CHUNK)):
        dense, ids, _, click = draw_chunk(split, chunk)
        columns = [map(str, click.tolist())]
        columns += [[str(count) if count else "" for count in column] for column in dense.T.tolist()]
        columns += [[names[field][row] for row in column] for field, column in enumerate(ids.T.tolist())]
        for row, _ in zip(zip(*columns, strict=True), range(samples - chunk * CHUNK), strict=False):
            yield "\t".join(row)


def write_splits(folder: Path, *, train: int, valid: int) -> None:
    """Write `train.txt` and `valid.txt`."""
    for split, samples in (("train", train), ("valid", valid)):
        with (folder / f"{split}.txt").open("w") as file:
            file.writelines(f"{line}\n" for line in format_rows(split, samples))


def make(*, train: int = 400_000, valid: int = 30_000) -> criteo.Records:
    """Return the generated rows, prepared once in the user's cache and memory-mapped.

    Args:
        train: training rows.
        valid: validation rows.
    """
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "suite" / "data"
    identity = f"clicks-{WORLD}-{train}-{valid}"
    folder = base / identity
    if not (folder / criteo.MANIFEST).exists():
        base.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=base) as scratch:
            raw, prepared = Path(scratch, "raw"), Path(scratch, "prepared")
            raw.mkdir()
            write_splits(raw, train=train, valid=valid)
            criteo.prepare(raw, prepared)
            shutil.rmtree(folder, ignore_errors=True)
            prepared.rename(folder)
    samples = {"train": train, "valid": valid}
    note = "generated clicks: a stand-in that shows patterns, not what Criteo's data would give"
    return criteo.Records(folder, Data("generated", "clicks", identity, samples, note=note, unit="rows"))
