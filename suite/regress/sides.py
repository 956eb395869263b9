"""Two sides of a comparison: what was typed, and how to run it.

A side is a commit, a requirement (`torch==2.14`), an interpreter, overrides, or several of these in one string; or it
is a file or folder with saved measurements.
"""

import fcntl
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from suite.contract import UserError
from suite.regress.git import run_git
from suite.regress.saved import Saved, find_saved

REQUIREMENT = re.compile(r"[A-Za-z0-9][\w.-]*(\[[\w,.-]+\])?(===?|~=|!=|<=|>=|<|>)[\w.*+!-]+")
OVERRIDE = re.compile(r"[+~]*[\w./@]+=.*", re.DOTALL)
CACHE = Path.home() / ".cache" / "suite" / "regress"
LOCK = ".lock"  # suffix of a file that is locked while its working tree is used


@dataclass(frozen=True)
class Side:
    """One side, ready to run.

    Attributes:
        name: as typed.
        python: interpreter.
        folder: where the command runs; it is first on Python's path.
        overrides: added to every run.
        commit: 40 hexadecimal digits; None for the working tree.
        saved: measurements that were made earlier; None if the side runs now.
    """

    name: str
    python: Path
    folder: Path
    overrides: tuple[str, ...] = ()
    commit: str | None = None
    saved: Saved | None = None

    def command(self, overrides: Sequence[str]) -> list[str]:
        """Return the command line of a run."""
        return [str(self.python), "-m", "suite", *overrides, *self.overrides]

    def environment(self) -> dict[str, str]:
        """Return the environment variables of a run: one thread, and the side's own code first."""
        path = [str(self.folder), *filter(None, [os.environ.get("PYTHONPATH")])]
        return os.environ | {"PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}


@contextmanager
def build_side(typed: str, report: Callable[[str], None], metric: str = "step") -> Iterator[Side]:
    """A side, ready to run. Its working tree is removed afterwards; environments are kept for the next time.

    Args:
        typed: by the user, for example `HEAD~1`, `torch==2.14`, `/usr/bin/python3.12`, `optimizer.root=eigh32`, `.`.
        report: prints what is being done.
        metric: what is read from saved results.

    Raises:
        UserError: if a word is none of these, or cannot be built.
    """
    here = Path.cwd()
    if is_saved(typed):
        yield Side(typed, Path(sys.executable), here, saved=find_saved(Path(typed), metric))
        return
    side = Side(typed, Path(sys.executable), find_repository(here) or here)
    with ExitStack() as stack:
        requirements = []
        for word in shlex.split(typed) or ["."]:
            if word == ".":
                continue
            if REQUIREMENT.fullmatch(word):
                requirements.append(word)
            elif OVERRIDE.fullmatch(word):
                side = replace(side, overrides=(*side.overrides, word))
            elif Path(word).is_file() and os.access(word, os.X_OK):
                side = replace(side, python=Path(word).absolute())
            else:
                commit = resolve_commit(side.folder, word)
                folder = stack.enter_context(check_out(side.folder, commit))
                side = replace(side, folder=folder, commit=commit)
        if requirements:
            side = replace(side, python=build_environment(side.python, requirements, report))
        yield side


def change_commit(side: Side, commit: str) -> str:
    """Return what to run for a side at another commit, with the same overrides, requirements and interpreter."""
    kept = (word for word in shlex.split(side.name) if _is_setting(word))
    return shlex.join([commit, *kept])


def _is_setting(word: str) -> bool:
    """Return whether a word of a side is a requirement, an override or an interpreter."""
    executable = Path(word).is_file() and os.access(word, os.X_OK)
    return bool(REQUIREMENT.fullmatch(word) or OVERRIDE.fullmatch(word)) or executable


def is_saved(typed: str) -> bool:
    """Return whether a side is a JSON file or a folder other than the working directory."""
    return typed.endswith(".json") or (Path(typed).is_dir() and Path(typed).resolve() != Path.cwd())


def find_repository(folder: Path) -> Path | None:
    """Find the root of the git checkout around a folder; None outside of one, and without git.

    Raises:
        UserError: if git refuses to read the checkout, as it does if another user owns it.
    """
    if shutil.which("git") is None:
        return None  # sides that name no commit need no git
    done = run_git(folder, "rev-parse", "--show-toplevel")
    if done.returncode and "safe.directory" in done.stderr:
        reason, *_, command = (line.strip() for line in done.stderr.strip().splitlines())
        raise UserError(f"git: {reason.removeprefix('fatal: ')}; if you trust the checkout, run `{command}`")
    return Path(done.stdout.strip()) if done.returncode == 0 else None


def resolve_commit(folder: Path, word: str) -> str:
    """Return the commit that a word names.

    Raises:
        UserError: if it names none, or git is not installed.
    """
    done = run_git(folder, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{word}^{{commit}}")
    if done.returncode:
        raise UserError(
            f"{word}: no commit of {folder}, requirement (torch==2.14), interpreter, override (optimizer.lr=1) or "
            f"folder of saved measurements{_explain_missing(folder)}"
        )
    return done.stdout.strip()


def _explain_missing(folder: Path) -> str:
    """Return why a folder may lack a commit, and what mends it; empty for a repository that has every commit."""

    def ask(*words: str) -> str:
        return run_git(folder, *words).stdout.strip()

    if not ask("rev-parse", "--git-dir"):
        return f"; {folder} is no git repository: run the command in a checkout that `git clone` or `git init` has made"
    if ask("rev-parse", "--is-shallow-repository") == "true":
        return "; the checkout is shallow: run `git fetch --unshallow`"
    if not ask("rev-list", "--all", "--max-count=1"):
        return "; the repository has no commit yet: run `git add --all`, then `git commit`"
    return ""


@contextmanager
def check_out(folder: Path, commit: str) -> Iterator[Path]:
    """A second working tree of the repository at a commit. Trees that killed commands have left are deleted.

    Raises:
        UserError: if git cannot make it.
    """
    trees = CACHE / "trees"
    trees.mkdir(parents=True, exist_ok=True)
    with ExitStack() as locks:
        with _locked(trees / "making"):
            _delete_abandoned(trees)
            tree = Path(tempfile.mkdtemp(prefix=f"{commit[:12]}-", dir=trees))  # both sides may be one commit
            locks.enter_context(_locked(tree.with_suffix(LOCK)))
        try:
            done = run_git(folder, "worktree", "add", "--detach", "--force", str(tree), commit)
            if done.returncode:
                raise UserError(f"{commit[:12]}: git worktree add: {done.stderr.strip().splitlines()[-1]}")
            yield tree
        finally:
            run_git(folder, "worktree", "remove", "--force", str(tree))
            shutil.rmtree(tree, ignore_errors=True)
            run_git(folder, "worktree", "prune")
            tree.with_suffix(LOCK).unlink()


def _delete_abandoned(trees: Path) -> None:
    """Delete the working trees whose locks nobody holds."""
    for lock in trees.glob(f"*{LOCK}"):
        with suppress(BlockingIOError), _locked(lock, fcntl.LOCK_NB):
            shutil.rmtree(lock.with_suffix(""), ignore_errors=True)
            lock.unlink()


@contextmanager
def _locked(path: Path, more: int = 0) -> Iterator[None]:
    """Hold the lock of a file, which the system releases when this process ends.

    Raises:
        BlockingIOError: if another process holds it, with `more=fcntl.LOCK_NB`.
    """
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | more)
        yield
    finally:
        os.close(descriptor)


def build_environment(python: Path, requirements: Sequence[str], report: Callable[[str], None]) -> Path:
    """An environment with other versions of some packages, above the packages of another interpreter.

    It is kept, and found again by interpreter and requirements.

    Args:
        python: the interpreter whose other packages are used.
        requirements: for pip.
        report: prints what is being done.

    Returns:
        The interpreter of the environment.

    Raises:
        UserError: if pip cannot install them.
    """
    key = hashlib.sha256("\n".join([str(python), *sorted(requirements)]).encode()).hexdigest()[:12]
    folder = CACHE / "environments" / key
    own, ready = folder / "bin" / "python", folder / "ready"
    if ready.exists():
        return own
    report(f"installing {' '.join(requirements)}")
    below = subprocess.run(
        [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], capture_output=True, text=True
    )
    _run([str(python), "-m", "venv", "--clear", str(folder)], requirements)
    packages = next((folder / "lib").glob("python*/site-packages"))
    # addsitedir also reads the .pth files there, which editable packages consist of
    (packages / "below.pth").write_text(f"import site; site.addsitedir({below.stdout.strip()!r})\n")
    _run([str(own), "-m", "pip", "install", "--quiet", "--upgrade", *requirements], requirements)
    ready.touch()
    return own


def _run(command: Sequence[str], requirements: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "ERROR" in line] or done.stderr.splitlines()
        raise UserError(f"{' '.join(requirements)}: {lines[-1] if lines else 'could not be installed'}")
