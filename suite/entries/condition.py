"""Defines the condition that must be equal for results to rank together: all but the method and its settings.

What a setting affects is declared where the setting is (`suite/declared.py`): a task's settings that affect what is
measured are part of the condition. Results of older versions are completed by `record.load_run`, and the identity of
generated data gets its sizes (`record.identify_data`).
"""

import json
from collections.abc import Mapping
from typing import Any

from suite.record import record
from suite.record.result import Crossing, Result
from suite.record.versions import find_version
from suite.settings.effects import select_settings
from suite.settings.run import AnyRun, Run

TUNING_SEEDS = range(3)  # `suite tune` chooses by these; a tuned run with one of them would be judged by its own choice
CADENCE = "eval_every"  # matters for steps to a target only
COLUMNS = ("name", "module", "variant", "targets")  # settings of a task that are columns of a group


def add_baselines(members: dict[str, list[str]]) -> None:
    """Add baselines to every group of runs on their data and target, in place.

    Baselines have no batch size, network, initial weights or tuning. Without such a group, they form one.

    Args:
        members: file names by condition, as text.
    """

    def fit(key: str) -> str:
        return format_condition(
            json.loads(key) | {"batch_size": None, "parameters": None, "initial_weights": None, "tuned": False}
        )

    for key in [key for key in members if json.loads(key)["batch_size"] is None]:
        groups = [other for other in members if other != key and fit(other) == key]
        baselines = members.pop(key) if groups else []
        for group in groups:
            members[group] = members[group] + baselines


def read_condition(result: Result) -> dict[str, Any]:
    """Return what must be equal for two results to rank together, apart from the target."""
    spec, data = result.spec, result.data
    run = record.load_run(result)
    source = run.init_from if isinstance(run, Run) else None
    return {
        **{key: getattr(spec, key) for key in ("task", "variant", "scale", "batch_size")},
        "task_version": find_version(run, result.task_version),
        "data": {"kind": data.kind, "name": data.name} | {"identity": record.identify_data(data)},
        "samples": data.samples,
        "parameters": result.parameters,
        # the weights' checksum, whatever their path
        "initial_weights": (result.environment.initial_weights or source) if source else None,
        "settings": _task_settings(run),
        "tuned": bool(result.tuning.trials),
    }


def _task_settings(run: AnyRun) -> dict[str, Any]:
    """Return the settings of a task that change data, model or metric, as nested dictionaries."""
    settings: dict[str, Any] = {}
    for key, value in select_settings(run, ("measurement",)).items():
        if not key.startswith("task."):
            continue
        *path, name = key.removeprefix("task.").split(".")
        if not path and name in COLUMNS:
            continue
        node = settings
        for part in path:
            node = node.setdefault(part, {})
        node[name] = value
    return settings


def select_reported(files: Mapping[str, Result]) -> dict[str, Result]:
    """Return the results that count. Those of a tuned recipe with a seed of its tuning do not, where there are others.

    `suite tune` chooses settings by these seeds, so such a result was judged by its own choice. It counts only as long
    as its method has no other result on the same task and data, with the same framework, communication and devices.

    Args:
        files: results by file name.
    """

    def method(result: Result) -> str:
        spec, data = result.spec, result.data
        keys = ("task", "variant", "scale", "optimizer", "backend", "comm", "world")
        return format_condition([*(getattr(spec, key) for key in keys), data.kind, data.name])

    def chosen_by_itself(result: Result) -> bool:
        return bool(result.tuning.trials) and result.spec.seed in TUNING_SEEDS

    others = {method(result) for result in files.values() if not chosen_by_itself(result)}
    return {file: item for file, item in files.items() if not (chosen_by_itself(item) and method(item) in others)}


def read_rung(target: Crossing) -> dict[str, Any]:
    """Read the target of an entry of a result's ladder, without the run's progress."""
    return {"metric": target.metric, "value": target.value, "higher_is_better": target.higher_is_better}


def format_condition(value: Any) -> str:
    """A value as JSON; equal values give equal text: `10` and `10.0`, which a result may contain for one target."""
    return json.dumps(_shorten_numbers(value), sort_keys=True, ensure_ascii=False)


def _shorten_numbers(value: Any) -> Any:
    """Replace whole numbers that are floats by integers."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Mapping):
        return {key: _shorten_numbers(item) for key, item in value.items()}
    return [_shorten_numbers(item) for item in value] if isinstance(value, list | tuple) else value
