"""Rejects models that draw numbers from Python or NumPy: stages would repeat those of the trace."""

import contextlib
import random
from collections.abc import Iterator

import numpy as np

from suite.contract import UserError


@contextlib.contextmanager
def reject_draws(instead: str) -> Iterator[None]:
    """Check that nothing inside of the context draws numbers from Python or NumPy, and give back those that it drew.

    Args:
        instead: what draws numbers that a stage repeats.

    Raises:
        UserError: naming the module that drew numbers.
    """
    python, numpy = random.getstate(), np.random.get_state(legacy=False)
    drew = ""
    try:
        yield
        drew = "random" if random.getstate() != python else ""
        drew = "np.random" if str(np.random.get_state(legacy=False)) != str(numpy) else drew
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
    if drew:
        raise UserError(f"the model draws numbers with {drew}, which a stage cannot repeat; draw them with {instead}")
