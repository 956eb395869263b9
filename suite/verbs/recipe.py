"""The recipe file that `suite tune` writes: tuned values for each source of data, and where they come from.

Everything is data below `tuned`, which composition leaves out of a run; the nodes above it look the values up for the
source at hand, and fall back to the defaults where a source has not been tuned.
"""

import datetime
import functools
import json
import operator
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from suite import configure
from suite.contract import UserError
from suite.verbs.trials import Trial, last, steps

WIDTH = 160  # columns of a trial's line: one trial, one line
ANY = "all"  # stands for the source of data where a task has only one


def evidence(ranked: Sequence[Trial], *, keys: Sequence[str], command: Sequence[str], name: str) -> dict[str, Any]:
    """What a recipe holds of one data source: the best trial's values, and how they were found.

    Args:
        ranked: the trials, best first.
        keys: dotted keys whose values the recipe fixes.
        command: what was typed after `suite tune`.
        name: of the recipe.
    """
    best = ranked[0].result
    assert best is not None
    here = best["environment"]
    return {
        "source": name,
        "trials": len(ranked),
        "values": _nested({key: at(best["spec"]["config"], key) for key in keys}),
        "command": shlex.join(["suite", "tune", *command]),
        "date": datetime.date.today().isoformat(),
        "commit": f"{here['commit']}{' with changes' if here['dirty'] else ''}",
        "machine": f"{here['cpu']}, {here['threads']} of {here['cores']} cores, {best['segments'][-1]['device']}",
        "versions": here["frameworks"],
        "tried": [_line(trial) for trial in sorted(ranked, key=lambda trial: trial.number)],
    }


def _line(trial: Trial) -> dict[str, Any]:
    came = {"reached": last(trial.result), "steps": steps(trial.result), "outcome": trial.outcome}
    again = [{"reached": last(result), "steps": steps(result)} for result in trial.again]
    return {"trial": trial.number, **trial.values, **came} | ({"again": again} if again else {})


def tuned_in(path: Path) -> dict[str, Any]:
    """What an earlier `suite tune` found, by data source; nothing where there is no file.

    Raises:
        UserError: for a recipe that was written by hand.
    """
    import yaml

    if not path.exists():
        return {}
    node = yaml.safe_load(path.read_text())
    if not isinstance(node, dict) or "tuned" not in node:
        raise UserError(f"{path}: was not written by suite tune, and is left as it is; choose another file with --out")
    return node["tuned"]


def text(config: Mapping[str, Any], tuned: Mapping[str, Any]) -> str:
    """The whole recipe.

    Args:
        config: the configuration without any tuning, where a source falls back to.
        tuned: evidence by data source.
    """
    import yaml

    task = config["task"]
    place = "${task.data}" if "data" in task else ANY
    keys = sorted({key for found in tuned.values() for key in configure.flat(found["values"])})
    nodes = {key: f"${{oc.select:tuned.{place}.values.{key},{json.dumps(at(config, key))}}}" for key in keys}
    nodes |= {f"tuning.{key}": f"${{oc.select:tuned.{place}.{key},{value}}}" for key, value in config["tuning"].items()}
    head = (
        "# @package _global_\n"
        f"# {config['optimizer']['name']} on {task['name']}, {config['scale']} scale, tuned on {', '.join(tuned)}\n"
        "# Written by `suite tune`: the best of a quasi-random list, and every trial; other data gets the defaults.\n"
    )
    above = yaml.safe_dump(_nested(nodes), sort_keys=False, width=WIDTH)
    return head + above + yaml.safe_dump({"tuned": dict(tuned)}, sort_keys=False, width=WIDTH, default_flow_style=None)


def at(config: Mapping[str, Any], key: str) -> Any:
    """The value at a dotted key."""
    return functools.reduce(operator.getitem, key.split("."), config)


def _nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted keys as nested dictionaries."""
    made: dict[str, Any] = {}
    for key, value in values.items():
        *path, last = key.split(".")
        functools.reduce(lambda node, part: node.setdefault(part, {}), path, made)[last] = value
    return made
