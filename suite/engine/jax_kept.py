"""Programs that this process has compiled, for later engines whose programs are decided by the same things.

To trace, lower and compile a step takes seconds, and a process may make many engines: trials of a policy, a notebook,
tests. What decides a program is

- the function that is traced, with all values that it can reach through arguments, attributes and closures;
- the code and the globals of the suite's modules that it can reach, as they are now, because tests patch them;
- shapes, types and placement of its arguments, and jax's settings.

Only programs of the suite's own code are kept. A function that reaches a module of anybody else, such as a notebook's
model, is compiled anew: Python has too many ways to change what such a function computes. So is a function with values
that cannot be compared (an open file, a lock), and one that changes its values while it is traced.
"""

import functools
import hashlib
import io
import pickle
import sys
from array import array
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from types import CodeType, FunctionType, MappingProxyType, ModuleType
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.core import Tracer
from jax.sharding import PartitionSpec

MOST = 256  # results that are kept; an engine has up to about 20
DEBUGGING = ("jax_disable_jit", "jax_debug_nans", "jax_debug_infs")  # settings under which jax makes other programs
OWN = ["suite"]  # packages whose programs are kept
WRAPPERS = (type(jax.jit(len)), type(functools.cache(len)))


class Key(NamedTuple):
    """What decides a program.

    Attributes:
        words: equal for equal programs.
        held: objects whose `id` is among the words. A key keeps them, so that no other object gets their `id`.
    """

    words: tuple[Hashable, ...]
    held: list[object]


class Kept:
    """The results that were asked for last, by key."""

    def __init__(self) -> None:
        self._found: OrderedDict[tuple[Hashable, ...], tuple[Key, Any]] = OrderedDict()

    def find(self, key: Key | None) -> Any:
        """Return the result for a key; None if there is none."""
        if key is None or key.words not in self._found:
            return None
        self._found.move_to_end(key.words)
        return self._found[key.words][1]

    def keep(self, key: Key | None, result: Any) -> None:
        """Keep a result, and forget the one that was not asked for the longest."""
        if key is not None:
            self._found[key.words] = key, result
            while len(self._found) > MOST:
                self._found.popitem(last=False)

    def clear(self) -> None:
        """Forget all results."""
        self._found.clear()


KEPT = Kept()


def find_or_make(make: Callable[[], Any], function: Callable[..., Any], arguments: Any, *rest: Any) -> Any:
    """Return the kept result for what `make_key` describes, or make it."""
    key = make_key(function, arguments, *rest)
    found = KEPT.find(key)
    if found is None:
        found = make()
        KEPT.keep(key if is_same(key, make_key(function, arguments, *rest)) else None, found)
    return found


def is_same(key: Key | None, again: Key | None) -> bool:
    """Return whether a trace has left everything as it was. What one trace notes, a later one may read."""
    return key is not None and again is not None and key.words == again.words


class KeptJit:
    """A function as `jax.jit` compiles it, whose programs are kept.

    Args:
        function: to compile.
        wrapped: what is compiled in its place, such as its `jax.shard_map`.
        rest: what decides the program beside the function, such as devices and partition specs.
    """

    def __init__(self, function: Callable[..., Any], wrapped: Callable[..., Any] | None = None, *rest: Any):
        self._function, self._jitted, self._rest = function, jax.jit(wrapped or function), rest
        self._programs: dict[Any, Any] = {}

    def __call__(self, *arguments: Any) -> Any:
        """Call the function."""
        debugging = any(jax.config.values[name] for name in DEBUGGING)
        if debugging or any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(arguments)):  # in another program
            return self._jitted(*arguments)
        shapes = _describe_shapes(arguments), _describe_settings()
        if shapes not in self._programs:
            self._programs[shapes] = find_or_make(
                lambda: self._jitted.lower(*arguments).compile(), self._function, arguments, *self._rest
            )
        return self._programs[shapes](*arguments)


def make_key(function: Callable[..., Any], arguments: Any, *rest: Any) -> Key | None:
    """Return what decides the program of a function; None if that cannot be compared.

    Args:
        function: is traced; often a `functools.partial` of a method.
        arguments: arrays, or their shapes, types and shardings; partition specs, too.
        rest: whatever else decides the program.
    """
    description = _Description()
    try:
        description.add_value((function, rest))
        description.add_modules()
    except Exception:  # pickle raises whatever an object's own methods raise
        return None
    return Key((*description.words, _describe_shapes(arguments), _describe_settings()), description.held)


def _describe_settings() -> Hashable:
    """Return jax's settings as they are in this context."""
    settings = sorted((name, repr(value)) for name, value in jax.config.values.items())
    return tuple(settings), jax.sharding.get_abstract_mesh()


def _describe_shapes(arguments: Any) -> Hashable:
    """Return structure, shapes, types and shardings of arrays, and partition specs."""
    leaves, tree = jax.tree.flatten(arguments)
    return tree, tuple(map(_describe_leaf, leaves))


def _describe_leaf(leaf: Any) -> Hashable:
    if isinstance(leaf, PartitionSpec):
        return leaf
    if isinstance(leaf, jax.Array | jax.ShapeDtypeStruct):
        return leaf.shape, leaf.dtype, leaf.weak_type, leaf.sharding
    return np.shape(leaf), np.result_type(leaf), type(leaf) in (bool, int, float, complex)  # whose types are weak


