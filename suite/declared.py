"""How settings are declared: once, with type, default, range, meaning, and what they affect.

A member's `settings.py` or `__init__.py` holds a class `Settings(Declared)`. The torch class, the jax function and the
reference take their arguments from it, `describe_settings` writes them into signature and docstring, the configuration
is checked against it, and `python -m suite.settings.presets` writes `conf/optimizer/<member>.yaml` from it.

`affects` says what a setting can change: the trained weights (`weights`), what is measured and how (`measurement`:
data, model, metric, cadence), and the seconds (`time`). `role` is `setting`, `replicate` (a repetition of the same
run), `place` (a path whose content has a checksum), or `provenance` (where the settings come from). The hash of a run,
the rows of the board and the evidence of claims follow from these two (`suite/settings/effects.py`).
"""

import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from numbers import Integral
from types import UnionType
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar, Union, get_args, get_origin

from annotated_types import Ge, Le, Lt, MinLen
from pydantic import BaseModel, ConfigDict, Field, PositiveInt, ValidationError
from pydantic.fields import FieldInfo

from suite.contract import UserError, suggest_names

Described = TypeVar("Described", bound=Callable[..., Any])
Fields = TypeVar("Fields", bound="Declared")
Sizes = Annotated[tuple[PositiveInt, ...], MinLen(1)]  # of layers
Search = tuple[float, float, str]  # least, largest, and log or linear
Effect = Literal["weights", "measurement", "time"]
Role = Literal["setting", "replicate", "place", "provenance"]
METHOD: tuple[Effect, ...] = ("weights", "time")  # how it is trained
PROBLEM: tuple[Effect, ...] = ("weights", "measurement", "time")  # what is trained on what, and how it is scored
MEASUREMENT: tuple[Effect, ...] = ("measurement",)
TIME: tuple[Effect, ...] = ("time",)
NOTHING: tuple[Effect, ...] = ()


@dataclass(frozen=True)
class Effects:
    """Effects and role of a setting; see the head of this file."""

    affects: tuple[Effect, ...] = METHOD
    role: Role = "setting"


def setting(
    default: Any,
    meaning: str,
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
    scheduled: bool = False,
    search: Search | None = None,
    affects: tuple[Effect, ...] = METHOD,
    role: Role = "setting",
    before: Any = ...,
) -> Any:
    """One setting: the default value of a field of a class derived from `Declared`.

    Args:
        default: its value where the user gives none; `...` for a setting that the YAML file always gives.
        meaning: what it is, with its unit, as a phrase.
        at_least: least value allowed.
        at_most: largest value allowed.
        below: least value above the allowed ones.
        scheduled: whether it may change while training: by a schedule, in torch's `param_groups`, in `state["hyper"]`.
        search: the range that `suite tune` tries, and its scale.
        affects: what it can change.
        role: what it is for.
        before: the value with which results were made that are older than the setting; `...`: none is older.
    """
    further = {"scheduled": scheduled, "search": list(search) if search else None, "before": before}
    field: Any = Field(default, description=meaning, ge=at_least, le=at_most, lt=below, json_schema_extra=further)
    field.metadata.append(Effects(affects, role))
    return field


