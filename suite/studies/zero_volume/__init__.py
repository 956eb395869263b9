"""Bytes that fully sharded data parallelism sends (Rajbhandari et al., arXiv:1910.02054, section 7)."""


def measure(seed: int, *, ranks: int = 64, layers: int = 24, width: int = 64, batches: int = 1) -> float:
    """Return the bytes that PyTorch's FSDP2 sends in a step, over those of its DistributedDataParallel.

    Both run on a backend that sends nothing. An all-reduce moves its array twice, as section 7.1 counts it; an
    all-gather and a reduce-scatter move it once.

    Args:
        seed: unused; the bytes depend on the shapes only.
        ranks: number of ranks.
        layers: number of square linear layers, sharded one by one.
        width: of a layer.
        batches: batches whose gradients are accumulated before the ranks exchange them.
    """
    from suite.studies.zero_volume.torch import count_bytes

    return count_bytes(True, ranks, layers, width, batches) / count_bytes(False, ranks, layers, width, batches)
