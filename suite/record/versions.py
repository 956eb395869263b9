"""Which version of its task a result belongs to, and whether a newer version has superseded it.

A task's version rises when equal settings give other numbers. A result of an earlier version stays valid if the change
does not concern its settings, as the task's module says (`suite.contract.KeepsResults`).
"""

from functools import cache

from suite import load
from suite.contract import KeepsResults
from suite.settings.run import AnyRun

SUITE = load.GROUPS["tasks"] + "."  # other modules are never imported for a result


def find_version(run: AnyRun, version: str) -> str:
    """Return the task's version whose numbers a run has: the present one if they have not changed since.

    Args:
        run: the run of a result.
        version: of the task when it ran.
    """
    task = run.task
    if not _is_known(task.module):
        return version
    module = task.member
    present: str = module.VERSION
    return present if isinstance(module, KeepsResults) and module.keeps_result(version, task.options()) else version


def is_version(run: AnyRun, version: str) -> bool:
    """Return whether the run's task has had a version; those of tasks from outside the suite are not known."""
    if not _is_known(run.task.module):
        return True
    return version.isdecimal() and 1 <= int(version) <= int(run.task.member.VERSION)


def find_successor(run: AnyRun, version: str) -> str | None:
    """Return the present version of the run's task if the run would give other numbers in it.

    None for tasks from outside the suite.
    """
    if not _is_known(run.task.module):
        return None
    present: str = run.task.member.VERSION
    return present if find_version(run, version) != present else None


@cache
def _is_known(module: str) -> bool:
    """Return whether a module is a task of the suite; the board asks for every result."""
    return module.startswith(SUITE) and module.removeprefix(SUITE) in load.find_members("tasks")
