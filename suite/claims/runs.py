"""Runs what a claim lacks: one process for each run or value of a study, cheapest claim first.

Each process writes its own result, so an interrupted command loses at most the work of one process; a run of the suite
also continues from its checkpoint.
"""

import json
import math
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from suite import disk, orphan, signals
from suite.claims.claim import Check, Claim
from suite.claims.evidence import (
    CHECKSUM,
    Results,
    collect_evidence,
    find_committed,
    hash_value,
    identify_study,
    list_missing_seeds,
    locate_value,
)
from suite.claims.standing import Standing
from suite.claims.standings import list_standings
from suite.claims.verdict import judge_check
from suite.contract import UserError
from suite.entries.submission import name_of
from suite.record.record import drop_infinities, format_json, read_result

LOG = Path("runs") / "reproduce.log"
DECIDED = ("holds", "fails")


@dataclass
class Budget:
    """Seconds that a command may take."""

    seconds: float
    started: float = field(default_factory=time.monotonic)

    def allows(self, minutes: float) -> bool:
        """Return whether work of this length would end in time."""
        return time.monotonic() - self.started + 60.0 * minutes <= self.seconds


class StopError(Exception):
    """A process was interrupted, and so is the command; `code` is its exit code."""

    def __init__(self, code: int):
        self.code = code


def reproduce_claims(
    names: Sequence[str],
    overrides: Sequence[str],
    budget: Budget,
    *,
    scale: str | None,
    seeds: int = 0,
    keep: bool,
    quiet: bool,
) -> int:
    """Measure what is missing for claims, within a budget.

    Args:
        names: claims and papers; none means every claim that this machine can decide.
        overrides: added to every run, such as data_dir=….
        budget: nothing is started that would exceed it.
        scale: only the checks of this size.
        seeds: measured at most for an undecided check, where that is more than its `most_seeds`.
        keep: copy the new results into the suite's own results.
        quiet: print no progress.

    Returns:
        0, 1 if a run failed, 2 if a run was rejected, 129, 130 or 143 if interrupted.

    Raises:
        UserError: if a name is unknown, or a run of the only claim is rejected. With several claims, the others go on.
    """
    chosen = sorted(list_standings(names), key=lambda one: one.minutes or 0.0)
    code = 0
    for number, one in enumerate(chosen, start=1):
        progress = "" if quiet else f"[{number}/{len(chosen)}] {one.claim.id}"
        try:
            for check in one.claim.checks:
                if scale in (None, check.scale) and (not check.needs or overrides):
                    code = max(code, _measure(one, check, overrides, budget, progress, seeds=seeds, keep=keep))
        except StopError as stopped:
            return stopped.code
        except UserError as error:
            if len(chosen) == 1:
                raise
            print(f"suite: {error}", file=sys.stderr, flush=True)  # the other claims do not need this run
            code = 2
    return code


def _measure(
    one: Standing, check: Check, overrides: Sequence[str], budget: Budget, progress: str, *, seeds: int, keep: bool
) -> int:
    """Measure one check until it is decided, its seeds are used up, or the budget ends; 1 if a run failed."""
    alpha, most = one.claim.divide_error(check), max(check.most, seeds if check.statistic != "exact" else 1)
    folders = [find_committed()] if keep and check.study else None  # what runs/ has of a study is not kept yet
    for count in range(min(check.seeds, most), most + 1):
        evidence = collect_evidence(one.claim, check, Results(folders))
        if judge_check(check, evidence, alpha=alpha).state in DECIDED:
            return 0
        for seed in list_missing_seeds(check, evidence, count):
            if not budget.allows(estimate_minutes(check)):
                return 0
            if progress:
                print(f"{progress} · {check.name} · seed {seed}, {format_duration(check)}", flush=True)
            if run_check(one.claim, check, seed, overrides, keep=keep) is None:
                return 1
    return 0


def estimate_minutes(check: Check) -> float:
    """Estimate the minutes of one seed of a check on two cores; infinite if unknown."""
    return math.inf if check.minutes is None else check.minutes * max(1, len(check.runs))


def format_duration(check: Check) -> str:
    """Return the same in words."""
    minutes = estimate_minutes(check)
    return "for an unknown time" if math.isinf(minutes) else f"about {minutes:.2g} min"


