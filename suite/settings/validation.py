"""Checks overrides and the composed configuration.

Errors name the nearest valid choices and settings. A value must have the type of the default that it replaces, and be
in the range that its member declares.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from suite.contract import UserError
from suite.declared import Declared
from suite.load import common, declared, files, nearest, options, preset
from suite.settings.overrides import CHOICES, DIRECTORIES, OPTIONAL
from suite.settings.run import CommSettings, PartitionSettings, RunSettings, TaskSettings

# Settings whose type may differ from that of their default.
FREE = (*DIRECTORIES, "init_from", "require", "threads", "launch.processes", "comm.ranks_per_host")
FREE += ("task.module", "optimizer.module")


def known_choices(chosen: Iterable[str], directory: Path | None) -> None:
    """Reject a choice that has no YAML file in its group.

    Raises:
        UserError: naming the nearest ones.
    """
    for override in chosen:
        group, _, name = override.lstrip("+~").partition("=")
        names = options(group, directory)
        if name not in names and not override.startswith("~"):
            raise UserError(f"{group}={name}: unknown; {nearest(name, names)}")


def known_alternatives(overrides: Iterable[str], directory: Path | None) -> None:
    """Reject a scale, a variant or data that the task's YAML file does not list.

    Raises:
        UserError: naming the nearest ones.
    """
    typed = {key.lstrip("+"): value for key, _, value in (override.partition("=") for override in overrides)}
    task = preset("task", typed.get("task"), directory)
    for key, alternatives in (("scale", "scales"), ("task.variant", "variants"), ("task.data", "sources")):
        names = [str(name) for name in task.get(alternatives) or ()]
        if names and key in typed and typed[key] not in names:
            hint = nearest(typed[key], names)
            raise UserError(f"{key}={typed[key]}: task={typed['task']} has none of that name; {hint}")


def known_key(override: str, keys: Mapping[str, Any]) -> None:
    """Reject an override of a setting that the configuration does not have.

    Args:
        override: as typed.
        keys: the configuration's settings, as dotted keys.

    Raises:
        UserError: naming the nearest ones.
    """
    key = override.partition("=")[0]
    if key in [f"~{choice}" for choice in OPTIONAL]:
        return
    if "=" not in override:
        raise UserError(f"{override}: not understood; write key=value, or suite --help")
    if key.startswith(("+", "~", "hydra.")) or key in CHOICES:
        return
    if key not in keys and not any(known.startswith(f"{key}.") for known in keys):
        raise UserError(f"{key}: unknown; {nearest(key, [*keys, *CHOICES])}")


def types(values: Mapping[str, Any], defaults: Mapping[str, Any], overrides: Iterable[str]) -> None:
    """Reject a value whose type differs from that of the default that it replaces.

    Args:
        values: the configuration, as dotted keys.
        defaults: the same without overrides.
        overrides: as typed.

    Raises:
        UserError: naming the type.
    """
    for override in overrides:
        key = override.partition("=")[0]
        if key in FREE or key not in defaults or key not in values or defaults[key] is None:
            continue
        value, default = values[key], defaults[key]
        number = isinstance(default, float | int) and not isinstance(default, bool)
        kinds = (int,) if isinstance(default, int) else (int, float)
        fits = isinstance(value, kinds) and not isinstance(value, bool) if number else type(value) is type(default)
        if not fits:
            raise UserError(f"{key}={value}: must be of type {type(default).__name__}, like its default {default}")


def against_declarations(config: Mapping[str, Any]) -> None:
    """Check the settings of the run, the task, communication and the optimizer against their declarations.

    Raises:
        UserError: for a value of another type or out of range. Unknown settings are rejected elsewhere.
    """
    _check(RunSettings, config, "")
    _check(TaskSettings, config["task"], "task.")
    _check(CommSettings, config.get("comm") or {}, "comm.")
    _check(PartitionSettings, config.get("partition") or {}, "partition.")
    optimizer = config.get("optimizer") or {}
    if optimizer and (settings := declared(optimizer["module"])):
        _check(settings, optimizer, "optimizer.")


def _check(settings: type[Declared], node: Mapping[str, Any], place: str) -> None:
    settings.given({name: value for name, value in node.items() if name in settings.model_fields}, place)


def reject_unread(config: Mapping[str, Any], overrides: Sequence[str], directory: Path | None = None) -> None:
    """Reject settings that no part of the run reads: another optimizer's options, `network`, RaNNC's rules, `data_dir`.

    Raises:
        UserError: naming the part that reads it.
    """
    reject_foreign(config.get("optimizer"), overrides, directory)
    policy = (config.get("comm") or {}).get("policy")
    chooses = policy and "network" in common(policy["module"]).READS
    if "network" in config and not (chooses or config.get("partition")):
        name = config["network"]["name"]
        raise UserError(
            f"network={name}: a run uses the real network; only `suite plan` projects to another one, and only "
            "comm=projected and partition=auto read this setting"
        )
    if (config.get("partition") or {}).get("rannc_compat"):
        raise UserError(
            "partition.rannc_compat=true: a run by RaNNC's rules would not have the bits of the unmodified model; only "
            "`suite plan` reads this setting"
        )
    task = config["task"]
    typed = any(override.startswith("data_dir=") for override in overrides)
    if typed and "data_dir" not in (task.get("source") or {}):
        source = f"task.data={task['data']} reads no directory" if "data" in task else "this task reads no directory"
        raise UserError(
            f"data_dir={config['data_dir']}: {source}; choose task.data=, or see: suite data {task['name']}"
        )


def reject_foreign(optimizer: Mapping[str, Any] | None, overrides: Sequence[str], directory: Path | None) -> None:
    """Reject an option that a preset sets for another optimizer.

    Raises:
        UserError: naming the preset.
    """
    import yaml

    if optimizer is None:
        return
    nodes = [yaml.safe_load(path.read_text()) for path in files("optimizer", directory)]
    known = {key for node in nodes if node.get("module") == optimizer["module"] for key in node}
    words = [word.lstrip("+") for word in overrides]
    typed = {word.partition("=")[0].split(".")[1] for word in words if word.startswith("optimizer.")}
    foreign = sorted(optimizer.keys() - known - typed) if known else []
    if foreign:
        presets = " or ".join(word for word in words if word.startswith(("comm=", "recipe="))) or "a preset"
        raise UserError(
            f"optimizer.{foreign[0]}: {optimizer['name']} has no such option; {presets} is for another optimizer"
        )
