"""Run directories: which one a run writes to, whether an earlier execution there can be reused, and who holds it."""

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from suite import disk
from suite.contract import UserError
from suite.record import environment, record
from suite.record.result import Header, Resumption
from suite.settings.effects import ANY, select_settings
from suite.settings.run import AnyRun, Run, read_run
from suite.training import checkpoint

ANOTHER = "restore it, or choose another run_dir="  # about a damaged file
DIFFERENCES = 3  # settings that a message names
START_FILES = ("events.jsonl", "config.yaml", "header.json", "lock")  # the files that the start of a run writes


@dataclass(frozen=True)
class Decision:
    """Decision of rank 0 on a run; an error alone, if it is rejected."""

    hash: str = ""
    directory: str = ""
    code: int | None = None  # of a finished run
    header: dict[str, Any] | None = None  # of another run, as messages between ranks take it
    step: int | None = None  # of its checkpoint
    error: str = ""


def locate_run(run: AnyRun, run_hash: str) -> Path:
    """Return the directory of a run's first execution: `run_dir`, or `runs/<task>/<hash>`."""
    return Path(run.run_dir or Path("runs") / run.task.name / run_hash)


def has_begun(directory: Path) -> bool:
    """Return whether a directory's run has made a step, a checkpoint or a result, or has a damaged log."""
    log = directory / "events.jsonl"
    outputs = (directory / "result.json", directory / checkpoint.NAME / "index.json", directory / checkpoint.BEFORE)
    if any(path.exists() for path in outputs):
        return True
    try:
        events = record.read_events(log) if log.exists() else []
    except ValueError:
        return True
    return any(event["event"] != "started" for event in events)


