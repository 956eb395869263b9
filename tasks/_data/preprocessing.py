"""Turns a decoded photograph into a network's input: resized, cropped, mirrored, normalised, partly erased."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from PIL import Image

from suite.contract import UserError
from suite.tasks._data import augment

# Mean and standard deviation of ImageNet's red, green and blue, published for 0…1 with fb.resnet.torch (Gross and
# Wilber 2016, datasets/imagenet.lua) and used by torchvision ever since.
MEAN = (0.485 * 255, 0.456 * 255, 0.406 * 255)
STD = (0.229 * 255, 0.224 * 255, 0.225 * 255)
THREADS = 4  # that make the images of one batch

Photograph = Image.Image | np.ndarray  # decoded: Pillow's image, or (height, width, 3) uint8


@dataclass(frozen=True)
class Preprocessing:
    """Training images are random resized crops, mirrored with probability ½; validation images are central crops.

    Images are resized with Pillow's bilinear filter and its antialiasing (the filter widens with the reduction). OpenCV
    and TensorFlow do not antialias by default, which changes accuracies by tenths of a point.

    Attributes:
        size: height and width of the network's input.
        resize: shorter side of a validation image before its central crop; by default size × 256 / 224, rounded.
        warp: resize every image to warp × warp first, whatever its shape, and crop a square of `size`: at random in
            training, centrally in validation. Caffe does this; crop_area, aspect and resize are then unused.
        crop_area: share of the image that a training crop covers (MLPerf: from 0.05).
        aspect: width / height of a training crop.
        flip: whether to mirror training images with probability ½.
        mean: subtracted from red, green, blue, in units of 0…255.
        std: the divisor after that, in the same units. MLPerf does not divide: mean (123.68, 116.78, 103.94), std
            (1, 1, 1).
        erase: probability of random erasing; SP-NGD: 0.5, with the area and aspect below.
        erase_area: share of the image that is erased.
        erase_aspect: height / width of the erased rectangle, or width / height, with probability ½ each.
    """

    size: int = 224
    resize: int | None = None
    warp: int | None = None
    crop_area: tuple[float, float] = (0.08, 1.0)
    aspect: tuple[float, float] = (3 / 4, 4 / 3)
    flip: bool = True
    mean: tuple[float, float, float] = MEAN
    std: tuple[float, float, float] = STD
    erase: float = 0.0
    erase_area: tuple[float, float] = (0.02, 0.25)
    erase_aspect: tuple[float, float] = (0.3, 1.0)

    def __post_init__(self) -> None:
        for name, value in (("warp", self.warp), ("resize", self.resize)):
            if value and value < self.size:
                raise UserError(
                    f"{name}={value}: too small for a crop of size={self.size}; "
                    f"set +task.sources.folder.options.{name}={self.size} or more"
                )

    def fill_input(self, out: np.ndarray, image: Photograph, split: str, *, seed: int, number: int) -> None:
        """Write the network's input into `out`, (3, size, size) float32; as bytes, it is not normalised yet.

        Args:
            out: where to write; uint8 for bytes.
            image: the decoded photograph.
            split: `train` distorts the image, `valid` does not.
            seed: the run's seed.
            number: of the sample in the run; with the seed, the key of every draw.
        """
        if split != "train":
            self._write(self._cut(image), out)
            return
        draws = augment.make_generator(seed, number)
        pixels = self._distort(image, draws)
        self._write(pixels[:, ::-1] if self.flip and augment.draw_flip(draws) else pixels, out)
        augment.erase_rectangle(draws, out, probability=self.erase, area=self.erase_area, aspect=self.erase_aspect)

    def _distort(self, image: Photograph, draws: np.random.Generator) -> np.ndarray:
        """Return a random crop, (size, size, 3) uint8."""
        if self.warp:
            box = augment.draw_square_box(draws, side=self.warp, size=self.size)
            return _crop(resize_to_square(image, self.warp), box)
        image = to_image(image)
        box = augment.draw_crop_box(
            draws, width=image.width, height=image.height, area=self.crop_area, aspect=self.aspect
        )
        return np.asarray(image.resize((self.size, self.size), Image.Resampling.BILINEAR, box=box))

    def _cut(self, image: Photograph) -> np.ndarray:
        """Return the central crop, (size, size, 3) uint8."""
        if self.warp:
            return _crop(resize_to_square(image, self.warp), augment.centre_box(*2 * (self.warp,), *2 * (self.size,)))
        image = resize_shorter_side(to_image(image), self.resize or round(self.size * 256 / 224))
        return np.asarray(image.crop(augment.centre_box(*image.size, self.size, self.size)))

    def _write(self, pixels: np.ndarray, out: np.ndarray) -> None:
        channels = pixels.transpose(2, 0, 1)
        if out.dtype == np.uint8:
            out[...] = channels
            return
        mean, std = self.moments
        np.subtract(channels, mean, out=out)
        np.divide(out, std, out=out)

    @cached_property
    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation, (3, 1, 1) float32."""
        mean, std = (np.asarray(values, np.float32).reshape(3, 1, 1) for values in (self.mean, self.std))
        return mean, std


def to_image(image: Photograph) -> Image.Image:
    """Return a photograph as Pillow's image."""
    return Image.fromarray(image) if isinstance(image, np.ndarray) else image


def resize_to_square(image: Photograph, side: int) -> np.ndarray:
    """Resize to side × side, whatever the shape; a stored photograph of this shape is returned as it is."""
    if isinstance(image, np.ndarray) and image.shape[:2] == (side, side):
        return image
    return np.asarray(to_image(image).resize((side, side), Image.Resampling.BILINEAR))


def resize_shorter_side(image: Image.Image, side: int) -> Image.Image:
    """Resize, keeping the shape, so that the shorter side has `side` pixels."""
    scale = side / min(image.size)
    return image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.BILINEAR)


def _crop(pixels: np.ndarray, box: tuple[int, int, int, int]) -> np.ndarray:
    left, top, right, bottom = box
    return pixels[top:bottom, left:right]


def fill_batch(fill: Callable[[int], None], count: int) -> None:
    """Call `fill` for 0…count-1 in THREADS threads: Pillow and NumPy release Python's lock while they compute."""

    def fill_every(first: int) -> None:
        for place in range(first, count, THREADS):
            fill(place)

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(fill_every, range(THREADS)))
