"""Double buffering: send a step's gradients during the next step, whose update uses them (delayed gradients).

Update t uses the mean of the gradients at the weights of step t - 1; the first update uses zeros. Each rank's gradients
of the last step are part of the checkpoint. Statistics and losses are not delayed. The folder keeps the schedule's
first name, `stale`, which stands in configurations and results; it has nothing to do with K-FAC's stale statistics.
"""

from suite.comm.projection.timeline import project_double_buffering as projected

__all__ = ["CITATION", "REMEMBERS", "SUMMARY", "projected"]

SUMMARY = "send during the next step, whose update uses the gradients"
CITATION = "Akiba et al. 2017, arXiv:1710.11351 (ChainerMN's double buffering)"
REMEMBERS = True