class Declared(BaseModel):
    """Settings of a member. Read them as attributes; an instance does not change."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    renamed: ClassVar[Mapping[str, str | None]] = {}  # names in old results: the present one, None where it is gone

    @classmethod
    def given(cls, values: Mapping[str, Any], place: str = "", *, old: bool = False) -> Self:
        """These values, and the defaults of the others.

        Args:
            values: by name; groups of settings are mappings.
            place: what stands before a name in messages, such as `optimizer.`.
            old: whether they are a result's, which may lack settings that are newer.

        Raises:
            UserError: for an unknown name, a value of another type or outside its range.
        """
        if old:
            values = cls.completed(values)
        inner = {name: cls._inner(name, value, place, old) for name, value in values.items()}
        try:
            return cls(**inner)
        except ValidationError as error:
            raise UserError(cls._message(error, place)) from error

    @classmethod
    def completed(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """A result's values under the present names, with the value that each newer setting had before it existed."""
        names = ((cls.renamed.get(name, name), value) for name, value in values.items())
        known = {name: value for name, value in names if name is not None}
        return known | {name: value for name, value in _earlier(cls).items() if name not in known}

    @classmethod
    def fits(cls, values: Mapping[str, Any]) -> bool:
        """Return whether the values may be of this class, where a setting has several: only if their `module` may."""
        field = cls.model_fields.get("module")
        words = get_args(field.annotation) if field and get_origin(field.annotation) is Literal else ()
        return not words or values.get("module", words[0]) in words

    @classmethod
    def chosen(cls, values: Mapping[str, Any], *, old: bool = False) -> type[Self]:
        """Return the class of a group of settings with these values; `Part` chooses that of its member."""
        return cls

    @classmethod
    def _inner(cls, name: str, value: Any, place: str, old: bool) -> Any:
        """One value as pydantic checks it: groups of settings as objects, whole numbers of NumPy as int."""
        if type(value) in (str, int, float, bool):
            return value
        if isinstance(value, Integral):  # NumPy's whole numbers are no int to pydantic
            return int(value)
        kinds = _kinds_of(cls).get(name, ()) if isinstance(value, list | dict) else ()
        if isinstance(value, list) and any(get_origin(kind) is tuple for kind in kinds):
            return tuple(value)
        if not isinstance(value, dict):
            return value
        here = f"{place}{name}."
        for kind in kinds:
            if isinstance(kind, type) and issubclass(kind, Declared) and kind.fits(value):
                return kind.chosen(value, old=old).given(value, here, old=old)
            entry = get_args(kind)[1] if get_origin(kind) is dict else None
            if isinstance(entry, type) and issubclass(entry, Declared):
                return {
                    key: entry.chosen(item, old=old).given(item, f"{here}{key}.", old=old)
                    if isinstance(item, dict)
                    else item
                    for key, item in value.items()
                }
        return value

    def leaves(self, prefix: str = "") -> Iterator["Leaf"]:
        """Yield every value with its dotted key and its effects, groups of settings in depth."""
        for name, value in self._values():
            yield from _leaves(f"{prefix}{name}", value, effects_of(type(self)).get(name, Effects()))

    def _values(self) -> Iterator[tuple[str, Any]]:
        """Yield the values by name."""
        yield from self

    def plain(self) -> dict[str, Any]:
        """Return the values as JSON has them."""
        return self.model_dump(mode="json", serialize_as_any=True)

    @classmethod
    def _message(cls, error: ValidationError, place: str) -> str:
        """Return the first problem in words."""
        problem = error.errors()[0]
        limits = problem.get("ctx", {})
        if problem["type"] == "value_error":
            return f"{place}{limits['error']}"
        name = str(problem["loc"][0])
        if problem["type"] == "extra_forbidden":
            return f"{place}{name}: unknown; {suggest_names(name, cls.model_fields)}"
        if problem["type"] == "missing":
            return f"{place}{name}: missing; set {place}{name}=VALUE ({cls.model_fields[name].description})"
        shown = _show_value(problem["input"])
        annotation = cls.model_fields[name].annotation
        if len(problem["loc"]) > 1 and get_origin(annotation) not in (Union, UnionType):
            wanted = problem["msg"].removeprefix("Input should be ").partition(" or instance of")[0]
            return f"{place}{'.'.join(map(str, problem['loc']))}={shown}: must be {wanted}"
        words = {
            "greater_than_equal": f"at least {_show_limit(limits.get('ge', 0))}",
            "greater_than": f"at least {limits.get('gt', 0) + 1}",  # of whole numbers
            "less_than_equal": f"at most {_show_limit(limits.get('le', 0))}",
            "less_than": f"below {_show_limit(limits.get('lt', 0))}",
            "literal_error": f"one of {', '.join(cls.choices(name))}",
            "finite_number": "finite",
            "too_short": "a list that is not empty",
        }
        kind = f"of type {_type_name(cls.model_fields[name])}"
        default = None if cls.model_fields[name].is_required() else cls.model_fields[name].default
        if default is not None and not isinstance(default, Declared):
            kind += f", like its default {cls.model_fields[name].default}"
        if get_origin(annotation) in (Union, UnionType):
            return f"{place}{name}={shown}: must be {_alternatives(cls.model_fields[name])}"
        return f"{place}{name}={shown}: must be {words.get(problem['type'], kind)}"

    @classmethod
    def choices(cls, name: str) -> tuple[str, ...]:
        """Return the words that a setting may be; () for one that is no choice of words."""
        kind = cls.model_fields[name].annotation
        return get_args(kind) if get_origin(kind) is Literal else ()

    @classmethod
    def searched(cls) -> dict[str, list[Any]]:
        """Return what `suite tune` tries: [least, largest, scale] by name."""
        return {name: found for name, field in cls.model_fields.items() if (found := _further(field)["search"])}

    @classmethod
    def names(cls, *, scheduled: bool) -> tuple[str, ...]:
        """Return the settings that may change while training, or those that may not."""
        return tuple(name for name, field in cls.model_fields.items() if _further(field)["scheduled"] == scheduled)

    def scheduled(self) -> dict[str, Any]:
        """Those that may change while training, by name."""
        values = vars(self)
        return {name: values[name] for name in self.names(scheduled=True)}


