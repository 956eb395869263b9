"""Says what is wrong in a user's file of claims or of a doubt: line, place, cause, and the fields that are accepted."""

import difflib
from collections.abc import Collection, Iterator, Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

Place = Sequence[str | int]  # keys and indices from the top of the file


def not_yaml(error: Exception) -> str:
    """Where a text stops being YAML, in one line.

    Args:
        error: of the YAML parser.
    """
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    if mark is None or problem is None:
        return f"not YAML: {' '.join(str(error).split())}"
    return f"line {mark.line + 1}, column {mark.column + 1}: not YAML: {problem}"


def first_fault(error: ValidationError, model: type[BaseModel], text: str, *, apart: Collection[str] = ()) -> str:
    """Return the first fault of a file, in one line. Unknown fields come first: one may stand for one that is missing.

    Args:
        error: of `model.model_validate`.
        model: the format of the whole file.
        text: content of the file.
        apart: fields of the top level that the file may not contain.
    """
    faults = error.errors(include_url=False)
    fault = next((one for one in faults if one["type"] == "extra_forbidden"), faults[0])
    place = fault["loc"]
    parent = _model_at(model, place[:-1])
    name = str(place[-1]) if place else ""
    accepted = [field for field in parent.model_fields if len(place) > 1 or field not in apart] if parent else []
    if fault["type"] == "extra_forbidden":
        near = difflib.get_close_matches(name, accepted, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]}?" if near else "."
        cause = f"unknown field{hint} Accepted here: {', '.join(accepted)}"
    elif fault["type"] == "missing":
        cause = f"is missing. Accepted here: {', '.join(accepted)}"
    elif fault["type"] in ("model_type", "dict_type"):
        inner = _model_at(model, place)
        cause = f"must consist of keys and values: {', '.join(inner.model_fields) if inner else 'name: text'}"
    else:
        cause = fault["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    dotted = ".".join(str(part) for part in place)
    return f"line {line_of(text, place)}: {f'{dotted}: ' if dotted else 'the file '}{cause}"


def _model_at(model: type[BaseModel], place: Place) -> type[BaseModel] | None:
    """Return the format of the entry at a place; None if it is no model."""
    for part in place:
        if isinstance(part, str):
            field = model.model_fields.get(part)
            inner = next(_models(field.annotation), None) if field else None
            if inner is None:
                return None
            model = inner
    return model


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the models in a type such as `Measure | None` or `tuple[Check, ...]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models(argument)


def line_of(text: str, place: Place) -> int:
    """Return the line of an entry; if the file does not have it, that of the entry around it.

    Args:
        text: content of the file, in YAML.
        place: of the entry.
    """
    import yaml

    node = yaml.compose(text, yaml.SafeLoader)
    line = 0
    for part in place:
        if isinstance(node, yaml.SequenceNode) and isinstance(part, int):
            node = node.value[part]
            line = node.start_mark.line
        elif isinstance(node, yaml.MappingNode):
            entry = next(((key, value) for key, value in node.value if key.value == part), None)
            if entry is None:
                break
            line, node = entry[0].start_mark.line, entry[1]
    return line + 1
