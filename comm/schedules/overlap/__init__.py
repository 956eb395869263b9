"""Send each bucket of gradients, or stack of factors, as soon as it is full, during the backward pass.

In torch, hooks report which gradients are complete, and one thread sends complete buckets in a fixed order: every rank
must start its collectives in the same order, which collectives started from callbacks would not keep. In jax, the
buckets are independent parts of one program, and the compiler's scheduler chooses the order.
"""

from suite.comm.projection.timeline import project_overlap as projected

__all__ = ["CITATION", "OVERLAPS", "REMEMBERS", "SUMMARY", "projected"]

SUMMARY = "send bucket by bucket during the backward pass"
CITATION = "Li et al. 2020, arXiv:2006.15704"
REMEMBERS = False
OVERLAPS = True
