"""All-to-all reduction in which rank FLIP_RANK receives one wrong byte in one step, FLIP_STEP: a fault to be noticed.

FLIP_PHASE says in which exchange: "gather" (the default), after which ranks hold different weights, or "scatter", after
which all hold the same wrong sum.
"""

import os

from suite.comm.algorithms.all_to_all import CITATION, CLOSED, traffic

SUMMARY = "all-to-all with a wrong byte"
STEP, RANK = int(os.environ.get("FLIP_STEP", "-1")), int(os.environ.get("FLIP_RANK", "1"))
PHASE = os.environ.get("FLIP_PHASE", "gather")

__all__ = ["CITATION", "CLOSED", "PHASE", "RANK", "STEP", "SUMMARY", "traffic"]
