"""Reads and augments photographs in ImageNet's directory layout."""

import hashlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image

from suite.contract import Data, UserError
from suite.tasks._data import augment
from suite.tasks._data.layout import UNREADABLE, census, count_recurring, decode, find_damaged_files, read_layout

__all__ = ["CLASSES", "PUBLISHED", "Folder", "census", "check", "count_recurring", "find_damaged_files", "make"]

# ImageNet-1k: Russakovsky et al. 2015, table 2
PUBLISHED = Data("real", "ImageNet-1k", "not here", {"train": 1_281_167, "valid": 50_000}, unit="images")
CLASSES = 1000

# Mean and standard deviation of ImageNet's red, green and blue, published for 0…1 with fb.resnet.torch (Gross and
# Wilber 2016, datasets/imagenet.lua) and used by torchvision ever since.
MEAN = (0.485 * 255, 0.456 * 255, 0.406 * 255)
STD = (0.229 * 255, 0.224 * 255, 0.225 * 255)


class Folder:
    """Training images as random resized crops, mirrored with probability ½; validation images as central crops.

    Images are resized with Pillow's bilinear filter and its antialiasing (the filter widens with the reduction). OpenCV
    and TensorFlow do not antialias by default, which changes accuracies by tenths of a point.

    Attributes:
        names: class names; a label is an index into them.
        skipped: files replaced so far, sorted paths from `data_dir`.
    """

    def __init__(
        self,
        data_dir: str | Path | None,
        *,
        size: int = 224,
        resize: int | None = None,
        warp: int | None = None,
        crop_area: tuple[float, float] = (0.08, 1.0),
        aspect: tuple[float, float] = (3 / 4, 4 / 3),
        flip: bool = True,
        mean: tuple[float, float, float] = MEAN,
        std: tuple[float, float, float] = STD,
        erase: float = 0.0,
        erase_area: tuple[float, float] = (0.02, 0.25),
        erase_aspect: tuple[float, float] = (0.3, 1.0),
        on_error: str = "stop",
        classes: list[str] | None = None,
        workers: int = 4,
    ):
        """List the files; no image is opened, and none is cached.

        Args:
            data_dir: the directory with `train/` and `val/`; see `layout.read_layout`.
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
            on_error: `stop` at an unreadable file, or `skip` it: the next readable file of its split, in the order
                of rows, replaces it and its label, and its name is added to `skipped`.
            classes: class directories to use; all by default.
            workers: threads that decode.

        Raises:
            UserError: if the directory or an option is not as described.
        """
        resize = round(size * 256 / 224) if resize is None else resize
        if warp and warp < size:
            raise UserError(
                f"warp={warp}: too small for a crop of size={size}; "
                f"set +task.sources.folder.options.warp={size} or more"
            )
        if resize < size:
            raise UserError(
                f"resize={resize}: too small for a crop of size={size}; "
                f"set +task.sources.folder.options.resize={size} or more"
            )
        if on_error not in ("stop", "skip"):
            raise UserError(f"on_error={on_error}: unknown; set task.on_error=stop or task.on_error=skip")
        layout = read_layout(data_dir, classes=classes)
        self.names, self._root = layout.classes, layout.root
        self.classes, self.size = len(self.names), size
        self.skipped: list[str] = []
        self._warp, self._resize, self._crop_area, self._aspect, self._flip = warp, resize, crop_area, aspect, flip
        self._mean, self._std = np.asarray(mean, np.float32), np.asarray(std, np.float32)
        self._erase = {"probability": erase, "area": erase_area, "aspect": erase_aspect}
        self._on_error, self._workers = on_error, workers

        labels = {name: label for label, name in enumerate(self.names)}
        self._paths = {split: [file.path for file in files] for split, files in layout.splits.items()}
        self._labels = {
            split: np.array([labels[file.label] for file in files], np.int32) for split, files in layout.splits.items()
        }
        digest, stamped = hashlib.sha256(), hashlib.sha256()
        for file in (file for files in layout.splits.values() for file in files):
            digest.update(f"{file.path}\t{file.bytes}\t{file.label}\n".encode())
            stamped.update(f"{file.modified}\n".encode())
        self._identity, self._stamp = digest.hexdigest(), stamped.hexdigest()[:16]

    @property
    def data(self) -> Data:
        """Describes the files. The identity is a sha256 over path, size and class of every file, in order of rows.

        It does not cover the contents, because reading them takes hours. `find_damaged_files` reads them.
        """
        return Data(
            kind="real",
            name=self._root.resolve().name,
            identity=self._identity,
            samples={split: len(paths) for split, paths in self._paths.items()},
            unit="images",
            note="the identity covers names, sizes and classes of the files, not their contents",
            skipped=tuple(self.skipped),
            stamp=self._stamp,
        )

    def read(self, split: str, rows: np.ndarray, *, seed: int, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Decoded images and labels of some rows; see `Images`.

        Raises:
            UserError: if a file cannot be read and on_error is `stop`, or no file of the split can be read.
        """

        def read_one(row: int, number: int) -> tuple[np.ndarray, int, list[str]]:
            image, readable_row, unreadable = self._open(split, int(row))
            pixels = self._distort(image, seed, int(number)) if split == "train" else self._cut(image)
            return pixels, self._labels[split][readable_row], unreadable

        with ThreadPoolExecutor(self._workers) as pool:  # Pillow releases Python's lock while it decodes and resizes
            images, labels, unreadable = zip(*pool.map(read_one, rows, numbers), strict=True)
        self.skipped = sorted({*self.skipped, *(path for paths in unreadable for path in paths)})
        return np.stack(images), np.array(labels, np.int32)

    def _open(self, split: str, row: int) -> tuple[Image.Image, int, list[str]]:
        """Return the first readable image from `row` on, its row, and the paths of unreadable files before it."""
        paths, unreadable = self._paths[split], []
        for candidate in (*range(row, len(paths)), *range(row)):
            try:
                return decode(self._root / paths[candidate]), candidate, unreadable
            except UNREADABLE as error:
                if self._on_error == "stop":
                    raise UserError(
                        f"cannot read {self._root / paths[candidate]}: {error}. Repair it, or set "
                        "task.on_error=skip to leave such files out; the result will list them"
                    ) from error
                unreadable.append(paths[candidate])
        raise UserError(f"no image of the {split} split in {self._root} can be read. Set data_dir=DIRECTORY")

    def _distort(self, image: Image.Image, seed: int, number: int) -> np.ndarray:
        draws = augment.make_generator(seed, number)
        if self._warp:
            box = augment.draw_square_box(draws, side=self._warp, size=self.size)
            shown = self._normalise(self._squeezed(image).crop(box))
        else:
            box = augment.draw_crop_box(
                draws, width=image.width, height=image.height, area=self._crop_area, aspect=self._aspect
            )
            shown = self._normalise(image.resize((self.size, self.size), Image.Resampling.BILINEAR, box=box))
        if self._flip and augment.draw_flip(draws):
            shown = shown[:, :, ::-1]
        return augment.erase_rectangle(draws, shown, **self._erase)

    def _squeezed(self, image: Image.Image) -> Image.Image:
        return image.resize((self._warp, self._warp), Image.Resampling.BILINEAR) if self._warp else image

    def _cut(self, image: Image.Image) -> np.ndarray:
        if self._warp:
            return self._normalise(
                self._squeezed(image).crop(augment.centre_box(*2 * (self._warp,), *2 * (self.size,)))
            )
        scale = self._resize / min(image.size)
        wide, tall = round(image.width * scale), round(image.height * scale)
        image = image.resize((wide, tall), Image.Resampling.BILINEAR)
        return self._normalise(image.crop(augment.centre_box(wide, tall, self.size, self.size)))

    def _normalise(self, image: Image.Image) -> np.ndarray:
        return ((np.asarray(image, np.float32) - self._mean) / self._std).transpose(2, 0, 1)  # (3, size, size)


make, check = Folder, find_damaged_files
