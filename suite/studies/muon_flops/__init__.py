"""FLOPs of Muon beside those of the model (Jordan et al., "Muon", 2024, runtime analysis)."""


def measure(seed: int, *, width: int, tokens: int, expansion: int = 4) -> float:
    """Return the FLOPs of torch's Muon for one Transformer block, in percent of those of its forward and backward pass.

    The FLOPs of the passes are 6 for each weight and token, as in the source; attention would add to them.

    Args:
        seed: unused; the FLOPs depend on the shapes only.
        width: of the model, m; four matrices of attention are m x m.
        tokens: in a batch, B.
        expansion: the two matrices of the feed-forward layer are m x (expansion m).
    """
    from suite.studies.muon_flops.torch import count_flops

    shapes = [(width, width)] * 4 + [(width, expansion * width)] * 2
    return 100 * count_flops(shapes) / (6 * tokens * sum(rows * columns for rows, columns in shapes))
