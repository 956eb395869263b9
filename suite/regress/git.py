"""Runs git, which `suite regress` needs for commits only."""

import subprocess
from pathlib import Path

from suite.contract import UserError


def run_git(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    """Run git in a folder; return the finished process, whatever its exit code.

    Raises:
        UserError: if git is not installed.
    """
    try:
        return subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise UserError(
            f"git {words[0]}: git is not installed, or not on PATH; to compare commits, install it "
            "(apt install git, or see https://git-scm.com)"
        ) from error
