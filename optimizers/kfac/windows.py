"""How a convolution's A is put together without its matrix of windows. Shared by torch and jax.

Σ a aᵀ over all windows a (k · k · C) of an image would take a matrix k² times as large as the image. Windows beside
each other share their rows, so the image is unfolded along x only (k times as large), and of A's k × k blocks, of size
k · C, the block (i, i + d) is a product of rows of that with rows d further down. These products differ only in rows at
the edges, which not every row of the kernel meets: a product over each stretch of rows is taken once, and added to
every block it belongs to. The result is exact, for any stride and padding.
"""

from dataclasses import dataclass
from itertools import pairwise

from suite.contract import Layer


@dataclass(frozen=True)
class Product:
    """Rows of the image times rows `distance` below them, and where the product belongs.

    With stride s a row of the kernel meets every s-th row of the image: `first` and `second` are the first of these
    rows, and `low` to `high` count along them.
    """

    distance: int
    first: int
    second: int
    low: int
    high: int
    shift: int  # rows after `second` at which its count begins
    blocks: tuple[int, ...]  # rows i of the kernel whose block (i, i + distance) it is a part of


def list_products(layer: Layer, rows: int) -> list[Product]:
    """All products of an image with this many rows."""
    needed = []
    for distance in range(layer.kernel):
        spans = {i: find_met_rows(layer, rows, i, distance) for i in range(layer.kernel - distance)}
        for line in sorted({line for line, _, _ in spans.values()}):
            same_line = {i: (low, high) for i, (start, low, high) in spans.items() if start == line}
            shift, second = divmod(line + distance, layer.stride)
            for low, high in pairwise(sorted({edge for span in same_line.values() for edge in span})):
                blocks = tuple(i for i, (first, last) in same_line.items() if first <= low < last)
                if blocks:
                    needed.append(Product(distance, line, second, low, high, shift, blocks))
    return needed


def find_met_rows(layer: Layer, rows: int, i: int, distance: int = 0) -> tuple[int, int, int]:
    """Return the rows of the image that row i of the kernel meets, while row i + distance is inside the image too.

    Returns:
        The first of every stride-th rows; and the range (low, high) of the count along them.
    """
    s, above = layer.stride, i - layer.padding
    height = (rows + 2 * layer.padding - layer.kernel) // s + 1
    first = max(0, -(above // s))  # earlier windows begin above the image
    beyond = min(height, (rows - distance - above - 1) // s + 1)  # from here on, windows end below it
    low = (above + first * s) // s
    return above % s, low, low + max(0, beyond - first)
