"""Stochastic gradient descent with momentum.

v ← μ v + g + λ w;  w ← w - η v, or w ← w - η (g + λ w + μ v) with Nesterov's look-ahead.
"""

SUMMARY = "stochastic gradient descent with heavy-ball or Nesterov momentum"
CITATION = (
    "Sutskever, Martens, Dahl, Hinton: On the importance of initialization and momentum in deep learning, ICML 2013"
)
NEEDS = ("rows", "reset")
