"""From overrides to one resolved configuration, with errors for people.

Hydra composes; what it cannot say well is checked here: unknown choices and keys answer with the nearest valid ones,
values must have the type of the default they replace, numbers must lie in range.
"""

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from suite import baseline
from suite.contract import UserError
from suite.load import common, files, members, nearest, options

CHOICES = ("task", "optimizer", "baseline", "backend", "comm", "scale", "recipe", "experiment", "launch", "track")
CHOICES += ("network",)  # of a plan only
OPTIONAL = ("recipe", "experiment", "baseline", "network")  # choices that may be null
AT_LEAST = {"world": 1, "accumulate": 1, "repeat": 1, "max_steps": 1, "eval_every": 1, "log_every": 1, "seed": 0}
AT_LEAST |= {
    "clip_norm": 0,
    "checkpoint_every": 0,
    "prefetch": 0,
    "task.batch_size": 1,
    "task.eval_batch_size": 1,
    "task.bn_group": 1,
}
SHARES = ("momentum", "beta1", "beta2", "fallback_beta1", "fallback_beta2", "factor_decay", "pair_decay")
AT_LEAST |= {f"optimizer.{name}": 0 for name in ("lr", "weight_decay", "damping", "epsilon", "warm_start", *SHARES)}
AT_LEAST |= {f"optimizer.{name}": 1 for name in ("block_size", "factor_interval", "inverse_interval")}
AT_LEAST |= {"optimizer.start_preconditioning": 1, "comm.bucket_mib": 0, "comm.piece_kib": 0}
AT_MOST = {f"optimizer.{name}": 1 for name in SHARES}
ONE_OF = {
    "device": ("auto", "cpu", "cuda"),
    "precision": ("float32", "float64", "tf32", "bfloat16"),
    "require": (None, "target"),
}
TUNED = ("optimizer.", "schedule.", "task.batch_size", "accumulate", "max_steps")  # overriding these leaves the recipe
PARTS = {
    "codec": "codecs",
    "inner": "codecs",
    "algorithm": "algorithms",
    "topology": "topologies",
    "schedule": "schedules",
}  # of comm, each a member's name or {module: …} with its options
NOT_RUN = {
    "task": ("scales", "variants", "sources", "default_optimizer"),
    "optimizer": ("search",),
}  # what a run chooses from, not what it is
DIRECTORIES = ("data_dir", "run_dir")
FREE = (
    *DIRECTORIES,
    "require",
    "launch.processes",
    "threads",
    "comm.ranks_per_host",
    "task.module",
    "optimizer.module",
)


def clean(overrides: Iterable[str]) -> list[str]:
    """Overrides as Hydra takes them.

    Choices already stand in the defaults list, `recipe=null` takes one out, and a directory may have a number's name.
    """
    chosen = [re.sub(rf"^\+({'|'.join(CHOICES)})=", r"\1=", override) for override in overrides]
    chosen = [re.sub(rf"^({'|'.join(DIRECTORIES)})=(?!null$)([\w.+-]+)$", r"\1='\2'", override) for override in chosen]
    return [re.sub(rf"^({'|'.join(OPTIONAL)})=null$", r"~\1", override) for override in chosen]


