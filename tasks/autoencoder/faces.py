"""Generated faces of 25 × 25 grey pixels: head, eyes, brows, nose and mouth, with random light and rotation.

They stand for the Olivetti patches of Hinton and Salakhutdinov's FACES set, whose photographs may not be passed on.
"""

import functools

import numpy as np

from suite.contract import Data

WORLD = 1  # version: increase it when a formula or constant below changes
SPLITS = {"train": 0, "valid": 1}
STREAM = int.from_bytes(b"faces")
SIDE = 25
CHUNK = 1000
DRAWS = 12  # uniform numbers that make one face
# centre, radii and shade of each feature, in units of the head, whose ellipse is (0.75, 1)
FEATURES = (
    ((-0.3, -0.2), (0.16, 0.09), -0.5),
    ((0.3, -0.2), (0.16, 0.09), -0.5),
    ((-0.3, -0.42), (0.2, 0.05), -0.35),
    ((0.3, -0.42), (0.2, 0.05), -0.35),
    ((0.0, 0.12), (0.08, 0.2), 0.2),
    ((0.0, 0.5), (0.28, 0.09), -0.4),
)


def paint_images(split: str, start: int, stop: int) -> np.ndarray:
    """Return the faces of rows start…stop-1, (n, 625) float32 around 0…1; start must be a multiple of CHUNK."""
    generator = np.random.Generator(np.random.Philox(key=[WORLD, start], counter=[0, 0, SPLITS[split], STREAM]))
    draws = generator.uniform(-1.0, 1.0, (CHUNK, DRAWS)).astype(np.float32)[: stop - start, :, None, None]
    turn, scale = 0.35 * draws[:, 0], 0.42 + 0.05 * draws[:, 1]
    grid = np.linspace(-0.5, 0.5, SIDE, dtype=np.float32)
    x, y = grid[None, None, :] - 0.06 * draws[:, 2], grid[None, :, None] - 0.06 * draws[:, 3]
    u = (np.cos(turn) * x + np.sin(turn) * y) / scale
    v = (np.cos(turn) * y - np.sin(turn) * x) / scale

    def ellipse(centre: tuple[float, float], radii: tuple[np.ndarray | float, np.ndarray | float]) -> np.ndarray:
        """1 inside, 0 outside, with a soft edge."""
        distance = ((u - centre[0]) / radii[0]) ** 2 + ((v - centre[1]) / radii[1]) ** 2
        return 1.0 / (1.0 + np.exp(np.clip(6.0 * (distance - 1.0), -30, 30)))

    width, opening, shade = 0.75 + 0.1 * draws[:, 4], 1.0 + 0.5 * draws[:, 5], 0.55 + 0.2 * draws[:, 6]
    light = 1.0 + 0.35 * (draws[:, 7] * u + draws[:, 8] * v)
    face = np.full(u.shape, 0.0, np.float32)
    for number, (centre, radii, contrast) in enumerate(FEATURES):
        strength = contrast * (1.0 + 0.4 * draws[:, 9 + number // 2])
        tall = radii[1] * (opening if number in (0, 1, 5) else 1.0)
        face += strength * ellipse(centre, (radii[0], tall))
    head = ellipse((0.0, 0.0), (width, 1.0))
    return (head * shade * light * (1.0 + face) + (1.0 - head) * 0.1).reshape(stop - start, -1).astype(np.float32)


@functools.lru_cache(maxsize=2)  # the two splits, shared within the process
def _split(split: str, samples: int) -> np.ndarray:
    return np.concatenate(
        [paint_images(split, start, min(start + CHUNK, samples)) for start in range(0, samples, CHUNK)]
    )


class Faces:
    """Faces; a split is painted when it is first read, and stored."""

    def __init__(self, train: int = 20_000, valid: int = 5_000):
        """Set the numbers of images; the published set has 103,500 and 41,400.

        Args:
            train: training images.
            valid: validation images.
        """
        samples = {"train": train, "valid": valid}
        note = "generated faces: a stand-in that shows patterns, not what FACES would give"
        self.data = Data("generated", "faces", f"faces-{WORLD}", samples, unit="images", note=note)
        self.pixels = SIDE * SIDE

    def read(self, split: str, rows: np.ndarray) -> np.ndarray:
        """Some images, (n, 625) float32."""
        return _split(split, self.data.samples[split])[rows]


make = Faces
