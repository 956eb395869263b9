"""`python -m suite.studies NAME SEED key=value...` runs one study and prints one line of JSON, `{"value": ...}`.

A study measures the quantity of a check in results/claims; docs/claims.md explains how to write one. NAME is a module
of `suite/studies` with a function `measure(seed, ...)`, with hyphens for the underscores of its file.
"""

import importlib
import inspect
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from suite.contract import UserError, suggest_names

FOLDER = Path(__file__).parent
USAGE = "usage: python -m suite.studies NAME SEED key=value..."


def names() -> set[str]:
    """The studies: modules and packages in this folder that define `measure`."""
    modules = {path.stem: path for path in FOLDER.glob("*.py")}
    modules |= {path.parent.name: path for path in FOLDER.glob("*/__init__.py")}
    defined = (name for name, path in modules.items() if "\ndef measure(" in path.read_text(encoding="utf-8"))
    return {name.replace("_", "-") for name in defined if not name.startswith("__")}


def load(name: str) -> Callable[..., float]:
    """The function `measure` of a study.

    Raises:
        UserError: if there is no such study; names the nearest.
    """
    known = names()
    if name not in known:
        raise UserError(f"{name}: no such study; {suggest_names(name, known)}")
    return importlib.import_module(f"suite.studies.{name.replace('-', '_')}").measure


def call(name: str, seed: int, arguments: Mapping[str, Any]) -> float:
    """The value that a study measures for one seed.

    Args:
        name: of the study.
        seed: of its random numbers.
        arguments: keyword arguments of `measure`; strings are converted to the types that it declares.

    Raises:
        UserError: if the study, or one of the arguments, does not exist or does not fit its type.
        ValueError: if the measured value is not finite.
    """
    measure = load(name)
    parameters = dict(list(inspect.signature(measure, eval_str=True).parameters.items())[1:])
    for key in arguments:
        if key not in parameters:
            raise UserError(f"{name}: no argument {key}; {suggest_names(key, set(parameters))}")
    for key, parameter in parameters.items():
        if parameter.default is inspect.Parameter.empty and key not in arguments:
            raise UserError(f"{name}: {key} is missing; add {key}=VALUE")
    converted = {key: _convert(name, key, parameters[key].annotation, value) for key, value in arguments.items()}
    value = float(measure(seed, **converted))
    if not math.isfinite(value):
        raise ValueError(f"{name}: the value is {value}; a study must return a finite number")
    return value


def _convert(name: str, key: str, annotation: Any, value: object) -> object:
    """A value of the declared type; text such as `1e-6` or `true` is parsed."""
    try:
        return TypeAdapter(annotation, config=ConfigDict(coerce_numbers_to_str=True)).validate_python(value)
    except ValidationError as error:
        message = error.errors()[0]["msg"].replace("Input should be", "must be")
        raise UserError(f"{name}: {key}={value}: {message}") from error


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the study that the command line names; return 0, or 2 for wrong usage."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if len(words) < 2:
            raise UserError(f"{USAGE}; studies: {', '.join(sorted(names()))}")
        name, seed, *pairs = words
        if not seed.isdecimal():
            raise UserError(f"{seed}: the seed must be a whole number; {USAGE}")
        for pair in pairs:
            if "=" not in pair:
                raise UserError(f"{pair}: write an argument as key=value")
        value = call(name, int(seed), dict(pair.split("=", 1) for pair in pairs))
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    print(json.dumps({"value": value}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
