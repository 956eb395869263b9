"""Generated images in 16 classes: four shapes, each filled with one of four textures. Learning takes many steps.

An image is a function of (world version, split, row) alone: counter-based draws, one stream per image. How many images
are made, in which order and in which chunks changes nothing.
"""

import functools

import numpy as np

from suite.contract import Data, append_sizes

WORLD = 1  # version: increase it when a formula or constant below changes
SPLITS = {"train": 0, "valid": 1}
STREAM = int.from_bytes(b"shapes")  # high word of the counter: separates these draws from others with the same key
MEAN, DEVIATION = 0.5, 0.35  # normalisation of values that are mostly in 0…1
CHUNK = 128  # rows painted together, so that temporary arrays fit into the cache

# Inside of each shape in its own coordinates, where the radius is 1.
SHAPES = {
    "disc": lambda u, v: u * u + v * v < 1,
    "square": lambda u, v: (abs(u) < 0.8) & (abs(v) < 0.8),
    "triangle": lambda u, v: (v > -0.6) & (v < 1 - 1.9 * abs(u)),
    "cross": lambda u, v: ((abs(u) < 0.3) & (abs(v) < 0.95)) | ((abs(v) < 0.3) & (abs(u) < 0.95)),
}
# Of each texture's wave: radians per pixel, and direction in degrees. Mirroring would swap the last two.
TEXTURES = {"coarse0": (0.5, 0), "coarse90": (0.5, 90), "fine45": (1.1, 45), "fine135": (1.1, 135)}
# Class names, numbered so that the order of directories is the order of labels.
NAMES = tuple(
    f"{4 * i + j:02d}-{shape}-{texture}" for i, shape in enumerate(SHAPES) for j, texture in enumerate(TEXTURES)
)


def paint_images(
    split: str, rows: np.ndarray, *, size: int = 48, radius: tuple[float, float] = (0.30, 0.42), noise: float = 0.08
) -> tuple[np.ndarray, np.ndarray]:
    """Return the images of some rows, before normalisation.

    Args:
        split: `train` or `valid`; each has its own streams.
        rows: (n,) any integers from 0: the source has no end.
        size: height and width in pixels. Textures are in pixels too, so a smaller image shows fewer waves.
        radius: smallest and largest radius, in units of `size`; smaller is harder.
        noise: standard deviation of each pixel's noise; larger is harder.

    Returns:
        Images (n, 3, size, size) float32, mostly in 0…1 and not clipped, equal everywhere up to the rounding of sine
        and cosine; labels (n,) int32, the rows modulo 16, so that any 16 rows in sequence hold each class once.
    """
    images = np.empty((len(rows), 3, size, size), np.float32)
    uniform, normal = np.empty((12, len(rows)), np.float32), np.empty(len(rows), np.float32)
    for i, row in enumerate(rows):
        draws = np.random.Generator(np.random.Philox(key=[WORLD, int(row)], counter=[0, 0, SPLITS[split], STREAM]))
        uniform[:, i] = draws.random(12, dtype=np.float32)
        normal[i] = draws.standard_normal(dtype=np.float32)
        draws.standard_normal(out=images[i], dtype=np.float32)
    images *= noise

    def between(draw: int, low: float, high: float) -> np.ndarray:
        return (low + (high - low) * uniform[draw])[:, None, None]

    labels = (rows % 16).astype(np.int32)
    shape, texture = labels // 4, labels % 4
    y, x = np.mgrid[:size, :size].astype(np.float32)

    x0, y0, reach = (size * between(draw, *limits) for draw, limits in enumerate([(0.35, 0.65), (0.35, 0.65), radius]))
    turn = between(3, 0, 2 * np.pi) * (shape != 0)[:, None, None]  # a rotated disc looks the same
    turn_cos, turn_sin = np.cos(turn) / reach, np.sin(turn) / reach
    u = turn_cos * (x - x0) + turn_sin * (y - y0)
    v = turn_cos * (y - y0) - turn_sin * (x - x0)
    inside = np.empty(u.shape, bool)
    for kind, test in enumerate(SHAPES.values()):
        inside[shape == kind] = test(u[shape == kind], v[shape == kind])

    waves = np.array(list(TEXTURES.values()), np.float32)[texture]
    frequency = waves[:, 0, None, None] * between(4, 0.9, 1.1)
    direction = np.deg2rad(waves[:, 1, None, None]) + np.float32(0.12) * normal[:, None, None]
    wave = np.sin(frequency * np.cos(direction) * x + frequency * np.sin(direction) * y + between(5, 0, 2 * np.pi))
    light = 1 + np.float32(0.5) * wave
    for channel in range(3):
        front, back = between(6 + channel, 0.2, 1), between(9 + channel, 0, 0.8)
        images[:, channel] += np.where(inside, front * light, back)
    return images, labels


@functools.lru_cache(maxsize=2)  # the two splits of one source, shared within the process
def _split(
    split: str, samples: int, size: int, radius: tuple[float, float], noise: float
) -> tuple[np.ndarray, np.ndarray]:
    images, labels = np.empty((samples, 3, size, size), np.float32), np.empty(samples, np.int32)
    for start in range(0, samples, CHUNK):
        part = slice(start, min(start + CHUNK, samples))
        images[part], labels[part] = paint_images(
            split, np.arange(part.start, part.stop), size=size, radius=radius, noise=noise
        )
    images -= MEAN
    images /= DEVIATION
    return images, labels


class Shapes:
    """Sixteen classes of generated images, no augmentation. A split is painted when it is first read, and stored."""

    classes = 16

    def __init__(
        self,
        size: int = 48,
        *,
        radius: tuple[float, float] = (0.30, 0.42),
        noise: float = 0.08,
        train: int = 8192,
        valid: int = 1024,
    ):
        """Set the generator's options; see `paint_images` for size, radius and noise.

        Args:
            size: height and width in pixels.
            radius: smallest and largest radius of the shapes.
            noise: standard deviation of the pixels' noise.
            train: number of training images.
            valid: number of validation images.
        """
        self.size, self._radius, self._noise = size, (radius[0], radius[1]), noise
        samples = {"train": train, "valid": valid}
        self.data = Data(
            kind="generated",
            name="shapes",
            identity=append_sizes(f"shapes-{WORLD}/{size}px/r{radius[0]:g}-{radius[1]:g}/noise{noise:g}", samples),
            samples=samples,
            unit="images",
            note="generated images: a stand-in that shows patterns, not a photograph's accuracy",
        )

    def read(self, split: str, rows: np.ndarray, *, seed: int, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Images and labels of some rows; see `Images`. Nothing is random, so seed and numbers are not used."""
        images, labels = _split(split, self.data.samples[split], self.size, self._radius, self._noise)
        return images[rows], labels[rows]


make = Shapes
