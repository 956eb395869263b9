"""A bucket of gradients, or a stack of factors, travels as soon as backward has filled it, while backward goes on.

In torch, hooks tell what has arrived, and one thread sends what is complete in a fixed order: every rank must start its
collectives in the same order, and a collective started from another's callback does not keep it. In jax all are
independent parts of one program, and the compiler's scheduler decides.
"""

SUMMARY = "bucket by bucket, while the backward pass goes on"
CITATION = "Li et al. 2020, arXiv:2006.15704"
REMEMBERS = False
