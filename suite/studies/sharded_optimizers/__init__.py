"""PyTorch's optimizers on parameters that two ranks share, against one process (documentation of DTensor)."""


def measure(seed: int, *, optimizer: str = "", rate: float = 0.01, steps: int = 1) -> float:
    """Return the loss on two ranks over the loss in one process; without a name, the share of optimizers that raise.

    The ranks compute the same batches, and exchange them through gloo.

    Args:
        seed: of weights, batches and the teacher.
        optimizer: a class of `torch.optim`; empty for all that take dense gradients and no closure.
        rate: learning rate.
        steps: number of steps.
    """
    from suite.studies.sharded_optimizers.torch import compare_losses, count_errors

    return compare_losses(optimizer, seed, rate, steps) if optimizer else count_errors(seed, rate, steps)
