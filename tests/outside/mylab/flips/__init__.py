"""All-to-all reduction in which rank 1 receives one wrong byte in one step, FLIP_STEP: a fault to be found."""

import os

from suite.comm.algorithms.all_to_all import CITATION, CLOSED, traffic

SUMMARY = "all-to-all with a wrong byte"
STEP = int(os.environ.get("FLIP_STEP", "-1"))

__all__ = ["CITATION", "CLOSED", "STEP", "SUMMARY", "traffic"]
