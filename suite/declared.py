"""How a member declares its settings: once, with type, default, range, unit and meaning.

`<member>/settings.py` holds a class `Settings(Declared)`. The torch class, the jax function and the reference take
their arguments from it, `described` writes them into signature and docstring, the configuration is checked against it,
and `python -m suite.settings.presets` writes `conf/optimizer/<member>.yaml` from it.
"""

import inspect
from collections.abc import Callable, Mapping
from numbers import Integral
from types import UnionType
from typing import Any, Literal, Self, TypeVar, Union, get_args, get_origin

from annotated_types import Ge, Le
from pydantic import BaseModel, ConfigDict, Field, PositiveInt, ValidationError
from pydantic.fields import FieldInfo

from suite.contract import UserError
from suite.load import nearest

Described = TypeVar("Described", bound=Callable[..., Any])
Search = tuple[float, float, str]  # least, largest, and log or linear


def setting(
    default: Any,
    meaning: str,
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    scheduled: bool = False,
    search: Search | None = None,
) -> Any:
    """One setting: the default value of a field of a class derived from `Declared`.

    Args:
        default: its value where the user gives none.
        meaning: what it is, with its unit, as a phrase.
        at_least: least value allowed.
        at_most: largest value allowed.
        scheduled: whether it may change while training: by a schedule, in torch's `param_groups`, in `state["hyper"]`.
        search: the range that `suite tune` tries, and its scale.
    """
    further = {"scheduled": scheduled, "search": list(search) if search else None}
    return Field(default, description=meaning, ge=at_least, le=at_most, json_schema_extra=further)


class Declared(BaseModel):
    """Settings of a member. Read them as attributes; an instance does not change."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    @classmethod
    def given(cls, values: Mapping[str, Any], place: str = "") -> Self:
        """These values, and the defaults of the others.

        Args:
            values: by name.
            place: what stands before a name in messages, such as `optimizer.`.

        Raises:
            UserError: for an unknown name, a value of another type or outside its range.
        """
        # NumPy's whole numbers are no int to pydantic
        whole = {name: int(value) for name, value in values.items() if isinstance(value, Integral)}
        whole = {name: value for name, value in whole.items() if not isinstance(values[name], bool)}
        try:
            return cls(**{**values, **whole})
        except ValidationError as error:
            raise UserError(cls._message(error, place)) from error

    @classmethod
    def _message(cls, error: ValidationError, place: str) -> str:
        """The first problem in words."""
        problem = error.errors()[0]
        name, limits = str(problem["loc"][0]), problem.get("ctx", {})
        if problem["type"] == "extra_forbidden":
            return f"{place}{name}: unknown; {nearest(name, cls.model_fields)}"
        shown = "null" if problem["input"] is None else problem["input"]
        words = {
            "greater_than_equal": f"at least {limits.get('ge', 0):g}",
            "less_than_equal": f"at most {limits.get('le', 0):g}",
            "literal_error": f"one of {', '.join(cls.choices(name))}",
            "finite_number": "finite",
        }
        kind = f"of type {_type_name(cls.model_fields[name])}, like its default {cls.model_fields[name].default}"
        if get_origin(cls.model_fields[name].annotation) in (Union, UnionType):
            return f"{place}{name}={shown}: must be {_alternatives(cls.model_fields[name])}"
        return f"{place}{name}={shown}: must be {words.get(problem['type'], kind)}"

    @classmethod
    def choices(cls, name: str) -> tuple[str, ...]:
        """The words that a setting may be; () for one that is no choice of words."""
        kind = cls.model_fields[name].annotation
        return get_args(kind) if get_origin(kind) is Literal else ()

    @classmethod
    def searched(cls) -> dict[str, list[Any]]:
        """What `suite tune` tries: [least, largest, scale] by name."""
        return {name: range for name, field in cls.model_fields.items() if (range := _further(field)["search"])}

    @classmethod
    def names(cls, *, scheduled: bool) -> tuple[str, ...]:
        """The settings that may change while training, or those that may not."""
        return tuple(name for name, field in cls.model_fields.items() if _further(field)["scheduled"] == scheduled)

    def scheduled(self) -> dict[str, Any]:
        """Those that may change while training, by name."""
        values = vars(self)
        return {name: values[name] for name in self.names(scheduled=True)}


def described(declared: type[Declared]) -> Callable[[Described], Described]:
    """Write a member's settings into the signature and the docstring of a function or class that takes them by name."""

    def describe(target: Described) -> Described:
        written = inspect.signature(target)
        arguments = [
            argument for argument in written.parameters.values() if argument.kind is not inspect.Parameter.VAR_KEYWORD
        ]
        keywords = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=field.annotation)
            for name, field in declared.model_fields.items()
        ]
        setattr(target, "__signature__", written.replace(parameters=[*arguments, *keywords]))  # noqa: B010
        target.__doc__ = f"{inspect.cleandoc(target.__doc__ or '')}\n\nSettings:\n" + "\n".join(
            f"    {name}: {explained(field)}" for name, field in declared.model_fields.items()
        )
        return target

    return describe


def explained(field: FieldInfo) -> str:
    """A setting's meaning and range in one line, without its default."""
    words = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
    return "; ".join([str(field.description), *([" | ".join(words)] if words else []), *_limits(field)])


def _limits(field: FieldInfo) -> list[str]:
    limits = [f"at least {limit.ge}" for limit in field.metadata if isinstance(limit, Ge)]
    return limits + [f"at most {limit.le}" for limit in field.metadata if isinstance(limit, Le)]


def _further(field: FieldInfo) -> dict[str, Any]:
    assert isinstance(field.json_schema_extra, dict)
    return dict(field.json_schema_extra)


def _type_name(field: FieldInfo) -> str:
    kind = get_origin(field.annotation) or field.annotation
    return "str" if kind is Literal or not isinstance(kind, type) else kind.__name__


def _alternatives(field: FieldInfo) -> str:
    """What a setting of several types may be, in words."""
    words: list[str] = []
    for kind in get_args(field.annotation):
        if get_origin(kind) is Literal:
            words += get_args(kind)
        else:
            names = {int: "a whole number", float: "a number", list: "a list", tuple: "a list", dict: "a dictionary"}
            names |= {str: "text", PositiveInt: "a whole number, at least 1"}
            words.append(
                "null" if kind is type(None) else names.get(kind) or names.get(get_origin(kind)) or kind.__name__
            )
    words, limits = list(dict.fromkeys(words)), _limits(field)
    joint = ", or " if any("," in word for word in words) else " or "
    return joint.join(words) + (f" ({', '.join(limits)})" if limits else "")
