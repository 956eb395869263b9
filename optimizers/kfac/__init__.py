"""K-FAC: natural gradient with the Fisher matrix approximated by Kronecker factors, layer by layer.

Covers linear, convolution, batch-normalisation (unit-wise) and embedding layers; any other parameter follows SGD with
the same learning rate and momentum.
"""

SUMMARY = "Kronecker-factored approximate curvature, distributed over owners (Osawa et al. 2019)"
CITATION = (
    "Martens, Grosse: Optimizing Neural Networks with Kronecker-factored Approximate Curvature, ICML 2015, "
    "arXiv:1503.05671; Osawa et al.: Scalable and Practical Natural Gradient for Large-Scale Deep Learning, "
    "arXiv:2002.06015"
)
NEEDS = ("layers", "shapes", "world", "observe", "absorb", "program")
