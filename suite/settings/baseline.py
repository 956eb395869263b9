"""The configuration of a baseline, which reads only a part of a run's settings."""

from collections.abc import Iterable, Mapping
from typing import Any

from suite.contract import UserError

# The settings that a baseline reads. All others describe training in steps, and its configuration omits them.
READ = ("task", "baseline", "scale", "seed", "threads", "tuning", "data_dir")
READ += ("run_dir", "repeat", "force", "require", "track")


def is_baseline(config: Mapping[str, Any]) -> bool:
    """Return whether a configuration, or a result's `spec`, is that of a baseline."""
    return "baseline" in config


def settings(config: Mapping[str, Any], typed: Iterable[str]) -> dict[str, Any]:
    """Return a baseline's configuration, from one that was composed for a run.

    Args:
        config: the composed configuration, with `baseline`.
        typed: the overrides.

    Raises:
        UserError: the baseline is for another task, or an override is a setting that it does not read.
    """
    name, task = config["baseline"]["name"], config["baseline"]["task"]
    command = f"suite +task={task} baseline={name}"
    if config["task"]["name"] != task:
        raise UserError(f"baseline={name}: is for task={task}, not {config['task']['name']}; type {command}")
    for override in typed:
        if override.lstrip("+~").partition("=")[0].partition(".")[0] not in READ:
            raise UserError(
                f"{override}: a baseline is fitted whole, on one CPU, without optimizer, backend, devices or steps; "
                f"type {command}"
            )
    return {key: value for key, value in config.items() if key in READ}