def run_check(claim: Claim, check: Check, seed: int, overrides: Sequence[str], *, keep: bool) -> list[Path] | None:
    """Measure one seed of a check.

    Args:
        claim: of the check.
        check: with a study or runs.
        seed: to measure.
        overrides: added to every run.
        keep: also write what was measured into the suite's own results.

    Returns:
        The folders of the new results, as `Results` takes them; None if a process failed.
    """
    if check.study:
        folder = find_committed() if keep else Path("runs")
        return [folder] if _run_study(claim, check, seed, folder) else None
    made = [_run_suite(words, seed, overrides, keep=keep) for words in check.runs.values()]
    return None if None in made else [folder for folders in made for folder in folders or []]


def _run_suite(text: str, seed: int, overrides: Sequence[str], *, keep: bool) -> list[Path] | None:
    before = set(Path("runs").glob("*/*/result.json"))
    chosen = shlex.split(text)
    # a baseline is no network, and has no weights to save
    unsaved = [] if any(word.startswith("baseline=") for word in chosen) else ["save=none"]
    words = [*chosen, *overrides, f"seed={seed}", "track=none", *unsaved]
    typed = {word.removeprefix("+") for word in words}
    code = _process(["-m", "suite", *words])
    if code == 2:
        raise UserError(f"suite {text} was rejected: {_last_message()}")
    new = sorted(set(Path("runs").glob("*/*/result.json")) - before)
    if len(new) > 1:  # another command has ended a run in the meantime
        new = [path for path in new if {*shlex.split(read_result(path).command)} == {"suite", *typed}]
    if keep and new:
        _keep_run(new[-1])
    # a run that diverged has a result, too
    return [path.parent for path in new] if code == 0 or new else None


def _last_message() -> str:
    """Return the last message of a process in the log."""
    lines = LOG.read_text(encoding="utf-8").splitlines()
    return next((line.removeprefix("suite: ") for line in reversed(lines) if line.startswith("suite: ")), f"see {LOG}")


def _keep_run(path: Path) -> None:
    """Copy a result to results/runs of the checkout, under the name that `suite submit` gives it.

    A committed result is never replaced; a repeated run gets a separate file.
    """
    result = read_result(path)
    target = find_committed() / "runs" / name_of(result)
    if target.exists():
        target = target.with_name(f"{target.stem}-x{result.execution_id[:8]}.json")
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, target)


def _run_study(claim: Claim, check: Check, seed: int, folder: Path) -> bool:
    target = locate_value(folder, claim, check, seed)
    target.parent.mkdir(parents=True, exist_ok=True)
    origin = identify_study(check)
    words = [
        f"{name}={value if isinstance(value, str) else format_json(value)}" for name, value in check.arguments.items()
    ]
    code = _process(["-m", "suite.studies", str(check.study), str(seed), *words], answer := target.with_suffix(".new"))
    if code:
        answer.unlink(missing_ok=True)
        if code == 2:
            raise UserError(f"{claim.id}: {LOG.read_text(encoding='utf-8').splitlines()[-1]}")
        return False
    value = json.loads(answer.read_text(encoding="utf-8").splitlines()[-1])["value"]
    answer.unlink()
    content = drop_infinities({"seed": seed, "value": value, "made_by": origin})
    disk.replace_file(target, format_json({**content, CHECKSUM: hash_value(content)}, indent=1) + "\n")
    return True


def _process(words: Sequence[str], answer: Path | None = None) -> int:
    """Run Python with these arguments; standard output goes to a file, or with errors to the log."""
    LOG.parent.mkdir(exist_ok=True)
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    with LOG.open("a", encoding="utf-8") as log:
        log.write(f"\n$ {shlex.join(['python', *words])}\n")
        log.flush()
        with answer.open("w", encoding="utf-8") if answer else log as output:
            child = subprocess.Popen(
                [sys.executable, *words],
                stdout=output,
                stderr=log,
                env=environment,
                preexec_fn=partial(orphan.bind_to_parent, os.getpid()),
            )
            try:
                code = child.wait()
            except KeyboardInterrupt:
                child.wait()
                raise StopError(130) from None
    if code in signals.CODES.values() or code < 0:
        raise StopError(code if code > 0 else 128 - code)
    if code == 1:
        print(f"suite: {shlex.join(['python', *words])} ended with exit code {code}; see {LOG}", file=sys.stderr)
    return code
