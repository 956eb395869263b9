"""Overrides as the user types them: `key=value`."""

import itertools
import re
import shlex
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from suite.contract import UserError
from suite.load import Plain, is_node

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

# Configuration groups that the user chooses from; `network` belongs to `suite plan` and comm=projected only.
CHOICES = (
    *("task", "optimizer", "baseline", "backend", "comm", "scale", "recipe", "experiment", "launch", "track"),
    *("network", "partition"),
)
OPTIONAL = ("recipe", "experiment", "baseline", "network", "partition")  # choices that may be null
# An override of these leaves the recipe. `world` and `accumulate` only divide its batch.
TUNED = ("optimizer.", "schedule.", "task.batch_size", "max_steps")
DIRECTORIES = ("data_dir", "run_dir")


def clean_overrides(overrides: Iterable[str]) -> list[str]:
    """Return overrides in Hydra's syntax.

    The leading + of a choice is removed, `recipe=null` becomes `~recipe`, and the names of directories are quoted
    because one may be a number.
    """
    chosen = [re.sub(rf"^\+({'|'.join(CHOICES)})=", r"\1=", override) for override in overrides]
    chosen = [re.sub(rf"^({'|'.join(DIRECTORIES)})=(?!null$)([\w.+-]+)$", r"\1='\2'", override) for override in chosen]
    return [re.sub(rf"^({'|'.join(OPTIONAL)})=null$", r"~\1", override) for override in chosen]


def quote_text(text: str) -> str:
    """Return a text, such as a path, as the value of an override that Hydra reads as this text."""
    escaped = re.sub(r'(\\*)("|$)', lambda match: 2 * match[1] + match[2].replace('"', '\\"'), text)
    return f'"{escaped}"'.replace("${", r"\${")


def key_of(override: str) -> str:
    """Return the key of an override, without the signs before it."""
    return override.partition("=")[0].lstrip("+~")


def expand_sweep(overrides: Sequence[str]) -> list[list[str]]:
    """Return the overrides of each run of a sweep.

    Args:
        overrides: `key=value`, where a value may be a comma-separated list or `range(…)`.

    Returns:
        Every combination of the values; those of the last key change first.

    Raises:
        UserError: an argument is not an override.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.core.override_parser.types import ValueType
    from hydra.errors import HydraException

    try:
        parsed = OverridesParser.create().parse_overrides(clean_overrides(overrides))
    except HydraException as error:
        raise UserError(
            f"{' '.join(overrides)}: not understood; write key=value, with quotes around special characters"
        ) from error
    axes: list[list[str]] = []
    for override in parsed:
        if override.value_type in (ValueType.GLOB_CHOICE_SWEEP, ValueType.INTERVAL_SWEEP):
            raise UserError(f"{override.input_line}: not a list of values; write key=a,b,c or key=range(0,3)")
        if override.is_sweep_override():
            axes.append([f"{override.get_key_element()}={value}" for value in override.sweep_string_iterator()])
            if not axes[-1]:
                raise UserError(f"{override.input_line}: contains no value; write key=a,b,c or key=range(0,3)")
        else:
            axes.append([override.input_line or ""])
    return [list(run) for run in itertools.product(*axes)]


def check_syntax(override: str) -> None:
    """Check that Hydra can read one override, and that it has one value.

    Raises:
        UserError: it cannot, or there are several values.
    """
    from hydra.errors import HydraException

    try:
        parsed = _parse(override)
    except HydraException as error:
        raise UserError(
            f"{override}: not understood; write key=value, with quotes around special characters"
        ) from error
    if not key_of(override):
        raise UserError(f"{override}: has no key; write key=value")
    if parsed.is_sweep_override():
        raise UserError(f"{override}: several values for one key; use -m to run them all, or quote the value")


def parse_values(overrides: Sequence[str]) -> dict[str, Any]:
    """Return the values of overrides by key, as Hydra reads them; None for a choice that is removed (`~key`).

    Raises:
        UserError: if an argument is not an override of one value.
    """
    from hydra.errors import HydraException

    try:
        parsed = [_parse(override) for override in clean_overrides(overrides)]
        return {override.key_or_group: override.value() for override in parsed}
    except HydraException as error:
        raise UserError(f"{' '.join(overrides)}: not understood; write key=value") from error


@lru_cache(maxsize=4096)
def _parse(override: str) -> "Override":
    """Parse one override; commands of results share most words."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    [parsed] = OverridesParser.create().parse_overrides([override])
    return parsed


def flatten_values(value: Plain, prefix: str = "") -> dict[str, Plain]:
    """Return nested dictionaries as one dictionary with dotted keys."""
    if not is_node(value) or not value:
        return {prefix.rstrip("."): value}
    return {k: v for name, item in value.items() for k, v in flatten_values(item, f"{prefix}{name}.").items()}


def split_directory(arguments: Sequence[str]) -> tuple[Path | None, list[str]]:
    """Split arguments into the directory of `--config-dir DIR` (None if not given) and the others.

    Raises:
        UserError: if there is no such directory.
    """
    directory, others = separate_directory(arguments)
    if directory and not directory.is_dir():
        raise UserError(f"--config-dir {directory}: no such directory")
    return directory, others


def separate_directory(arguments: Sequence[str]) -> tuple[Path | None, list[str]]:
    """Do as `split_directory` for a recorded command, whose directory may be on another machine.

    Raises:
        UserError: if `--config-dir` ends the arguments.
    """
    others = list(arguments)
    for index, argument in enumerate(arguments):
        name, _, value = argument.partition("=")
        if name in ("--config-dir", "-cd"):
            del others[index : index + (1 if value else 2)]
            if not value and index + 1 == len(arguments):
                raise UserError(f"{argument}: the directory is missing; write --config-dir DIR")
            return Path(value or arguments[index + 1]), others
    return None, others


def add_directory(words: Sequence[str], directory: Path | None) -> list[str]:
    """Return the words of a command with `--config-dir DIR` at the end, if it was given."""
    return [*words, "--config-dir", str(directory)] if directory else list(words)


def render_command(command: str, directory: Path | None) -> str:
    """Return a command to type in a shell with `--config-dir DIR` at the end, if it was given."""
    return " ".join([command, *map(shlex.quote, add_directory((), directory))])
