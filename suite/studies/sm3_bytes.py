"""Bytes of optimizer state of SM3 and of AdaGrad for one matrix (Anil et al., arXiv:1901.11150; CL25)."""

from typing import Literal

import numpy as np

from suite.optimizers.adagrad import reference as adagrad
from suite.optimizers.sm3 import reference as sm3


def measure(seed: int, *, quantity: Literal["cover", "sum", "state"], rows: int = 1024, columns: int = 4096) -> float:
    """A ratio of bytes, counted in the arrays of the specifications.

    Args:
        seed: unused; the sizes depend on the shape only.
        quantity: `cover`: SM3's sums over rows and columns, over those of `rows + columns` numbers.
            `sum`: AdaGrad's sum of squares, over that of `rows * columns` numbers. `state`: all of SM3's state over all
            of AdaGrad's; both contain a velocity of the size of the matrix.
        rows: of the matrix.
        columns: of the matrix. 1,024 x 4,096 is the feed-forward layer of Transformer-Big.
    """
    params = {"weight": np.zeros((rows, columns))}
    small, large = sm3.init(params), adagrad.init(params)
    cover, velocity = sum(part.nbytes for part in small["covers"]["weight"]), small["velocity"]["weight"].nbytes
    number = params["weight"].itemsize
    if quantity == "cover":
        return cover / (number * (rows + columns))
    if quantity == "sum":
        return large["sum"]["weight"].nbytes / (number * rows * columns)
    return (cover + velocity) / (large["sum"]["weight"].nbytes + large["velocity"]["weight"].nbytes)
