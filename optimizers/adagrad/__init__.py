"""AdaGrad: divides each element's step by the root of its summed squared gradients.

s ← s + g²;  w ← w - η d with d = g / (√(δ + s) + ε), or with momentum v ← μ v + d;  w ← w - η v

g holds the L2 decay λ w of matrices and filters. δ is what others write into s before the first step
(`initial_accumulator_value`), and also an ε inside the root. Neither momentum nor decay: a gradient given by rows
touches those rows only. An element without gradient stays where it is, as long as ε or δ is positive; a gradient that
is not finite is not hidden, and its element is lost for good.
"""

SUMMARY = "diagonal AdaGrad (Duchi et al. 2011); updates only the rows that a table's gradient names"
CITATION = (
    "Duchi, Hazan, Singer: Adaptive Subgradient Methods for Online Learning and Stochastic Optimization, JMLR 12, 2011"
)
NEEDS = ("rows", "reset")
