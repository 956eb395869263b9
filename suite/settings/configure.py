"""Resolves overrides to one run: completes them, composes them with Hydra, and checks the result.

Hydra alone selects files, merges them and interpolates. No framework and no member is imported.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from suite.contract import UserError, suggest_names
from suite.load import (
    Plain,
    find_members,
    is_node,
    list_options,
    read_preset,
)
from suite.nodes import load_settings
from suite.settings import recipes
from suite.settings.composition import compose_overrides
from suite.settings.overrides import (
    CHOICES,
    DIRECTORIES,
    OPTIONAL,
    TUNED,
    check_syntax,
    clean_overrides,
    key_of,
    render_command,
)
from suite.settings.rates import list_unread
from suite.settings.run import AnyRun, BaselineRun, Run, read_run

# Parts of `comm` and their groups. Each is a member's name, or {module: …} with its options.
PARTS = {
    "codec": "codecs",
    "inner": "codecs",
    "algorithm": "algorithms",
    "topology": "topologies",
    "schedule": "schedules",
}
# Keys of a YAML file from which a run is composed; they are no part of it.
ALTERNATIVES = {"task": ("scales", "variants", "sources", "default_optimizer"), "optimizer": ("search",)}
# Keys that no override sets, and why.
FIXED = {
    r"(task|optimizer|baseline)\.name": "the name follows from the choice; set task=, optimizer= or baseline=",
    r"(task|optimizer|baseline)\.module": "the module follows from the choice; set task=, optimizer= or baseline=",
    r"launch\.module": "the module follows from the choice; set launch=",
    r"(tuning|tuned)(\..*)?": "describes where the settings come from; it cannot be set",
    r"task\.((scales|variants)(\..*)?|sources|default_optimizer)": "is no setting of a run; set task.KEY=VALUE",
    r"hydra([./].*)?|.*[@/].*": "is no setting of a run; write key=value",
}
PATHS = (*DIRECTORIES, "init_from", "decisions")
# Settings of a run that a baseline reads; the others describe training in steps.
OF_BASELINE = tuple(BaselineRun.model_fields)


def resolve(overrides: Sequence[str], directory: Path | None = None) -> AnyRun:
    """Return the run that overrides describe.

    Args:
        overrides: `key=value`, as typed.
        directory: the user's own configuration groups, in addition to the suite's.

    Raises:
        UserError: a choice or key is unknown, a value has a wrong type or is out of range, the task is missing, or a
            baseline does not read a setting.
    """
    cleaned = clean_overrides(overrides)
    config = compose_nodes(overrides, directory)
    for group in ALTERNATIVES:
        config[group] = _drop_alternatives(config[group], group)
    config.pop("tuned", None)
    _reject_keys_without_group(config, cleaned)
    _reject_unlisted(config, cleaned, directory)
    _reject_other_launch(cleaned, directory)
    if config.get("baseline"):
        return read_run(_of_baseline(config, cleaned, directory))
    run = read_run(config)
    if isinstance(run, Run) and not run.network and (run.compute_seconds is not None or run.inverse_seconds):
        raise UserError("compute_seconds=, inverse_seconds=: are read only with a network; set network= as well")
    return run


def resolve_training(overrides: Sequence[str], directory: Path | None = None) -> Run:
    """Return the training run that overrides describe; see `resolve`.

    Raises:
        UserError: as `resolve`, and if it is the fit of a baseline.
    """
    run = resolve(overrides, directory)
    if isinstance(run, BaselineRun):
        raise UserError(f"baseline={run.baseline.name}: is fitted whole; a training run is needed here")
    return run


def compose_nodes(overrides: Sequence[str], directory: Path | None = None) -> dict[str, Any]:
    """Return what Hydra composes, with ALTERNATIVES and `tuned`, which the YAML files contain; it is not yet checked.

    Raises:
        UserError: a choice is unknown, or an override cannot be applied.
    """
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    if directory and not directory.is_dir():
        raise UserError(f"--config-dir {directory}: no such directory")
    completed = complete_overrides(overrides, directory)
    for override in completed:
        check_syntax(override)
    _check_choices(completed, directory)
    words = [word for override in completed for word in _added(override)]
    try:
        nodes = compose_overrides(words, directory)
    except (HydraException, OmegaConfBaseException) as error:
        place = "".join(f"{override}: " for override in completed if "${" in override)
        line = re.sub(r"^Error merging override \++(.*)", r"\1: not of the setting's type", _first_line(error))
        raise UserError(place + line) from error
    if not isinstance(nodes.get("task"), dict):
        known = {*Run.model_fields, *CHOICES}
        if unknown := [key for key in map(key_of, overrides) if key.partition(".")[0] not in known]:  # maybe task
            raise UserError(f"{unknown[0]}: unknown; {suggest_names(unknown[0], known)}")
        raise UserError(f"no task; set task=NAME: {', '.join(list_options('task', directory))}")
    for group in ("optimizer", "comm"):
        if not isinstance(nodes.get(group), dict):
            raise UserError(
                f"{group}={nodes.get(group)}: choose {group}=NAME: {', '.join(list_options(group, directory))}"
            )
    nodes["comm"] = name_parts(nodes["comm"], "comm")
    if is_node(partition := nodes.get("partition")):
        partition["activations"] = _codec(partition.get("activations"), directory)
    changed = [override for override in completed if override.lstrip("+").startswith(TUNED)]
    if changed:
        source = before.get("source", recipes.DEFAULTS) if is_node(before := nodes.get("tuning")) else recipes.DEFAULTS
        nodes["tuning"] = {"source": "command line", "trials": 0, "origin": source, "changed": changed}
    return {name: value for name, value in nodes.items() if value is not None or name not in OPTIONAL}


def complete_overrides(overrides: Iterable[str], directory: Path | None = None) -> list[str]:
    """Return cleaned overrides, with an optimizer and a recipe if the user names none.

    The optimizer is the first that has a published recipe for the task and the scale, else the task's
    `default_optimizer`; the recipe is that of `choose_recipe`. An experiment names both, most published recipes name
    an optimizer, and a baseline uses no recipe.

    Args:
        overrides: `key=value`, as typed.
        directory: the user's own configuration groups.
    """
    cleaned = clean_overrides(overrides)
    chosen = {key: value for key, _, value in (override.partition("=") for override in cleaned)}
    if "baseline" in chosen:
        return cleaned if {"recipe", "~recipe"} & chosen.keys() else ["~recipe", *cleaned]
    if "experiment" in chosen:
        return cleaned
    task, scale = chosen.get("task"), chosen.get("scale", recipes.LAPTOP)
    added: list[str] = []
    if "optimizer" not in chosen and not _brings_optimizer(chosen.get("recipe"), directory):
        usual = read_preset("task", task, directory).get("default_optimizer")
        if name := next(iter(recipes.list_published(task, scale, directory)), usual):
            added.append(f"optimizer={name}")
            chosen["optimizer"] = name
    if not {"recipe", "~recipe"} & chosen.keys():
        optimizer = chosen.get("optimizer", "sgd")  # as in conf/config.yaml
        if name := recipes.choose_recipe(task, optimizer, scale, directory):
            added.append(f"recipe={name}")
    return [*added, *cleaned]


def name_parts(node: Plain, place: str) -> Plain:
    """Return a node of `comm` with the modules of parts given by name, as in `comm.codec=int8`.

    Args:
        node: the node.
        place: its dotted key, for errors.

    Raises:
        UserError: there is no part of that name, or a part names no module.
    """
    if not is_node(node):
        return node
    resolved: dict[str, Plain] = {}
    for key, value in node.items():
        if key in PARTS and isinstance(value, str):
            if value not in (names := find_members(PARTS[key])):
                raise UserError(
                    f"{place}.{key}={value}: no such {key}; {suggest_names(value, names)} (presets: comm=NAME)"
                )
            value = {"module": f"suite.comm.{PARTS[key]}.{value}"}
        if key in PARTS and value is not None and not (is_node(value) and isinstance(value.get("module"), str)):
            raise UserError(f"{place}.{key}={value}: must be the name of a member, or {{module: …}} with its options")
        resolved[key] = name_parts(value, f"{place}.{key}")
    return resolved


def reject_unread(run: AnyRun, overrides: Sequence[str], directory: Path | None = None) -> None:
    """Reject settings that no part of a run reads: `network`, RaNNC's rules, `data_dir`, another schedule's options.

    Raises:
        UserError: naming the part that reads it.
    """
    source = run.task.options().get("source", {})
    if run.data_dir is not None and "data_dir" in map(key_of, overrides) and "data_dir" not in source:
        data = run.task.options().get("data")
        reason = f"task.data={data} reads no directory" if data else "this task reads no directory"
        listing = render_command(f"suite data {run.task.name}", directory)
        raise UserError(f"data_dir={run.data_dir}: {reason}; choose task.data=, or see: {listing}")
    if isinstance(run, BaselineRun):
        return
    for name in list_unread(run.schedule.shape):
        if f"schedule.{name}" in map(key_of, overrides):
            raise UserError(
                f"schedule.{name}: schedule.shape={run.schedule.shape} does not read it; "
                "set another shape, or leave it out"
            )
    policy = run.comm.policy
    chooses = policy and "network" in vars(policy.member).get("READS", ())
    if run.network and not (chooses or run.partition):
        raise UserError(
            f"network={run.network.name}: a run uses the real network; only `suite plan` projects to another one, and "
            "only comm=projected and partition=auto read this setting"
        )
    if run.compute_seconds is not None or run.inverse_seconds:
        raise UserError("compute_seconds= and inverse_seconds=: only `suite plan` reads these settings")
    if run.partition and run.partition.rannc_compat:
        raise UserError(
            "partition.rannc_compat=true: a run by RaNNC's rules would not have the bits of the unmodified model; only "
            "`suite plan` reads this setting"
        )


def _added(override: str) -> list[str]:
    """Return the words for Hydra: keys are added where no file has them, because the check of the run knows all keys.

    A whole part, as in `comm.codec={…}`, is replaced, because the new codec may lack options of the old one.
    """
    key, equals, value = override.partition("=")
    if key.startswith("~") or key in CHOICES or not equals:
        return [override]
    key = key.lstrip("+")
    if key.startswith("comm.") and key.rpartition(".")[2] in PARTS and value.startswith("{"):
        return [f"~{key}", f"+{key}={value}"]
    return [f"++{key}={value}"]


def _check_choices(overrides: Iterable[str], directory: Path | None) -> None:
    """Check the form of overrides, and that the choices among files and alternatives exist.

    Raises:
        UserError: naming the nearest ones.
    """
    typed: dict[str, str] = {}
    for override in overrides:
        key, equals, value = override.partition("=")
        group = key.lstrip("+~")
        if key.startswith("~"):
            if equals or group not in OPTIONAL:
                raise UserError(f"{override}: a setting cannot be removed; set {group}=VALUE, or leave it out")
            continue
        if not equals:
            raise UserError(f"{override}: not understood; write key=value, or suite --help")
        for keys, reason in FIXED.items():
            if re.fullmatch(keys, group):
                raise UserError(f"{override}: {reason}")
        if group.rpartition(".")[2] in PATHS and not value:
            raise UserError(f"{override}: empty; write {group}=PATH, or leave it out")
        if group in CHOICES and value not in (names := list_options(group, directory)):
            raise UserError(f"{group}={value}: unknown; {suggest_names(value, names)}")
        typed[group] = value
    _check_alternatives(typed, read_preset("task", typed.get("task"), directory))


def _check_alternatives(typed: Mapping[str, str], task: Mapping[str, Any]) -> None:
    """Check overrides that choose among the alternatives of a task's YAML file, or change one of its sources.

    Raises:
        UserError: naming the nearest ones.
    """
    for key, alternatives in (("scale", "scales"), ("task.variant", "variants"), ("task.data", "sources")):
        names = [str(name) for name in task.get(alternatives) or ()]
        if names and key in typed and typed[key] not in names:
            hint = suggest_names(typed[key], names)
            raise UserError(f"{key}={typed[key]}: task={typed['task']} has none of that name; {hint}")
    for key in typed:
        known: Plain = task.get("sources")
        for name in key.split(".")[2:4] if key.startswith("task.sources.") else ():
            if not is_node(known) or name not in known:
                raise UserError(f"{key}: unknown; {suggest_names(name, known if is_node(known) else ())}")
            known = known[name]


def _drop_alternatives(node: Mapping[str, Any], group: str) -> dict[str, Any]:
    """Return a task's or an optimizer's node without the ALTERNATIVES, which are no options of the member."""
    return {name: value for name, value in node.items() if name not in ALTERNATIVES[group]}


def _reject_keys_without_group(config: Mapping[str, Plain], overrides: Sequence[str]) -> None:
    """Reject a setting of a group whose name is set alone, as in `batch_size=7`.

    Raises:
        UserError: naming the whole keys.
    """
    for key in map(key_of, overrides):
        places = [f"{group}.{key}" for group, node in config.items() if is_node(node) and key in node]
        if places and key not in Run.model_fields and key not in CHOICES:
            raise UserError(f"{key}: unknown; did you mean {' or '.join(places)}?")


def _reject_other_launch(overrides: Sequence[str], directory: Path | None) -> None:
    """Reject a setting of another way to start processes, as `launch.minutes=5` without `launch=slurm`.

    Raises:
        UserError: naming the ways that read it.
    """
    chosen = next((word.partition("=")[2] for word in reversed(overrides) if key_of(word) == "launch"), "local")
    presets = {name: read_preset("launch", name, directory) for name in list_options("launch", directory)}
    for key in map(key_of, overrides):
        group, *rest = key.split(".")
        owners = [name for name, preset in presets.items() if rest and rest[0] in preset]
        if group == "launch" and owners and chosen not in owners:
            raise UserError(f"{key}: launch={chosen} does not read it; set launch={' or '.join(owners)} as well")


def _reject_unlisted(config: Mapping[str, Any], overrides: Sequence[str], directory: Path | None) -> None:
    """Reject options that a preset sets for another optimizer, and what the YAML file of an outside member lacks.

    Raises:
        UserError: naming the preset, or the nearest option.
    """
    for group in ("task", "optimizer"):
        node = config[group]
        settings = load_settings(node["module"])
        chosen = [override.partition("=")[2] for override in overrides if key_of(override) == group]
        name = chosen[-1] if chosen else node.get("name")  # nobody types a task's default optimizer
        listed = _drop_alternatives(read_preset(group, name, directory), group)
        known = {"name", "module", *(settings.model_fields if settings else listed)}
        typed = [key_of(override).split(".")[1] for override in overrides if key_of(override).startswith(f"{group}.")]
        unknown = sorted(node.keys() - known)
        if unknown and unknown[0] not in typed:
            presets = [word for word in overrides if word.startswith(("comm=", "recipe=", "experiment="))]
            cause = f"{' or '.join(presets) or 'a preset'} is for another {group}"
            if fitting := _list_having(group, set(unknown), directory):
                cause += f"; set {group}={' or '.join(fitting)}"
            raise UserError(f"{group}.{unknown[0]}: {node['name']} has no such option; {cause}")
        if unknown:
            raise UserError(f"{group}.{unknown[0]}: unknown; {suggest_names(unknown[0], known - {'name', 'module'})}")
        if settings is None:
            _check_types(node, listed, group)


def _list_having(group: str, names: set[str], directory: Path | None) -> list[str]:
    """List the choices of a group that have all of these settings."""
    fitting: list[str] = []
    for choice in list_options(group, directory):
        preset = read_preset(group, choice, directory)
        declared = load_settings(preset["module"]) if "module" in preset else None
        if names <= (declared.model_fields if declared else preset).keys():
            fitting.append(choice)
    return fitting


def _check_types(node: Mapping[str, Plain], defaults: Mapping[str, Plain], group: str) -> None:
    """Reject a value whose type differs from that of the default in an outside member's YAML file.

    Raises:
        UserError: naming the type.
    """
    for name, default in defaults.items():
        value = node.get(name)
        if default is None or name == "arguments" or (isinstance(default, str) and "${" in default):
            continue
        kind = type(default).__name__
        allowed = ("int", "float") if kind == "float" else (kind,)
        if type(value).__name__ not in allowed:
            raise UserError(f"{group}.{name}={value}: must be of type {kind}, like its default {default}")


def _of_baseline(config: Mapping[str, Any], overrides: Sequence[str], directory: Path | None) -> dict[str, Plain]:
    """Return the part of a composed configuration that a baseline reads.

    Raises:
        UserError: the baseline is for another task, or an override is a setting that it does not read.
    """
    name, task = config["baseline"]["name"], config["baseline"]["task"]
    command = render_command(f"suite task={task} baseline={name}", directory)
    if config["task"]["name"] != task:
        raise UserError(f"baseline={name}: is for task={task}, not {config['task']['name']}; use {command}")
    for override in overrides:
        top = key_of(override).partition(".")[0]
        if top not in OF_BASELINE and (top in Run.model_fields or top in CHOICES):
            raise UserError(
                f"{override}: a baseline is fitted whole, on one CPU, without optimizer, backend, devices or steps; "
                f"use {command}"
            )
    return {key: value for key, value in config.items() if key in OF_BASELINE or key not in Run.model_fields}


def _brings_optimizer(recipe: str | None, directory: Path | None) -> bool:
    """Return whether a recipe overrides the optimizer. Published ones do; the optimizer's name selects tuned ones."""
    return any("override /optimizer" in entry for entry in read_preset("recipe", recipe, directory).get("defaults", []))


def _codec(value: Plain, directory: Path | None = None) -> Plain:
    """Return the codec of `partition.activations`: that of a preset of `comm`, as in `partition.activations=fp8`.

    Raises:
        UserError: there is no preset of that name, or it names no codec.
    """
    if not isinstance(value, str):
        return value
    nodes = {name: read_preset("comm", name, directory) for name in list_options("comm", directory)}
    codecs = {name: node["codec"] for name, node in nodes.items() if "codec" in node}
    if value not in codecs:
        raise UserError(f"partition.activations={value}: no such codec; {suggest_names(value, codecs)}")
    return codecs[value]


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
