"""Recipe file that `suite tune` writes: tuned values for each source of data, and the evidence for them.

The values and the evidence stand below the key `tuned`, which `configure.resolve` removes from a run's configuration.
The other keys of the file look up the values for the run's data source. A source without tuned values gets the
defaults.
"""

import datetime
import functools
import json
import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from suite import disk
from suite.contract import UserError
from suite.record import record
from suite.record.result import Result
from suite.settings.overrides import flatten_values
from suite.settings.run import AnyRun, Run
from suite.tuning.session import Session
from suite.tuning.trials import Trial, count_steps, measure_shortfall, name_last

WIDTH = 160  # columns; each trial stands on one line
ANY = "all"  # the source's name for a task with only one source


def collect_evidence(session: Session, *, keys: Sequence[str], command: Sequence[str], name: str) -> dict[str, Any]:
    """Return the recipe's entry for one data source: the best trial's values, and how they were found.

    Args:
        session: a finished search.
        keys: dotted keys whose values the recipe sets.
        command: what was typed after `suite tune`.
        name: of the recipe.
    """
    best = next(result for result in session.tried[0].results if result)
    facts = best.environment
    return {
        "source": name,
        "trials": len(session.trials),
        "converged": session.converged,
        "runs": round(session.runs_spent, 2),
        "values": _nested({key: value_at(record.load_run(best), key) for key in keys}),
        "command": shlex.join(["suite", "tune", *command]),
        "date": datetime.date.today().isoformat(),
        "commit": f"{facts.commit}{' with changes' if facts.dirty else ''}",
        "machine": f"{facts.cpu}, {facts.threads} of {facts.cores} cores, {best.segments[-1].device}",
        "versions": facts.frameworks,
        "tried": [_line(trial) for trial in session.trials.values()],
    }


def _line(trial: Trial) -> dict[str, Any]:
    line: dict[str, Any] = {"trial": trial.number, **trial.values, "outcome": trial.outcome}
    if trial.screened:
        line["screened"] = {"at": trial.screened.steps, **_ending(trial.screened)}
    return line | ({"seeds": [_ending(result) for result in trial.results]} if trial.results else {})


def _ending(result: Result | None) -> dict[str, Any]:
    """Return the last target that a run reached, and its steps; `short` is the distance from the next one."""
    ending: dict[str, Any] = {"reached": name_last(result), "steps": count_steps(result)}
    distance = measure_shortfall(result)
    return {**ending, "short": float(f"{distance:.4g}")} if 0 < distance < math.inf else ending


def tuned_in(path: Path) -> dict[str, Any]:
    """Return the tuned values that a recipe file already has, by data source; {} if there is no file.

    Raises:
        UserError: if the file was not written by `suite tune`.
    """
    if not path.exists():
        return {}
    node = disk.read_yaml(path)
    if not isinstance(node, dict) or "tuned" not in node:
        raise UserError(f"{path}: suite tune did not write this recipe and will not replace it; use --out FILE")
    return node["tuned"]


def render_recipe(run: Run, tuned: Mapping[str, Any]) -> str:
    """Return the contents of the recipe file.

    Args:
        run: the run without tuning; its values are the defaults.
        tuned: evidence by data source.
    """
    import yaml

    place = "${task.data}" if "data" in run.task.options() else ANY
    keys = sorted({key for entry in tuned.values() for key in flatten_values(entry["values"])})
    nodes = {key: f"${{oc.select:tuned.{place}.values.{key},{json.dumps(value_at(run, key))}}}" for key in keys}
    nodes |= {
        f"tuning.{key}": f"${{oc.select:tuned.{place}.{key},{value}}}"
        for key, value in {**run.tuning.plain(), "converged": "null"}.items()
    }
    head = (
        "# @package _global_\n"
        f"# {run.optimizer.name} on {run.task.name}, {run.scale} scale, tuned on {', '.join(tuned)}\n"
        "# Written by `suite tune`: the best values, and every trial; other data gets the defaults.\n"
    )
    above = yaml.safe_dump(_nested(nodes), sort_keys=False, width=WIDTH)
    return head + above + yaml.safe_dump({"tuned": dict(tuned)}, sort_keys=False, width=WIDTH, default_flow_style=None)


def value_at(run: AnyRun, key: str) -> Any:
    """Return the value at a dotted key."""
    return next(leaf.value for leaf in run.leaves() if leaf.key == key)


def _nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted keys as nested dictionaries."""
    nested: dict[str, Any] = {}
    for key, value in values.items():
        *path, last = key.split(".")
        functools.reduce(lambda node, part: node.setdefault(part, {}), path, nested)[last] = value
    return nested
