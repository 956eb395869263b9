"""Run directories: where a run writes, and whether an earlier execution in the directory can be reused."""

from dataclasses import dataclass
from pathlib import Path

from suite import disk
from suite.contract import UserError
from suite.record import record
from suite.record.result import Header
from suite.settings.effects import ANY, hash_run, select_settings
from suite.settings.run import AnyRun, Run, read_run
from suite.training import checkpoint

ANOTHER = "restore it, or choose another run_dir="  # about a damaged file
DIFFERENCES = 3  # settings that a message names


@dataclass(frozen=True)
class Decision:
    """Decision of rank 0 on a run; an error alone, if it is rejected."""

    hash: str = ""
    directory: str = ""
    code: int | None = None  # of a finished run
    header: Header | None = None  # of another run
    step: int | None = None  # of its checkpoint
    error: str = ""


def locate_run(run: AnyRun) -> Path:
    """Return the directory of a run's first execution: `run_dir`, or `runs/<task>/<hash>`."""
    return Path(run.run_dir or Path("runs") / run.task.name / hash_run(run))


def read_header(directory: Path) -> Header:
    """Read the header of a run, as `execution.make_header` made it.

    Raises:
        ReadError: it is damaged.
    """
    path = directory / "header.json"
    header = disk.read_json(path, ANOTHER)
    with disk.report_damage(path, ANOTHER):
        for name in ("fingerprint", "hash", "execution_id", "command", "task_version"):
            if not isinstance(header[name], str):
                raise ValueError(f"{name} is no text")
        if not isinstance(header["environment"], dict):
            raise ValueError("environment is no group")
        return header


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

    Attributes:
        path: `run_dir`, or `run_dir.2`, `run_dir.3`, … for further executions.
        state: `new`, `resumed` or `finished`.
        passed: directories of unfinished runs of this configuration that are not resumed, because their fingerprint
            differs.

    Raises:
        UserError: if the path is a file, or the directory contains a run of another configuration.
    """

    def __init__(self, run: AnyRun, fingerprint: str):
        self.run, self.fingerprint = run, fingerprint
        base = locate_run(run)
        existing = next(path for path in (base, *base.parents) if path.exists())
        if not existing.is_dir():
            raise UserError(f"{base}: {existing} is a file; choose another run_dir=")
        self.passed: list[Path] = []
        number = 1
        while True:
            self.path = base if number == 1 else base.with_name(f"{base.name}.{number}")
            self.state = self.look()
            if self.state != "taken":
                return
            if not (self.path / "result.json").exists():
                self.passed.append(self.path)
            number += 1

    def look(self) -> str:
        """Determine the current state; `taken` means that another execution uses the directory.

        Raises:
            UserError: if the directory contains a run of another configuration that has made a step.
        """
        header_path = self.path / "header.json"
        if not header_path.exists():
            return "new"
        header = read_header(self.path)
        same = header["fingerprint"] == self.fingerprint
        anyway = isinstance(self.run, Run) and self.run.resume == "anyway"
        if header.get("resumed_anyway") and not anyway:
            same = False  # a part of the run was made with other code, data or packages
        resumable = same or anyway
        other = header["hash"] != hash_run(self.run)
        if (other or not same) and not has_begun(self.path):
            return "new"  # the earlier start failed; the command has been corrected since
        if other:
            raise UserError(f"{self.path}: contains a run of another configuration ({self._difference(header['hash'])}")
        result = self.path / "result.json"
        if result.exists():
            with disk.report_damage(result, ANOTHER):
                usable = disk.read_json(result, ANOTHER)["outcome"]["kind"] != "failed"
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
