"""Packages that a command loads."""

import subprocess
import sys

CODE = """
import sys
from suite.cli import main
try:
    code = main(sys.argv[1:])
except SystemExit as end:
    code = end.code
print(code or 0, *{name.partition(".")[0] for name in sys.modules})
"""


def loaded(*arguments: str) -> tuple[int, set[str]]:
    """Return the exit code of `suite` with these arguments in a new process, and the packages that it has loaded."""
    done = subprocess.run([sys.executable, "-c", CODE, *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    code, *names = done.stdout.splitlines()[-1].split()
    return int(code), set(names)