class Directory:
    """Directory of one execution: equal finished runs are reused, unfinished ones resumed, others not overwritten.

    Args:
        run: the run.
        header: of a new execution of it.

    Attributes:
        path: `run_dir`, or `run_dir.2`, `run_dir.3`, … for further executions.
        state: `new`, `resumed` or `finished`.
        earlier: header of the execution that is resumed.
        passed: directories of unfinished runs of this configuration that are not resumed, because their fingerprint
            differs, with their headers.

    Raises:
        UserError: if the path is a file, or the directory contains a run of another configuration.
    """

    def __init__(self, run: AnyRun, header: Header):
        self.run, self.header, self.earlier = run, header, header
        base = locate_run(run, header.hash)
        existing = next(path for path in (base, *base.parents) if path.exists())
        if not existing.is_dir():
            raise UserError(f"{base}: {existing} is a file; choose another run_dir=")
        self.passed: list[tuple[Path, Header]] = []
        number = 1
        while True:
            self.path = base if number == 1 else base.with_name(f"{base.name}.{number}")
            self.state = self.look()
            if self.state != "taken":
                return
            if not (self.path / "result.json").exists():
                self.passed.append((self.path, self.earlier))
            number += 1

    def look(self) -> str:
        """Determine the current state; `taken` means that another execution uses the directory.

        Raises:
            UserError: if the directory contains a run of another configuration that has made a step.
        """
        header_path = self.path / "header.json"
        if not header_path.exists():
            return "new"
        self.earlier = header = record.read_header(self.path, ANOTHER)
        same = header.fingerprint == self.header.fingerprint
        anyway = isinstance(self.run, Run) and self.run.resume == "anyway"
        if header.resumed_anyway and not anyway:
            same = False  # a part of the run was made with other code, data or packages
        resumable = same or anyway
        other = header.hash != self.header.hash
        if (other or not same) and not has_begun(self.path):
            return "new"  # the earlier start failed; the command has been corrected since
        if other:
            raise UserError(f"{self.path}: contains a run of another configuration ({self._difference(header.hash)}")
        result = self.path / "result.json"
        if result.exists():
            usable = record.read_result(result, ANOTHER).outcome.kind != "failed"
            return "finished" if same and usable and not self.run.force else "taken"
        return "resumed" if resumable else "taken"

    def _difference(self, other_hash: str) -> str:
        """How the configuration in the directory differs, and what to type."""
        there = read_run(disk.read_yaml(self.path / "config.yaml", ANOTHER), old=True)
        theirs, ours = (select_settings(run, ANY, ("setting", "replicate")) for run in (there, self.run))
        names = [name for name in ours if name in theirs and theirs[name] != ours[name]]
        shown = ", ".join(f"{name}={theirs[name]} there, {ours[name]} here" for name in names[:DIFFERENCES])
        other = f"{other_hash}; {shown}" + (", …" if len(names) > DIFFERENCES else "") if names else other_hash
        per_rank = checkpoint.list_own_arrays(self.path) if "world" in names else []
        lost = (
            f". Each rank has its own {', '.join(per_rank)}, which world={ours['world']} cannot use" if per_rank else ""
        )
        return f"{other}){lost}; choose another run_dir="

    def print_passed(self) -> None:
        """Print why earlier runs of the same configuration are not resumed, and how to resume them anyway."""
        for path, earlier in self.passed:
            changed = " and ".join(
                environment.list_changes(earlier.environment.plain(), self.header.environment.plain())
            )
            # with resume=anyway, the run was last continued in this environment
            reason = f"this has changed: {changed}" if changed else "it was continued with resume=anyway after a change"
            print(
                f"{path}: not resumed, because {reason}. A new run starts in {self.path}. "
                "To continue the earlier run, set resume=anyway; its result will list the changes",
                flush=True,
            )

    def claim(self) -> tuple[int, Header]:
        """Lock the directory, and write the header.

        Returns:
            The lock's descriptor, and the header of the run in the directory.

        Raises:
            UserError: if another process uses the directory.
            WriteError: if this process cannot write there.
        """
        lock = None
        try:
            with disk.report_errors(self.path):
                self.path.mkdir(parents=True, exist_ok=True)
                lock = _lock(self.path)
            if self.look() != self.state:
                raise UserError(
                    f"{self.path}: another process has just used this directory; run the same command again"
                )
            return lock, self._start() if self.state == "new" else self._adopt()
        except UserError as error:
            if lock is not None:
                os.close(lock)
            if isinstance(error, disk.WriteError):
                raise disk.WriteError(f"{error}, and run the same command again") from error
            raise

    def _start(self) -> Header:
        """Write the configuration and the header of a new run; return the header."""
        self._write_settings()
        self._write(self.header)  # last: a directory with a header is a run's
        return self.header

    def _adopt(self) -> Header:
        """Write the configuration, whose `track` or `resume` may be new; return a resumed run's header.

        Add to the header what has changed since the run was started (`resume=anyway`).
        """
        self._write_settings()
        earlier, header = self.earlier, self.header
        if earlier.fingerprint == header.fingerprint:
            return earlier
        changed = environment.list_changes(earlier.environment.plain(), header.environment.plain())
        resumption = Resumption(step=checkpoint.find_latest(self.path) or 0, changed=tuple(changed))
        kept = earlier.model_copy(
            update={
                "environment": header.environment,
                "fingerprint": header.fingerprint,
                "task_version": header.task_version,
                "resumed_anyway": (*(earlier.resumed_anyway or ()), resumption),
            }
        )
        print(
            f"resume=anyway: continuing although this has changed: {' and '.join(changed)}; the result will list it",
            flush=True,
        )
        self._write(kept)
        return kept

    def _write_settings(self) -> None:
        import yaml

        disk.replace_file(self.path / "config.yaml", yaml.safe_dump(self.run.plain(), sort_keys=False))

    def _write(self, header: Header) -> None:
        disk.replace_file(self.path / "header.json", record.format_json(header.plain(), indent=1) + "\n")


def withdraw_start(directory: Path) -> None:
    """Delete the files that the start of a rejected run has written, unless the run has made a step or a checkpoint."""
    if has_begun(directory):
        return
    for name in START_FILES:
        (directory / name).unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # not empty: it contains files of the user
        directory.rmdir()


def _lock(directory: Path) -> int:
    import fcntl

    handle = os.open(directory / "lock", os.O_CREAT | os.O_RDWR)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise UserError(
            f"{directory}: another process is running this run; wait for it, or choose another run_dir="
        ) from error
    return handle
