"""Double buffering: a step's gradients travel during the next step, whose update uses them.

So update t uses the mean gradient taken at the weights of step t - 1, and the first update uses zeros. Each rank's own
gradients of the last step are part of the checkpoint. Statistics and losses are not delayed.
"""

SUMMARY = "during the next step, which updates with them"
CITATION = "Akiba et al. 2017, arXiv:1710.11351 (ChainerMN's double buffering)"
REMEMBERS = True
