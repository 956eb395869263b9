"""Bytes that DiLoCo sends (Douillard et al., arXiv:2311.08105), beside fully synchronous training."""


def measure(seed: int, *, interval: int = 500, rounds: int = 2, workers: int = 8, width: int = 16) -> float:
    """Return the bytes that PyTorch's DistributedDataParallel sends in as many steps as DiLoCo, over those of DiLoCo.

    Both run on a backend that sends nothing, and start from the same weights.

    Args:
        seed: unused; the bytes depend on the shapes only.
        interval: AdamW's steps before each outer step.
        rounds: number of outer steps.
        workers: number of workers.
        width: of three linear layers.
    """
    from suite.studies.diloco_volume.torch import count_local_bytes, count_synchronous_bytes

    steps = rounds * interval
    return count_synchronous_bytes(steps, workers, width) / count_local_bytes(rounds, interval, workers, width)
