"""RMSProp: divides gradients by the root of a moving average of their squares.

v ← β₂ v + (1 - β₂) g²;  w ← w - η d with d = g / (√v + ε), or with momentum u ← μ u + d;  w ← w - η u

ε stands outside the root, as in torch. Centred, v - m² takes the place of v, with m ← β₂ m + (1 - β₂) g; rounding may
not make it negative. `tensorflow=true` is TensorFlow's first version in its three differences: √(v + ε), v begins at
1, and the velocity holds η: u ← μ u + η d;  w ← w - u. g holds the L2 decay λ w of matrices and filters.

An element without gradient stays where it is (with ε > 0); a gradient that is not finite is not hidden.
"""

SUMMARY = "RMSProp (Tieleman and Hinton 2012), torch's or TensorFlow's version"
CITATION = (
    "Tieleman, Hinton: Lecture 6.5, rmsprop: Divide the gradient by a running average of its recent magnitude, "
    "COURSERA: Neural Networks for Machine Learning, 2012"
)
NEEDS = ("rows", "reset")
