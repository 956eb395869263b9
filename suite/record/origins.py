"""Says where the code outside the suite that a run uses comes from: version or commit, address and author."""

import importlib.metadata
import json
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from suite.record.dependencies import find_outside_code

Origin = dict[str, str | bool]  # of one package: version, commit, dirty, source, author; only what is known


def describe_origins(config: Mapping[str, Any]) -> dict[str, Origin]:
    """Return the origin of each package and folder outside the suite that a configuration names, by name.

    That of an installed package is what it says about itself; that of a folder is its repository. Nothing is imported.
    """
    return {name: _of_folder(folder) if folder else _of_package(name) for name, folder in find_outside_code(config)}


def _of_package(name: str) -> Origin:
    distributions = importlib.metadata.packages_distributions().get(name)
    if not distributions:
        return {}
    facts = importlib.metadata.metadata(distributions[0]).json
    urls = [url.partition(",")[2].strip() for url in facts.get("project_url", ())]
    author = facts.get("author") or facts.get("author_email") or facts.get("maintainer")
    direct = importlib.metadata.distribution(distributions[0]).read_text("direct_url.json")
    installed = json.loads(direct) if direct else {}
    found = {
        "version": importlib.metadata.version(distributions[0]),
        "commit": installed.get("vcs_info", {}).get("commit_id"),
        "source": str(
            facts.get("home_page") or next(iter(urls), None) or f"https://pypi.org/project/{distributions[0]}"
        ),
        "author": str(author) if author else None,
    }
    return _known(found)


def _of_folder(folder: Path) -> Origin:
    commit = _git(folder, ["rev-parse", "HEAD"])
    if not commit:
        return {}
    remote = _git(folder, ["remote", "get-url", "origin"])
    host = urlsplit(remote)
    shown = host._replace(netloc=host.netloc.rpartition("@")[2]).geturl() if host.netloc else remote  # no password
    found = {"commit": commit, "source": shown, "author": _git(folder, ["log", "-1", "--format=%aN", "--", "."])}
    return _known(found) | {"dirty": bool(_git(folder, ["status", "--porcelain", "--", "."]))}


def _known(facts: Mapping[str, str | None]) -> Origin:
    return {name: value for name, value in facts.items() if value}


def _git(folder: Path, words: Iterable[str]) -> str:
    """Return what git prints; an empty text outside of a repository, or without git."""
    try:
        done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, errors="replace")
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
