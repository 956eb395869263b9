"""Generated strokes, like those in Hinton and Salakhutdinov's CURVES.

A stroke is the quadratic through three random points, drawn with a round pen of Gaussian profile on 28 × 28 pixels.
"""

import functools

import numpy as np

from suite.contract import Data, append_sizes

WORLD = 1  # version: increase it when a formula or constant below changes
SPLITS = {"train": 0, "valid": 1}
STREAM = int.from_bytes(b"curves")
SIDE = 28
POINTS = 40  # points of the pen along the stroke
REACH = (0.15, 0.85)  # of the three points, in units of the side
CHUNK = 125  # strokes drawn together, so that temporary arrays fit into the cache


def paint_images(split: str, start: int, stop: int) -> np.ndarray:
    """Return the strokes of rows start…stop-1, (n, 784) float32 in 0…1; start must be a multiple of CHUNK."""
    draws = np.random.Generator(np.random.Philox(key=[WORLD, start], counter=[0, 0, SPLITS[split], STREAM]))
    corners = draws.uniform(*REACH, (CHUNK, 3, 2))[: stop - start]
    t = np.linspace(0.0, 1.0, POINTS)
    lagrange = np.stack([2 * (t - 0.5) * (t - 1), -4 * t * (t - 1), 2 * t * (t - 0.5)], 1)  # through t = 0, ½, 1
    places = np.einsum("tk,nkd->ntd", lagrange, corners) * (SIDE - 1)
    pixels = np.arange(SIDE)
    x, y = (np.exp(-((pixels - places[..., axis, None]) ** 2)).astype(np.float32) for axis in range(2))
    ink = np.zeros((stop - start, SIDE, SIDE), np.float32)
    for point in range(POINTS):
        np.maximum(ink, y[:, point, :, None] * x[:, point, None, :], out=ink)
    ink[ink < np.finfo(np.float32).tiny] = (
        0.0  # sums do not change, but CPUs multiply subnormal numbers 50 times slower
    )
    return ink.reshape(stop - start, -1)


@functools.lru_cache(maxsize=2)  # the two splits, shared within the process
def _split(split: str, samples: int) -> np.ndarray:
    return np.concatenate(
        [paint_images(split, start, min(start + CHUNK, samples)) for start in range(0, samples, CHUNK)]
    )


class Curves:
    """Strokes; a split is drawn when it is first read, and stored."""

    def __init__(self, train: int = 20_000, valid: int = 10_000):
        """Set the numbers of images; the published set has 20,000 and 10,000.

        Args:
            train: training strokes.
            valid: validation strokes.
        """
        samples = {"train": train, "valid": valid}
        note = "generated strokes: same kind and number as CURVES, not the same images"
        self.data = Data(
            "generated", "curves", append_sizes(f"curves-{WORLD}", samples), samples, unit="images", note=note
        )
        self.pixels = SIDE * SIDE

    def read(self, split: str, rows: np.ndarray) -> np.ndarray:
        """Some images, (n, 784) float32."""
        return _split(split, self.data.samples[split])[rows]


make = Curves
