"""`python tests/calibration NAME`: simulates how often a rule of the suite is wrong, for the tables of the docs.

NAME is `peeking`, `ranks` (docs/statistics.md), `regressions`, `processes` or `changes` (docs/regression.md).
"""

import importlib
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.exit(importlib.import_module(f"calibration.{sys.argv[1]}").main(sys.argv[2:]))
