"""SM3: AdaGrad with one accumulator for each slice of a tensor instead of one for each element.

A tensor's elements are covered by its slices: rows and columns of a matrix, and so on along every axis. Each slice
holds μ, and the least μ of an element's slices stands for the sum of its squared gradients:

SM3-I: μ(slice) ← μ(slice) + max g²;  ν = least μ.    SM3-II: ν = least μ + g²;  μ(slice) ← max ν, a closer bound.

Then m ← β m + (1 - β) g / √ν and w ← w - η m, with the convention 0/0 = 0; without momentum nothing but μ is held.
In vectors and scalars each element is its own slice, which is AdaGrad. g holds the L2 decay λ w of matrices and
filters.

Without momentum and decay, a gradient given by rows is treated as by the authors' code: its rows are its only slices,
and others are not touched. That differs from the same gradient filled up with zeros, which has columns too; a result
must not depend on a table's placement, so the suite does not split tables for it (no "rows" in NEEDS).
A gradient that is not finite is not hidden: it spoils its slices for good, and through them the tensor.
"""

SUMMARY = "SM3-I and SM3-II (Anil et al. 2019): AdaGrad in sublinear memory"
CITATION = "Anil, Gupta, Koren, Singer: Memory-Efficient Adaptive Optimization, NeurIPS 2019, arXiv:1901.11150"
NEEDS = ()
EPSILON = 1e-30  # 0/√(0 + ε) = 0; google-research/sm3's constant