@dataclass(frozen=True)
class Leaf:
    """One value of a configuration: its dotted key, and what it affects."""

    key: str
    value: Any
    effects: Effects


def _leaves(key: str, value: Any, effects: Effects) -> Iterator[Leaf]:
    if isinstance(value, Declared):
        yield from value.leaves(f"{key}.")
    elif isinstance(value, dict) and value:
        for name, item in value.items():
            yield from _leaves(f"{key}.{name}", item, effects)
    else:
        yield Leaf(key, list(value) if isinstance(value, tuple) else value, effects)


def describe_settings(declared: type[Declared]) -> Callable[[Described], Described]:
    """Write a member's settings into the signature and the docstring of a function or class that takes them by name."""

    def describe(target: Described) -> Described:
        written = inspect.signature(target)
        fields = declared.model_fields
        arguments = [
            argument.replace(default=fields[name].default, annotation=fields[name].annotation)
            if name in fields
            else argument
            for name, argument in written.parameters.items()
            if argument.kind is not inspect.Parameter.VAR_KEYWORD
        ]
        keywords = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=field.annotation)
            for name, field in fields.items()
            if name not in written.parameters
        ]
        setattr(target, "__signature__", written.replace(parameters=[*arguments, *keywords]))  # noqa: B010
        target.__doc__ = f"{inspect.cleandoc(target.__doc__ or '')}\n\nSettings:\n" + "\n".join(
            f"    {name}: {explain_field(field)}" for name, field in fields.items()
        )
        return target

    return describe


def take_settings(declared: type[Fields], lr: float | None, settings: Mapping[str, Any]) -> Fields:
    """Return the settings that a caller gave, the learning rate by name or by position, and the defaults of the others.

    Raises:
        UserError: as `Declared.given`.
    """
    return declared.given(settings if lr is None else {**settings, "lr": lr})


def explain_field(field: FieldInfo) -> str:
    """A setting's meaning and range in one line, without its default."""
    words = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
    return "; ".join([str(field.description), *([" | ".join(words)] if words else []), *_limits(field)])


def _show_value(value: Any) -> str:
    """Show a wrong value as YAML has it; text that looks like a number or a flag has quotes."""
    if not isinstance(value, str):
        return "null" if value is None else str(list(value) if isinstance(value, tuple) else value)
    try:
        json.loads(value)
    except ValueError:
        return value
    return repr(value)


def _show_limit(limit: float) -> str:
    """Return a limit without the digits after the point that are 0."""
    return str(int(limit)) if limit == int(limit) else f"{limit:g}"


def _limits(field: FieldInfo) -> list[str]:
    limits = [f"at least {limit.ge}" for limit in field.metadata if isinstance(limit, Ge)]
    limits += [f"at most {limit.le}" for limit in field.metadata if isinstance(limit, Le)]
    return limits + [f"below {limit.lt}" for limit in field.metadata if isinstance(limit, Lt)]


def _further(field: FieldInfo) -> dict[str, Any]:
    unset = {"scheduled": False, "search": None, "before": ...}  # of a field that `setting` did not make
    return dict(field.json_schema_extra) if isinstance(field.json_schema_extra, dict) else unset


@cache
def _kinds_of(declared: type[Declared]) -> dict[str, tuple[Any, ...]]:
    """Return the alternatives of each setting's type."""
    types = {name: field.annotation for name, field in declared.model_fields.items()}
    return {name: get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,) for name, kind in types.items()}


def has_groups(declared: type[Declared], name: str) -> bool:
    """Return whether a setting is a group of settings, or several."""
    parts = [part for kind in _kinds_of(declared)[name] for part in (kind, *get_args(kind))]
    return any(isinstance(part, type) and issubclass(part, Declared) for part in parts)


@cache
def _earlier(declared: type[Declared]) -> dict[str, Any]:
    """Return the values of `before`, by setting."""
    values = {name: _further(field)["before"] for name, field in declared.model_fields.items()}
    return {name: value for name, value in values.items() if value is not ...}


@cache
def effects_of(declared: type[Declared]) -> dict[str, Effects]:
    """Return what each setting affects."""
    found = {
        name: [item for item in field.metadata if isinstance(item, Effects)]
        for name, field in declared.model_fields.items()
    }
    return {name: items[0] if items else Effects() for name, items in found.items()}


def _type_name(field: FieldInfo) -> str:
    kind = get_origin(field.annotation) or field.annotation
    if isinstance(kind, type) and issubclass(kind, Declared):
        return f"group of settings ({', '.join(kind.model_fields)})"
    return "str" if kind is Literal or not isinstance(kind, type) else "list" if kind is tuple else kind.__name__


def _alternatives(field: FieldInfo) -> str:
    """Return what a setting of several types may be, in words."""
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
