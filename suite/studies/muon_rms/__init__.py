"""Root mean square of the updates of torch's Muon (documentation of `torch.optim.Muon`)."""

import numpy as np


def measure(seed: int, *, rows: int, columns: int, rank: int = 0) -> float:
    """Return the root mean square of one update with match_rms_adamw, in learning rates, without weight decay.

    Args:
        seed: of the gradient, independent normal numbers.
        rows: of the gradient.
        columns: of the gradient.
        rank: of the gradient, a product of two such matrices; 0 takes the full rank.
    """
    from suite.studies.muon_rms.torch import make_update

    random = np.random.default_rng(seed)
    if rank:
        gradient = random.standard_normal((rows, rank)) @ random.standard_normal((rank, columns))
    else:
        gradient = random.standard_normal((rows, columns))
    return float(np.sqrt(np.mean(make_update(gradient) ** 2)))
