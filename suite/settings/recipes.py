"""Default recipe of a run, and the warning about settings that are neither published nor tuned."""

from pathlib import Path

from suite.load import list_options, read_preset
from suite.settings.run import AnyRun, BaselineRun

LAPTOP = "laptop"  # the scale of conf/config.yaml, whose recipes `suite tune` has written
UNTUNED, DEFAULTS = "untuned", "defaults"  # tuning.source of conf/recipe/untuned.yaml and of conf/config.yaml


def list_published(task: str | None, scale: str, directory: Path | None = None) -> dict[str, str]:
    """Return {optimizer: published recipe} for a task and a scale, the default optimizer first.

    The task's YAML file lists them under `scales.<scale>.recipes`.
    """
    return read_preset("task", task, directory).get("scales", {}).get(scale, {}).get("recipes", {})


def choose_recipe(task: str | None, optimizer: str, scale: str, directory: Path | None = None) -> str | None:
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
    if f"{task}-{optimizer}-{scale}" in list_options("recipe", directory):
        return None
    known = list_published(task, scale, directory)
    if optimizer in known:
        return known[optimizer]
    searched = "lr" in read_preset("optimizer", optimizer, directory).get("search", {})
    return UNTUNED if scale != LAPTOP and searched else None


def warn_untuned(run: AnyRun) -> str:
    """Return a warning if settings above the laptop's scale are neither published nor tuned, else ""."""
    source = run.tuning.origin or run.tuning.source
    if run.scale == LAPTOP or isinstance(run, BaselineRun) or source not in (UNTUNED, DEFAULTS):
        return ""
    known = ", ".join(list_published(run.task.name, run.scale)) or "none"
    return (
        f"optimizer={run.optimizer.name} has no published recipe for task={run.task.name} at scale={run.scale}, and "
        f"its settings here are not tuned; optimizers with a published recipe: {known}"
    )