def expand(overrides: Sequence[str]) -> list[list[str]]:
    """The runs of a sweep: every combination of comma-separated values and `range(…)`, first key slowest.

    Raises:
        UserError: for text that is not an override.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        parsed = OverridesParser.create().parse_overrides(clean(overrides))
    except HydraException as error:
        raise UserError(f"{str(error).splitlines()[0]}; write key=value") from error
    axes = []
    for override in parsed:
        if override.is_sweep_override():
            axes.append([f"{override.get_key_element()}={value}" for value in override.sweep_string_iterator()])
        else:
            axes.append([override.input_line or ""])
    return [list(run) for run in itertools.product(*axes)]


def compose(overrides: Sequence[str], directory: Path | None = None) -> dict[str, Any]:
    """The resolved configuration of one run, as plain dictionaries and numbers.

    Args:
        overrides: `key=value`, as typed.
        directory: the user's own configuration groups, beside the suite's.

    Raises:
        UserError: for an unknown choice or key, a value of the wrong type or out of range, or no task; for what does
            not go with a baseline.
    """
    config = whole(overrides, directory)
    for group, names in NOT_RUN.items():
        config[group] = {name: value for name, value in config[group].items() if name not in names}
    config.pop("tuned", None)
    return baseline.settings(config, clean(overrides)) if "baseline" in config else config


def whole(overrides: Sequence[str], directory: Path | None = None) -> dict[str, Any]:
    """What `compose` returns, together with the alternatives that stand in the YAML files: NOT_RUN and `tuned`."""
    from hydra import compose as hydra_compose
    from hydra import initialize_config_module
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    overrides = complete(overrides, directory)
    chosen = [override for override in overrides if override.partition("=")[0].lstrip("+~") in CHOICES]
    _known_choices(chosen, directory)
    path = [f"hydra.searchpath=[file://{directory.resolve()}]"] if directory else []
    with initialize_config_module("suite.conf", version_base="1.3"):
        try:
            plain = hydra_compose("config", path + chosen)
            keys = flat(OmegaConf.to_container(plain))
            for override in overrides:
                _known_key(override, keys)
            node = hydra_compose("config", path + [word for override in overrides for word in _replacing(override)])
            config = OmegaConf.to_container(node, resolve=True)
            defaults = flat(OmegaConf.to_container(plain, resolve=True))
        except (HydraException, OmegaConfBaseException) as error:
            raise UserError(_first_line(error)) from error
    assert isinstance(config, dict)
    if config.get("task") is None:
        raise UserError(f"no task; type +task=<name>: {', '.join(options('task', directory))}")
    _check_types(flat(config), defaults, overrides)
    _check_ranges(flat(config))
    config["comm"] = parts(config["comm"], "comm")
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
    """Cleaned overrides, with the task's `default_optimizer` where nothing that is named brings an optimizer.

    An experiment does, and a published recipe. A baseline takes no optimizer's recipe.
    """
    import yaml

    overrides = clean(overrides)
    chosen = {key: value for key, _, value in (override.partition("=") for override in overrides)}
    if "baseline" in chosen:
        return overrides if {"recipe", "~recipe"} & chosen.keys() else ["~recipe", *overrides]
    if "optimizer" in chosen or "experiment" in chosen or _brings_optimizer(chosen.get("recipe"), directory):
        return overrides
    for path in files("task", directory):
        if path.stem == chosen.get("task") and (name := yaml.safe_load(path.read_text()).get("default_optimizer")):
            return [f"optimizer={name}", *overrides]  # first: after --cfg, Hydra takes no more
    return overrides


def _brings_optimizer(recipe: str | None, directory: Path | None) -> bool:
    """Whether a recipe overrides the optimizer, as published ones do; tuned ones are found by it."""
    import yaml

    found = [yaml.safe_load(path.read_text()) for path in files("recipe", directory) if path.stem == recipe]
    return any("override /optimizer" in entry for one in found for entry in one.get("defaults", []))


def refuse_unread(config: Mapping[str, Any], overrides: Sequence[str], directory: Path | None = None) -> None:
    """Refuse what no part of the run would read: another optimizer's options, `network`, `data_dir`.

    Raises:
        UserError: saying who reads it.
    """
    refuse_foreign(config.get("optimizer"), overrides, directory)
    policy = (config.get("comm") or {}).get("policy")
    if "network" in config and not (policy and "network" in getattr(common(policy["module"]), "READS", ())):
        name = config["network"]["name"]
        raise UserError(
            f"network={name}: a run uses the network that is there; only `suite plan` projects to another, "
            "and only comm=projected looks at it to choose"
        )
    task = config["task"]
    typed = any(override.startswith("data_dir=") for override in overrides)
    if typed and "data_dir" not in (task.get("source") or {}):
        found = f"task.data={task['data']} reads no directory" if "data" in task else "this task reads no directory"
        raise UserError(f"data_dir={config['data_dir']}: {found}; choose task.data=, or see: suite data {task['name']}")


def refuse_foreign(optimizer: Mapping[str, Any] | None, overrides: Sequence[str], directory: Path | None) -> None:
    """Refuse an option that some preset gives to an optimizer which has none of that name.

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
        which = " or ".join(word for word in words if word.startswith(("comm=", "recipe="))) or "a preset"
        raise UserError(
            f"optimizer.{foreign[0]}: {optimizer['name']} has no such option; {which} is another optimizer's"
        )


