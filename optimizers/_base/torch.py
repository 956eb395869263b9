"""What several torch optimizers share."""

from typing import Any

import torch
from torch import Tensor


def decayed(group: dict[str, Any], gradients: list[Tensor]) -> list[Tensor]:
    """Gradients with L2 decay added to matrices and filters; vectors (biases, normalisation) are left alone.

    Goyal et al. 2017, §5.3: no decay on batch normalisation's coefficients. The given tensors are not changed.
    """
    if not group["weight_decay"]:
        return gradients
    pairs = zip(gradients, group["params"], strict=True)
    return [torch.add(g, p, alpha=group["weight_decay"]) if p.ndim > 1 else g for g, p in pairs]
