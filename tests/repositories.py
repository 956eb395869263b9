"""A repository whose `suite` writes a result with the seconds that stand in a file; comparisons of it take no time."""

import subprocess
from pathlib import Path

MAIN = '''"""A stand-in for the suite: reads seconds.txt, and writes a result."""

import json
import os
import random
import sys
from pathlib import Path

words = dict(word.lstrip("+").split("=", 1) for word in sys.argv[1:])
here = Path(__file__).parent.parent
seconds = float((here / "seconds.txt").read_text()) * float(words.get("factor", 1))
if "broken" in words:
    sys.exit("this run is broken")
seconds *= random.Random(os.urandom(8)).gauss(1.0, 0.002)
folder = Path(words["run_dir"])
folder.mkdir(parents=True)
result = {"step_seconds": {"p50": seconds}, "wall_seconds": 0.01, "steps": 40, "outcome": {"kind": "exhausted"},
          "compile_seconds": 0.0}
(folder / "result.json").write_text(json.dumps(result))
'''


def git(folder: Path, *words: str) -> str:
    """Run git, and return what it printed."""
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", *identity, *words], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def repository(folder: Path, seconds: list[float]) -> list[str]:
    """Make a repository with one commit for each number of seconds; return the commits."""
    (folder / "suite").mkdir(parents=True)
    (folder / "suite" / "__init__.py").touch()
    (folder / "suite" / "__main__.py").write_text(MAIN)
    git(folder, "init", "--quiet", "--initial-branch=main")
    commits = []
    for number, value in enumerate(seconds):
        (folder / "seconds.txt").write_text(f"{value}")
        (folder / "number.txt").write_text(f"{number}")
        git(folder, "add", "--all")
        git(folder, "commit", "--quiet", "--message", f"commit {number}")
        commits.append(git(folder, "rev-parse", "HEAD"))
    return commits
