"""LAMB: Adam's direction, scaled in each layer to the norm of the layer's weights.

m ← β₁ m + (1 - β₁) g;  v ← β₂ v + (1 - β₂) g²;  u = m̂ / (√v̂ + ε) + λ w;  w ← w - η r u with r = ‖w‖ / ‖u‖

with m̂ = m / (1 - β₁ᵗ) and v̂ = v / (1 - β₂ᵗ), or m and v themselves without bias correction. r is 1 where either norm
is 0, and can be kept between two bounds. As in NVIDIA's BERT, vectors (biases, normalisation) have r = 1 and no decay;
`adapt_vectors=true` gives them their ratio as well, which NVIDIA calls NVLAMB. The clipping of the whole gradient that
goes before it is the run's `clip_norm`.

A gradient that is not finite is not hidden: its element is lost for good, and through the norm all of its layer.
"""

SUMMARY = "layer-wise adaptive moments (You et al. 2020), as in MLPerf's and NVIDIA's BERT"
CITATION = (
    "You, Li, Reddi, Hseu, Kumar, Bhojanapalli, Song, Demmel, Keutzer, Hsieh: "
    "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes, ICLR 2020, arXiv:1904.00962"
)
NEEDS = ()
