"""What `python -m suite` runs."""

import sys

from suite.cli import main

sys.exit(main())
