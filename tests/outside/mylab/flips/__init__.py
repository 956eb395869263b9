"""All-to-all reduction in which rank FLIP_RANK receives one wrong byte in one step, FLIP_STEP: a fault to be found."""

import os

from suite.comm.algorithms.all_to_all import CITATION, CLOSED, traffic

SUMMARY = "all-to-all with a wrong byte"
STEP, RANK = int(os.environ.get("FLIP_STEP", "-1")), int(os.environ.get("FLIP_RANK", "1"))

__all__ = ["CITATION", "CLOSED", "RANK", "STEP", "SUMMARY", "traffic"]
