"""Groups of settings that name a member by its module, such as `task`, `optimizer` and `comm.codec`."""

import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from types import ModuleType
from typing import Any, ClassVar, Self

from pydantic import ConfigDict, SerializerFunctionWrapHandler, create_model, model_serializer

from suite.contract import Task, UserError
from suite.declared import MEASUREMENT, NOTHING, PROBLEM, TIME, Declared, setting
from suite.load import (
    check_names,
    find_settings,
    is_here,
    load_half,
    load_implementation,
    load_member,
    package_folder,
)


class Options(Declared):
    """Options that a member takes by name. Those that nobody has set are not passed, and not written."""

    def options(self) -> dict[str, Any]:
        """Return the values that are set."""
        return {name: value.options() if isinstance(value, Options) else value for name, value in self._values()}

    def _values(self) -> Iterator[tuple[str, Any]]:
        declared = {name: getattr(self, name) for name in type(self).model_fields}
        values = declared | (self.model_extra or {})  # an undeclared option may have the name of a method
        yield from ((name, value) for name, value in values.items() if name in self.model_fields_set)

    @model_serializer(mode="wrap")
    def _without_unset(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in handler(self).items() if name in self.model_fields_set}


class Part(Options):
    """A member and its options. The options are those that the member declares; any, if it declares none.

    Attributes:
        place: dotted key of the settings, for errors.
    """

    place: ClassVar[str] = "comm.codec"
    module: str = setting(..., "the member's module")

    @property
    def member(self) -> ModuleType:
        """The member's `__init__.py`, which needs no framework.

        Raises:
            UserError: the member does not exist.
        """
        return load_member(self.module)

    def implementation(self, backend: str) -> ModuleType:
        """Return the member's file for one backend, or the member itself if it has one text for all backends.

        Raises:
            UserError: the member does not exist, or has a file for another backend only.
        """
        return load_implementation(self.module, backend)

    def build(self, backend: str | None = None, /, *positional: Any, **named: Any) -> Any:
        """Make the member: call `make` of its file for a backend, or of its `__init__.py`, with the options.

        Args:
            backend: `torch`, `jax`, or None for the member's `__init__.py`.
            positional: further arguments.
            named: further arguments by name.

        Raises:
            UserError: the member or its file does not exist, lacks `make`, or has no such option.
        """
        member = load_half(self.module, backend) if backend else self.member
        check_names(member, "make")
        return self.call(member.make, *positional, **named)

    def call(self, function: Callable[..., Any], *positional: Any, place: str | None = None, **named: Any) -> Any:
        """Call a function of the member with the options.

        Args:
            function: of the member.
            positional: further arguments.
            place: dotted key of the settings, if not `Part.place`.
            named: further arguments by name.

        Raises:
            UserError: the function takes no such option, or is a class that lacks a method.
        """
        if isinstance(function, type) and (missing := sorted(getattr(function, "__abstractmethods__", ()))):
            raise UserError(f"{self.module}: does not define {', '.join(missing)}")
        taken, options = inspect.signature(function).parameters, self.options()
        if all(parameter.kind is not inspect.Parameter.VAR_KEYWORD for parameter in taken.values()):
            for option in options.keys() - taken.keys():
                raise UserError(
                    f"{place or self.place}.{option}: {self.module.rpartition('.')[2]} has no such option; you typed "
                    "it, or a preset of another member sets it"
                )
        return function(*positional, **named, **options)

    def __reduce__(self) -> Any:
        """Pickle as plain data: the class of a member's settings is made when it is needed."""
        families = (TaskSettings, OptimizerSettings, BaselineSettings, Member, Part)
        return _restore, (next(family for family in families if isinstance(self, family)), self.plain())

    @classmethod
    def chosen(cls, values: Mapping[str, Any], *, old: bool = False) -> type[Self]:
        """Return the class with the settings of the member that the values name (a result's member may be gone)."""
        module = values.get("module")
        if not isinstance(module, str):
            raise UserError(f"module={module}: must be the dotted name of a module")
        return _with_settings(cls, None if old and not is_here(module) else module)

    def options(self) -> dict[str, Any]:
        """Return what the member's `make` takes: the values that are set, without `name` and `module`."""
        return {name: value for name, value in super().options().items() if name not in ("name", "module")}


class Member(Part):
    """A part with its own name, as one of a configuration group."""

    name: str = setting(..., "name, as reports show it")


class TaskSettings(Member):
    """Settings that every task has."""

    place: ClassVar[str] = "task"

    name: str = setting(..., "name of the task", affects=PROBLEM)
    module: str = setting(..., "the task's module", affects=PROBLEM)
    variant: str = setting("", "which network of the task", affects=PROBLEM)
    batch_size: int = setting(1, "samples of an update, over all devices and micro-batches", at_least=1)
    eval_batch_size: int = setting(1, "samples of an evaluation batch, over all devices", at_least=1, affects=TIME)
    targets: tuple[float, ...] = setting((), "ladder of the metric, easiest first", affects=MEASUREMENT)

    def model_post_init(self, context: Any) -> None:
        """Reject an empty ladder."""
        if "targets" in self.model_fields_set and not self.targets:
            raise ValueError("targets=[]: at least one value of the metric is needed")

    def make_model(self, backend: str, task: Task) -> Any:
        """Make the model of a task for `torch` or `jax`.

        Raises:
            UserError: the task has no file for the backend, or it lacks `make`.
        """
        half = load_half(self.module, backend)
        check_names(half, "make")
        return half.make(task)


class OptimizerSettings(Member):
    """Settings that every optimizer has."""

    place: ClassVar[str] = "optimizer"

    @property
    def needs(self) -> tuple[str, ...]:
        """What the optimizer needs beside gradients: its NEEDS; see `suite.contract`.

        Raises:
            UserError: the member does not exist, or does not define it.
        """
        member = self.member
        check_names(member, "NEEDS")
        found: tuple[str, ...] = member.NEEDS
        return found


class BaselineSettings(Member):
    """A model that is fitted without optimizer and steps."""

    task: str = setting(..., "the task that it is for", affects=NOTHING)


def _restore(family: type[Part], values: dict[str, Any]) -> Part:
    return family.chosen(values).given(values)


@cache
def _with_settings(base: type[Part], module: str | None) -> Any:
    """Return the class of a member's node: its declared settings, or any options for a member that declares none."""
    settings = load_settings(module) if module else None
    if module is None or settings is None:
        return type(
            f"Open{base.__name__}", (base,), {"model_config": ConfigDict(extra="allow"), "__module__": __name__}
        )
    if issubclass(settings, base):
        return settings
    return create_model(f"{base.__name__}Of{module.rpartition('.')[2].title()}", __base__=(settings, base))


def load_settings(module: str) -> type[Declared] | None:
    """Return the settings that a member declares in its `settings.py` or `__init__.py`; None for one that does not.

    The package of a member with a `settings.py` is not imported, because a configuration is checked before any data or
    framework is needed.

    Raises:
        UserError: the member does not exist.
    """
    path = find_settings(package_folder(module))
    if path is None:
        return None
    if path.stem == "__init__":
        member = load_member(module)
    elif (name := f"{module}.settings") in sys.modules:
        member = sys.modules[name]
    else:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec and spec.loader
        sys.modules[name] = member = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(member)
    found: type[Declared] = member.Settings
    return found
