"""Who added results, and when: results contain no date and no name, but the repository that holds them does."""

import subprocess
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Addition:
    """Results that one commit has added.

    Attributes:
        date: on which the commit was written, as YYYY-MM-DD.
        contributor: its author.
        commit: its hash.
        tasks: number of results by task.
    """

    date: str
    contributor: str
    commit: str
    tasks: dict[str, int]


def list_additions(folders: Iterable[Path]) -> list[Addition]:
    """List the commits that added results that are still there, the newest first.

    Args:
        folders: with results as `<task>/<name>.json`. One outside of a repository has no additions, and neither has one
            in a shallow clone, whose oldest commit seems to have added everything.
    """
    return sorted((one for folder in folders for one in _read(folder)), key=lambda one: one.date, reverse=True)


def _read(folder: Path) -> list[Addition]:
    if _git(folder, "rev-parse", "--is-shallow-repository").strip() != "false":
        return []
    names = ("--name-only", "--relative", "--no-renames", "--diff-filter=A")
    log = _git(folder, "-c", "core.quotePath=false", "log", *names, "--format=%x00%as %H %aN", "--", ".")
    known, additions = set[str](), []
    for entry in log.split("\0")[1:]:
        head, *files = entry.split("\n")
        date, commit, contributor = head.split(" ", 2)
        new = [name for name in files if name.count("/") == 1 and name not in known and (folder / name).is_file()]
        known.update(new)
        tasks = Counter(name.split("/")[0] for name in new if name.endswith(".json"))
        if tasks:
            additions.append(Addition(date, contributor, commit, dict(sorted(tasks.items()))))
    return additions


def _git(folder: Path, *arguments: str) -> str:
    """Return what git prints; an empty text outside of a repository, or without git."""
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, errors="replace")
    except OSError:
        return ""
    return done.stdout if done.returncode == 0 else ""
