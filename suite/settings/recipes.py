"""The default recipe of a run, and the warning about settings that are neither published nor tuned."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from suite.load import options, preset

LAPTOP = "laptop"  # the scale of conf/config.yaml, whose recipes `suite tune` has written
UNTUNED, DEFAULTS = "untuned", "defaults"  # tuning.source of conf/recipe/untuned.yaml and of conf/config.yaml


def published(task: str | None, scale: str, directory: Path | None = None) -> dict[str, str]:
    """Return {optimizer: published recipe} for a task and a scale, the default optimizer first.

    The task's YAML file lists them under `scales.<scale>.recipes`.
    """
    return preset("task", task, directory).get("scales", {}).get(scale, {}).get("recipes", {})


def default(task: str | None, optimizer: str, scale: str, directory: Path | None = None) -> str | None:
    """Return the recipe to add to the overrides; None if conf/config.yaml chooses it or there is none.

    conf/config.yaml chooses `<task>-<optimizer>-<scale>` if `suite tune` has written it. Otherwise the recipe is the
    published one, and without one `untuned` at every scale except the laptop's. An optimizer from outside the tree
    whose YAML file gives no search range of the learning rate keeps its own defaults.

    Args:
        task: the task's name.
        optimizer: the optimizer's name.
        scale: the scale.
        directory: the user's own configuration groups.
    """
    if f"{task}-{optimizer}-{scale}" in options("recipe", directory):
        return None
    known = published(task, scale, directory)
    if optimizer in known:
        return known[optimizer]
    searched = "lr" in preset("optimizer", optimizer, directory).get("search", {})
    return UNTUNED if scale != LAPTOP and searched else None


def caution(config: Mapping[str, Any]) -> str:
    """Return a warning if settings above the laptop's scale are neither published nor tuned, else ""."""
    tuning = config.get("tuning", {})
    source = tuning.get("from", tuning.get("source"))
    if config["scale"] == LAPTOP or "optimizer" not in config or source not in (UNTUNED, DEFAULTS):
        return ""
    task, scale = config["task"]["name"], config["scale"]
    known = ", ".join(published(task, scale)) or "none"
    return (
        f"optimizer={config['optimizer']['name']} has no published recipe for task={task} at scale={scale}, and its "
        f"settings here are not tuned; optimizers with a published recipe: {known}"
    )
