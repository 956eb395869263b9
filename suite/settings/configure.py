"""Composes a resolved configuration from overrides with Hydra; `suite.settings.validation` checks it."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from suite.contract import UserError
from suite.load import members, nearest, options, preset
from suite.settings import baseline, recipes, validation
from suite.settings.baseline import is_baseline
from suite.settings.overrides import CHOICES, TUNED, clean, flat

# Parts of `comm` and their groups. Each is a member's name, or {module: …} with its options.
PARTS = {
    "codec": "codecs",
    "inner": "codecs",
    "algorithm": "algorithms",
    "topology": "topologies",
    "schedule": "schedules",
}
# Keys of a YAML file that list alternatives; `compose` removes them from the run's configuration.
ALTERNATIVES = {"task": ("scales", "variants", "sources", "default_optimizer"), "optimizer": ("search",)}


def compose(overrides: Sequence[str], directory: Path | None = None, *, check: bool = True) -> dict[str, Any]:
    """Return the resolved configuration of one run, as plain dictionaries and numbers.

    Args:
        overrides: `key=value`, as typed.
        directory: the user's own configuration groups, in addition to the suite's.
        check: whether keys, types and ranges are checked. Without the check, which composes twice, it takes half the
            time; use that for overrides that are known to be right.

    Raises:
        UserError: a choice or key is unknown, a value has a wrong type or is out of range, the task is missing, or a
            baseline does not read a setting.
    """
    config = whole(overrides, directory, check=check)
    for group, names in ALTERNATIVES.items():
        config[group] = {name: value for name, value in config[group].items() if name not in names}
    config.pop("tuned", None)
    return baseline.settings(config, clean(overrides)) if is_baseline(config) else config


def whole(overrides: Sequence[str], directory: Path | None = None, *, check: bool = True) -> dict[str, Any]:
    """Return the configuration as `compose` does, with ALTERNATIVES and `tuned`, which the YAML files contain."""
    from hydra import compose as hydra_compose
    from hydra import initialize_config_module
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    overrides = complete(overrides, directory)
    chosen = [override for override in overrides if override.partition("=")[0].lstrip("+~") in CHOICES]
    validation.known_choices(chosen, directory)
    validation.known_alternatives(overrides, directory)
    path = [f"hydra.searchpath=[file://{directory.resolve()}]"] if directory else []
    defaults: dict[str, Any] = {}
    with initialize_config_module("suite.conf", version_base="1.3"):
        try:
            if check:
                plain = hydra_compose("config", path + chosen)
                keys = flat(OmegaConf.to_container(plain))
                for override in overrides:
                    validation.known_key(override, keys)
                defaults = flat(OmegaConf.to_container(plain, resolve=True))
            node = hydra_compose("config", path + [word for override in overrides for word in _replacing(override)])
            config = OmegaConf.to_container(node, resolve=True)
        except (HydraException, OmegaConfBaseException) as error:
            raise UserError(_first_line(error)) from error
    assert isinstance(config, dict)
    if config.get("task") is None:
        raise UserError(f"no task; type +task=<name>: {', '.join(options('task', directory))}")
    if check:
        validation.types(flat(config), defaults, overrides)
        validation.against_declarations({str(name): value for name, value in config.items()})
    config["comm"] = parts(config["comm"], "comm")
    if config.get("partition"):
        config["partition"]["activations"] = codec(config["partition"]["activations"], directory)
    changed = [override for override in overrides if override.lstrip("+").startswith(TUNED)]
    if changed:
        config["tuning"] = {
            "source": "command line",
            "trials": 0,
            "from": config["tuning"]["source"],
            "changed": changed,
        }
    return {str(name): value for name, value in config.items()}


def complete(overrides: Iterable[str], directory: Path | None = None) -> list[str]:
    """Return cleaned overrides, with an optimizer and a recipe if the user names none.

    The optimizer is the first that has a published recipe for the task and the scale, else the task's
    `default_optimizer`; the recipe is that of `recipes.default`. An experiment names both, most published recipes name
    an optimizer, and a baseline uses no recipe.

    Args:
        overrides: `key=value`, as typed.
        directory: the user's own configuration groups.
    """
    overrides = clean(overrides)
    chosen = {key: value for key, _, value in (override.partition("=") for override in overrides)}
    if "baseline" in chosen:
        return overrides if {"recipe", "~recipe"} & chosen.keys() else ["~recipe", *overrides]
    if "experiment" in chosen:
        return overrides
    task, scale = chosen.get("task"), chosen.get("scale", recipes.LAPTOP)
    added = []  # precedes the user's overrides: Hydra accepts none after --cfg
    if "optimizer" not in chosen and not _brings_optimizer(chosen.get("recipe"), directory):
        usual = preset("task", task, directory).get("default_optimizer")
        if name := next(iter(recipes.published(task, scale, directory)), usual):
            added.append(f"optimizer={name}")
            chosen["optimizer"] = name
    if not {"recipe", "~recipe"} & chosen.keys():
        optimizer = chosen.get("optimizer", "sgd")  # as in conf/config.yaml
        if name := recipes.default(task, optimizer, scale, directory):
            added.append(f"recipe={name}")
    return [*added, *overrides]


def _brings_optimizer(recipe: str | None, directory: Path | None) -> bool:
    """Whether a recipe overrides the optimizer. Published ones do; tuned ones are chosen by the optimizer's name."""
    return any("override /optimizer" in entry for entry in preset("recipe", recipe, directory).get("defaults", []))


def _replacing(override: str) -> list[str]:
    """Replace a whole part, as in `comm.codec={…}`, because the new codec may lack options of the old one."""
    key, _, value = override.partition("=")
    whole = key.startswith("comm.") and key.rpartition(".")[2] in PARTS and value.startswith("{")
    return [f"~{key}", f"+{key}={value}"] if whole else [override]


def parts(node: Any, place: str) -> Any:
    """Return a node of `comm` with the modules of parts given by name, as in `comm.codec=int8`.

    Args:
        node: the node.
        place: its dotted key, for errors.

    Raises:
        UserError: there is no part of that name.
    """
    if not isinstance(node, dict):
        return node
    resolved = {}
    for key, value in node.items():
        if key in PARTS and isinstance(value, str):
            if value not in (names := members(PARTS[key])):
                raise UserError(f"{place}.{key}={value}: no such {key}; {nearest(value, names)} (presets: comm=NAME)")
            value = {"module": f"suite.comm.{PARTS[key]}.{value}"}
        resolved[key] = parts(value, f"{place}.{key}")
    return resolved


def codec(value: Any, directory: Path | None = None) -> Any:
    """Return the codec of `partition.activations`: that of a preset of `comm`, as in `partition.activations=fp8`.

    Args:
        value: the preset's name; anything else is returned.
        directory: the user's own configuration groups.

    Raises:
        UserError: there is no preset of that name, or it names no codec.
    """
    if not isinstance(value, str):
        return value
    nodes = {name: preset("comm", name, directory) for name in options("comm", directory)}
    codecs = {name: node["codec"] for name, node in nodes.items() if "codec" in node}
    if value not in codecs:
        raise UserError(f"partition.activations={value}: no such codec; {nearest(value, codecs)}")
    return codecs[value]


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
