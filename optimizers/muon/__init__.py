"""Muon: momentum whose singular values are brought close to one.

A weight of shape (O, I, k, k) is seen as the matrix (O, I·k·k). Its gradient G follows

    B ← μ B + (1 - μ) G,  U = μ B + (1 - μ) G with Nesterov's look-ahead, else B
    X₀ = U / ‖U‖,  Xᵢ₊₁ = a Xᵢ + b (Xᵢ Xᵢᵀ) Xᵢ + c (Xᵢ Xᵢᵀ)² Xᵢ      (a, b, c) = (3.4445, -4.7750, 2.0315)
    W ← W - η (s X₅ + λ W)

with s = √max(1, rows / columns), or 0.2 √max(rows, columns) under `scale: match_rms_adamw`. Five iterations do not
converge: they bring what is not tiny to between about 0.7 and 1.2.

Treated are the weights of the layers that the task describes as `linear` or `conv2d`, except those named in
`excluded`: by default the last linear layer described, which is the model's head; where the head is a table tied to
the embedding, no layer describes it, and `excluded: []` keeps the last hidden layer in. All other parameters (embedding
tables, vectors, recurrent matrices, which no layer describes) take AdamW's step, at `fallback_ratio` times the learning
rate, so that one schedule moves both. Decay spares vectors.

The iteration runs in the parameters' type; `bfloat16` rounds it as published. A zero gradient gives a zero step; one
that is not finite spoils its parameter, as in every optimizer here.
"""

SUMMARY = "Muon: momentum orthogonalised by Newton-Schulz, AdamW for other parameters (Jordan et al. 2024)"
CITATION = (
    "Jordan, Jin, Boza, You, Cesista, Newhouse, Bernstein: Muon: An optimizer for hidden layers in neural networks, "
    "2024, https://kellerjordan.github.io/posts/muon/; Liu et al.: Muon is Scalable for LLM Training, arXiv:2502.16982"
)
NEEDS = ("layers", "shapes")
