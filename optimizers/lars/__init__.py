"""LARS: momentum with a learning rate for each layer, in proportion to ‖w‖ / ‖g‖.

Matrices and filters: v ← μ v + η r (g + λ w) with r = trust ‖w‖ / (‖g‖ + λ ‖w‖ + ε);  w ← w - v.
Vectors (biases, normalisation) follow plain momentum, v ← μ v + η g, as in MLPerf's ResNet-50.
"""

SUMMARY = "layer-wise adaptive rate scaling (You et al. 2017), as in MLPerf's ResNet-50"
CITATION = "You, Gitman, Ginsburg: Large Batch Training of Convolutional Networks, arXiv:1708.03888"
NEEDS = ()
EPSILON = 1e-9  # keeps the ratio finite where both norms vanish
