"""Groups of settings that name a member by its module, such as `task`, `optimizer` and `comm.codec`."""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Self

from pydantic import ConfigDict, SerializerFunctionWrapHandler, create_model, model_serializer

from suite.contract import UserError
from suite.declared import MEASUREMENT, NOTHING, PROBLEM, TIME, Declared, setting
from suite.load import is_here, load_settings


class Options(Declared):
    """Options that a member takes by name. Those that nobody has set are not passed, and not written."""

    def options(self) -> dict[str, Any]:
        """Return the values that are set."""
        return {name: value.options() if isinstance(value, Options) else value for name, value in self._values()}

    def _values(self) -> Iterator[tuple[str, Any]]:
        names = (*type(self).model_fields, *(self.model_extra or ()))
        yield from ((name, getattr(self, name)) for name in names if name in self.model_fields_set)

    @model_serializer(mode="wrap")
    def _without_unset(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in handler(self).items() if name in self.model_fields_set}


class Part(Options):
    """A member and its options. The options are those that the member's `settings.py` declares; without it, any."""

    module: str = setting(..., "the member's module")

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


class OptimizerSettings(Member):
    """Settings that every optimizer has."""


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
