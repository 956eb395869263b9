"""Copies of the tree, each with an environment that imports the copy."""

import os
import subprocess
import sys
import venv
from pathlib import Path

SCRIPT = "import sys; from suite.cli import main; sys.exit(main())\n"
UNRELATED = ("tests/mutants", "results/mutants.csv")  # a longer list does not change what is known of its first part


def save_tree(root: Path, folder: Path) -> tuple[str, str]:
    """Store the working tree, with what is not committed, as a commit of no branch.

    Args:
        root: of the working tree.
        folder: for a temporary index.

    Returns:
        The commit, and the hash of the tree without the list of mutants.
    """
    environment = os.environ | {"GIT_INDEX_FILE": str(folder / "index")}

    def git(*arguments: str) -> str:
        command = ["git", "-c", "user.name=mutants", "-c", "user.email=", *arguments]
        return subprocess.run(command, cwd=root, env=environment, check=True, capture_output=True, text=True).stdout

    git("read-tree", "HEAD")
    git("add", "--all")
    commit = git("commit-tree", git("write-tree").strip(), "-p", "HEAD", "-m", "tree").strip()
    git("rm", "-r", "--cached", "--quiet", "--ignore-unmatch", *UNRELATED)
    return commit, git("write-tree").strip()


class Checkout:
    """A copy of the tree. Processes that its Python starts import the copy, too.

    Args:
        root: the repository.
        commit: what to copy.
        folder: where.
    """

    def __init__(self, root: Path, commit: str, folder: Path):
        self.folder = folder
        for command in (
            ["git", "clone", "--quiet", "--shared", "--no-checkout", str(root), str(folder)],
            ["git", "-C", str(folder), "checkout", "--quiet", "--detach", commit],
        ):
            subprocess.run(command, check=True)
        environment = folder / ".venv"
        venv.create(environment, symlinks=True)
        self.python = environment / "bin" / "python"
        shared = [path for path in sys.path if Path(path).name == "site-packages"]
        (site,) = environment.glob("lib/python*/site-packages")
        (site / "tree.pth").write_text("\n".join([str(folder), *shared]) + "\n")
        script = environment / "bin" / "suite"
        script.write_text(f"#!{self.python}\n{SCRIPT}")
        script.chmod(0o755)

    def variables(self) -> dict[str, str]:
        """Return the environment variables of a test run."""
        kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
        path = os.pathsep.join([str(self.python.parent), kept.get("PATH", "")])
        return kept | {"PATH": path, "PYTHONSAFEPATH": "1", "OMP_NUM_THREADS": "1"}