class _Description:
    """Words that are equal for equal values and equal code, and the objects whose `id` they contain."""

    def __init__(self) -> None:
        self.words: list[bytes] = []
        self.held: list[object] = []
        self.modules: dict[str, None] = {}  # that the values come from, in order

    def add_value(self, value: Any) -> None:
        """Add a value with all that it holds.

        Raises:
            Exception: of any kind: a part of it has no description.
        """
        file = io.BytesIO()
        _Pickler(file, self).dump(value)
        self.words.append(hashlib.blake2b(file.getbuffer()).digest())

    def add_modules(self) -> None:
        """Add the suite's modules so far, and those that they import.

        Raises:
            ValueError: a module belongs neither to the suite nor to an installed package.
        """
        seen = set[str]()
        while waiting := [name for name in self.modules if name not in seen]:
            seen.update(waiting)
            for name in waiting:
                if is_own(name):
                    self._add_module(sys.modules[name])
                elif not _is_installed(name):
                    raise ValueError(f"{name}: its code may change")

    def _add_module(self, module: ModuleType) -> None:
        items = {name: value for name, value in vars(module).items() if not name.startswith("__")}
        codes = [code for value in items.values() for code in _list_code(value)]
        self.add_ids(codes)
        read = _list_names(codes)
        for name, value in items.items():
            if isinstance(value, ModuleType):
                # whatever the process has imported of a package is an attribute of it
                if name in read or value.__name__ != f"{module.__name__}.{name}":
                    self.modules[value.__name__] = None
            elif isinstance(value, (FunctionType, type, *WRAPPERS)):
                self.modules[value.__module__] = None
            else:
                self._add_global(value)

    def _add_global(self, value: Any) -> None:
        count = len(self.held)
        try:
            self.add_value(value)
        except Exception:  # a lock, a cache: counts as itself
            del self.held[count:]
            self.add_ids([value])

    def add_ids(self, objects: Sequence[object]) -> None:
        """Add objects that are equal only to themselves."""
        self.held += objects
        self.words.append(array("Q", map(id, objects)).tobytes())


class _Pickler(pickle.Pickler):
    """Pickles values for a description. It writes the code of functions and classes, and the values they hold."""

    def __init__(self, file: io.BytesIO, description: _Description):
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._description = description

    def reducer_override(self, value: Any) -> Any:
        description = self._description
        if isinstance(value, type) and value.__module__ != "builtins":
            codes = [code for kind in value.__mro__ for code in _list_code(kind)]
            description.modules |= dict.fromkeys(kind.__module__ for kind in value.__mro__)
            description.held += [value, *codes]
            return tuple, ((id(value), *map(id, codes)),)
        if isinstance(value, FunctionType):
            description.modules[value.__module__] = None
            description.held.append(value.__code__)
            cells = tuple(cell.cell_contents for cell in value.__closure__ or ())
            return tuple, ((id(value.__code__), cells, value.__defaults__, value.__kwdefaults__),)
        if isinstance(value, WRAPPERS):  # pickle would name them, and an edit keeps the name
            description.modules[value.__module__] = None
            description.held.append(value)
            return int, (id(value),)
        if isinstance(value, MappingProxyType):
            return dict, (dict(value),)
        if isinstance(value, ModuleType):
            description.modules[value.__name__] = None
            return str, (value.__name__,)
        if isinstance(value, jax.Device):
            return tuple, ((value.platform, value.id),)
        return NotImplemented


def _list_code(value: object) -> list[object]:
    """Return the objects that decide what a function or a class does: its code, defaults, closure and attributes."""
    if isinstance(value, FunctionType):
        given = [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        return [value.__code__, *given, *cells, *(part for cell in cells for part in _unwrap(cell))]
    if isinstance(value, type) and is_own(value.__module__):
        parts = [(name, part) for name, item in vars(value).items() for part in _unwrap(item)]
        return [value, *(part for name, part in parts if isinstance(part, CodeType) or not name.startswith("__"))]
    return [value] if isinstance(value, WRAPPERS) else []


def _list_names(codes: Sequence[object]) -> set[str]:
    """Return the names of globals and attributes that code reads."""
    names = set[str]()
    for code in codes:
        if isinstance(code, CodeType):
            names.update(code.co_names, _list_names(code.co_consts))
    return names


def _unwrap(item: Any) -> list[object]:
    """Return the code of a method or a property; any other value of a class as it is."""
    if isinstance(item, property):
        return [part for function in (item.fget, item.fset) if function for part in _unwrap(function)]
    item = item.func if isinstance(item, functools.cached_property) else item
    function = item.__func__ if isinstance(item, classmethod | staticmethod) else item
    return _list_code(function) if isinstance(function, FunctionType) else [item]


def is_own(name: str) -> bool:
    """Return whether a module is one of the suite's."""
    return name.partition(".")[0] in OWN


@functools.cache
def _is_installed(name: str) -> bool:
    """Return whether a module belongs to Python or to an installed package, whose code stays as it is."""
    top = name.partition(".")[0]
    file = getattr(sys.modules.get(top), "__file__", None) or ""
    return top in {*sys.stdlib_module_names, *sys.builtin_module_names} - {"__main__"} or "-packages" in file
