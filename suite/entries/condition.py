"""Defines the condition that must be equal for results to rank together: all but the method and its settings.

Results of older versions are completed: settings that they lack get the value with which they were made (`ADDED`), the
identity of generated data gets its sizes (`record.identity`), and a run without `init_from` started from no weights.
"""

import json
from collections.abc import Mapping
from typing import Any

from suite.record import record

Result = dict[str, Any]  # one result.json

TUNING_SEEDS = range(3)  # `suite tune` chooses by these; a tuned run with one of them would be judged by its own choice
# Settings that a result may have otherwise than the claim's command: they change no number of the run's mathematics.
INCIDENTAL = (
    "seed",
    "repeat",
    "run_dir",
    "force",
    "track",
    "launch",
    "require",
    "data_dir",
    "device",
    "threads",
    "save",
)
INCIDENTAL += ("checkpoint_every", "log_every", "resume", "tuning", "prefetch")
CADENCE = "eval_every"  # matters for steps to a target only

# Settings of a task, at any depth, that change neither data nor model nor metric. All other settings are part of the
# condition, also those of tasks that this file does not know.
APART = {"name", "module", "variant", "batch_size", "targets"}  # these have fields of their own in a group
MACHINE = {
    "data_dir",
    "cache_dir",
    "eval_batch_size",
    "placement",
    "execution",
}  # the place of the data, and how it is processed
TRAINING = {
    "bn_group",
    "smoothing",
    "mixup",
    "erase",
    "dropout",
    "l2",
    "scale_rate",
    "steps",
}  # tuned like a learning rate
FREE = APART | MACHINE | TRAINING | {"on_error"}  # skipped files change the numbers of samples
# Settings that some results are older than, with the value with which those results were made.
ADDED = {"autoencoder": {"metric": "loss", "evaluate_on": "valid"}}


def add_baselines(members: dict[str, list[str]]) -> None:
    """Add baselines to every group of runs on their data and target, in place.

    Baselines have no batch size, network, initial weights or tuning. Without such a group, they form one.

    Args:
        members: file names by condition, as text.
    """

    def fit(key: str) -> str:
        return as_text(
            json.loads(key) | {"batch_size": None, "parameters": None, "initial_weights": None, "tuned": False}
        )

    for key in [key for key in members if json.loads(key)["batch_size"] is None]:
        groups = [other for other in members if other != key and fit(other) == key]
        baselines = members.pop(key) if groups else []
        for group in groups:
            members[group] = members[group] + baselines


def condition_of(result: Result) -> dict[str, Any]:
    """What must be equal for two results to rank together, apart from the target."""
    spec, data = result["spec"], result["data"]
    source = spec["config"].get("init_from")  # results older than this setting started from no weights
    return {
        **{key: spec[key] for key in ("task", "variant", "scale", "batch_size")},
        "task_version": result["task_version"],
        "data": {key: data[key] for key in ("kind", "name")} | {"identity": record.identity(data)},
        "samples": data["samples"],
        "parameters": result["parameters"],
        # the weights' checksum, whatever their path
        "initial_weights": result["environment"].get("initial_weights", source) if source else None,
        "settings": _condition_settings({**ADDED.get(spec["task"], {}), **spec["config"]["task"]}),
        "tuned": bool(result["tuning"]["trials"]),
    }


def _condition_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """A task's settings without those in `FREE`, at any depth."""
    return {
        name: _condition_settings(value) if isinstance(value, Mapping) else value
        for name, value in settings.items()
        if name not in FREE
    }


def reported(files: Mapping[str, Result]) -> dict[str, Result]:
    """The results that count. Those of a tuned recipe with a seed of its tuning do not, where there are others.

    `suite tune` chooses settings by these seeds, so such a result was judged by its own choice. It counts only as long
    as its method has no other result on the same task and data, with the same framework, communication and devices.

    Args:
        files: results by file name.
    """

    def method(result: Result) -> str:
        spec, data = result["spec"], result["data"]
        keys = ("task", "variant", "scale", "optimizer", "backend", "comm", "world")
        return as_text([*(spec.get(key) for key in keys), data["kind"], data["name"]])

    def chosen_by_itself(result: Result) -> bool:
        return bool(result["tuning"]["trials"]) and result["spec"]["seed"] in TUNING_SEEDS

    others = {method(result) for result in files.values() if not chosen_by_itself(result)}
    return {file: item for file, item in files.items() if not (chosen_by_itself(item) and method(item) in others)}


def rung_of(target: Mapping[str, Any]) -> dict[str, Any]:
    """The target of an entry of a result's ladder, without the run's progress."""
    return {key: target[key] for key in ("metric", "value", "higher_is_better")}


def as_text(value: Any) -> str:
    """A value as JSON; equal values give equal text."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False)