def _known_choices(chosen: Iterable[str], directory: Path | None) -> None:
    for override in chosen:
        group, _, name = override.lstrip("+~").partition("=")
        known = options(group, directory)
        if name not in known and not override.startswith("~"):
            raise UserError(f"{group}={name}: unknown; {nearest(name, known)}")


def _known_key(override: str, keys: Mapping[str, Any]) -> None:
    key = override.partition("=")[0]
    if key in [f"~{choice}" for choice in OPTIONAL]:
        return
    if "=" not in override:
        raise UserError(f"{override}: not understood; write key=value, or suite --help")
    if key.startswith(("+", "~", "hydra.")) or key in CHOICES:
        return
    if key not in keys and not any(known.startswith(f"{key}.") for known in keys):
        raise UserError(f"{key}: unknown; {nearest(key, [*keys, *CHOICES])} (to add a new key: +{key}=…)")


def _replacing(override: str) -> list[str]:
    """`comm.codec={…}` takes the place of the codec that was there, whose options the new one may not have."""
    key, _, value = override.partition("=")
    whole = key.startswith("comm.") and key.rpartition(".")[2] in PARTS and value.startswith("{")
    return [f"~{key}", f"+{key}={value}"] if whole else [override]


def parts(node: Any, place: str) -> Any:
    """A node of `comm` in which every part that is named, as in `comm.codec=int8`, is the member of that name.

    Raises:
        UserError: where there is none.
    """
    if not isinstance(node, dict):
        return node
    found = {}
    for key, value in node.items():
        if key in PARTS and isinstance(value, str):
            if value not in (known := members(PARTS[key])):
                raise UserError(f"{place}.{key}={value}: no such {key}; {nearest(value, known)} (presets: comm=NAME)")
            value = {"module": f"suite.comm.{PARTS[key]}.{value}"}
        found[key] = parts(value, f"{place}.{key}")
    return found


def flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Nested dictionaries as dotted keys."""
    if not isinstance(value, dict) or not value:
        return {prefix.rstrip("."): value}
    return {k: v for name, item in value.items() for k, v in flat(item, f"{prefix}{name}.").items()}


def _check_types(values: Mapping[str, Any], defaults: Mapping[str, Any], overrides: Iterable[str]) -> None:
    for override in overrides:
        key = override.partition("=")[0]
        if key in FREE or key not in defaults or key not in values or defaults[key] is None:
            continue
        value, default = values[key], defaults[key]
        number = isinstance(default, float | int) and not isinstance(default, bool)
        fits = (
            isinstance(value, float | int) and not isinstance(value, bool) if number else type(value) is type(default)
        )
        if number and isinstance(default, int) and isinstance(value, float):
            fits = False
        if not fits:
            raise UserError(f"{key}={value}: must be of type {type(default).__name__}, like its default {default}")


def _check_ranges(values: Mapping[str, Any]) -> None:
    numbers = {key: value for key, value in values.items() if isinstance(value, int | float)}
    for key, least in AT_LEAST.items():
        if key in numbers and not numbers[key] >= least:  # nan, too
            raise UserError(f"{key}={values[key]}: must be at least {least}")
    for key, most in AT_MOST.items():
        if key in numbers and numbers[key] > most:
            raise UserError(f"{key}={values[key]}: must be at most {most}")
    for key, allowed in ONE_OF.items():
        if values[key] not in allowed:
            raise UserError(f"{key}={values[key]}: must be one of {', '.join(one or 'null' for one in allowed)}")


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
