"""Augmentations of a training image; each is a pure function of one sample's generator.

Only `Generator.random` is drawn from: it is the plainest step from the bits to a number, and the least likely to change
between NumPy versions.
"""

import math

import numpy as np

AUGMENT = int.from_bytes(b"augment")  # high word of the counter: separates these draws from others with the same key
ATTEMPTS = 10  # boxes that are tried before the fallback (torchvision's RandomResizedCrop)


def make_generator(seed: int, number: int) -> np.random.Generator:
    """Return the generator of sample `number` of a run; it always gives the same draws."""
    return np.random.Generator(np.random.Philox(key=[seed, number], counter=[0, 0, 0, AUGMENT]))


def draw_crop_box(
    draws: np.random.Generator, *, width: int, height: int, area: tuple[float, float], aspect: tuple[float, float]
) -> tuple[int, int, int, int]:
    """A random box to be resized to the network's input (Szegedy et al. 2015, section 6).

    Args:
        draws: the sample's generator.
        width: of the whole image, in pixels.
        height: of the whole image, in pixels.
        area: smallest and largest share of the image's area.
        aspect: smallest and largest width / height of the box; its logarithm is uniform.

    Returns:
        (left, top, right, bottom) in pixels, inside the image. Where no box fits after ten draws, the largest central
        one with an allowed aspect.
    """
    low, high = math.log(aspect[0]), math.log(aspect[1])
    for _ in range(ATTEMPTS):
        pixels = width * height * (area[0] + (area[1] - area[0]) * draws.random())
        ratio = math.exp(low + (high - low) * draws.random())
        wide, tall = round(math.sqrt(pixels * ratio)), round(math.sqrt(pixels / ratio))
        if 0 < wide <= width and 0 < tall <= height:
            left, top = int(draws.random() * (width - wide + 1)), int(draws.random() * (height - tall + 1))
            return left, top, left + wide, top + tall
    ratio = min(max(width / height, aspect[0]), aspect[1])
    return centre_box(
        width, height, min(width, max(1, round(height * ratio))), min(height, max(1, round(width / ratio)))
    )


def draw_square_box(draws: np.random.Generator, *, side: int, size: int) -> tuple[int, int, int, int]:
    """A random square of `size` pixels in a square image of `side`: (left, top, right, bottom)."""
    left, top = (int(draws.random() * (side - size + 1)) for _ in range(2))
    return left, top, left + size, top + size


def centre_box(width: int, height: int, wide: int, tall: int) -> tuple[int, int, int, int]:
    """Return the box of `wide` × `tall` pixels in the middle of an image: (left, top, right, bottom)."""
    left, top = (width - wide) // 2, (height - tall) // 2
    return left, top, left + wide, top + tall


def draw_flip(draws: np.random.Generator) -> bool:
    """Return whether to mirror left and right, with probability ½."""
    return draws.random() < 0.5


def erase_rectangle(
    draws: np.random.Generator,
    image: np.ndarray,
    *,
    probability: float,
    area: tuple[float, float],
    aspect: tuple[float, float],
) -> None:
    """Random erasing (Zhong et al. 2017) with zeros, the mean of a normalised image, as SP-NGD does it, in place.

    Args:
        draws: the sample's generator.
        image: (channels, height, width), normalised.
        probability: of erasing anything at all.
        area: smallest and largest share of the image's area.
        aspect: smallest and largest height / width of the rectangle, which then is turned with even odds.
    """
    if draws.random() >= probability:
        return
    height, width = image.shape[1:]
    pixels = height * width * (area[0] + (area[1] - area[0]) * draws.random())
    ratio = aspect[0] + (aspect[1] - aspect[0]) * draws.random()
    sides = round(math.sqrt(pixels * ratio)), round(math.sqrt(pixels / ratio))
    tall, wide = sides if draws.random() < 0.5 else sides[::-1]
    tall, wide = min(tall, height), min(wide, width)
    top, left = int(draws.random() * (height - tall + 1)), int(draws.random() * (width - wide + 1))
    image[:, top : top + tall, left : left + wide] = 0
