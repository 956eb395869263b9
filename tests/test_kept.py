"""A second engine in jax takes the programs of an equal one, and no other engine does."""

import dataclasses
import functools
import importlib
import pkgutil
import sys
import types
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest
from engines import OPTIMIZERS, advance, comm, config, engine, same, tiny, weights
from jax import monitoring

import suite
from suite.engine import jax_kept
from suite.engine.jax_kept import KEPT, KeptJit, make_key

BUILT = ("/jax/core/compile/jaxpr_trace_duration", "/jax/core/compile/backend_compile_duration")
built: list[str] = []
monitoring.register_event_duration_secs_listener(lambda name, *_, **__: built.append(name) if name in BUILT else None)


@pytest.fixture(scope="module", autouse=True)
def import_everything() -> None:
    """A module that a process has imported is an attribute of its package; that decides no program."""
    for module in pkgutil.walk_packages(suite.__path__, "suite."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)


@pytest.fixture(autouse=True)
def empty() -> Iterator[None]:
    KEPT.clear()
    yield
    KEPT.clear()


def use(made: Any) -> dict[str, np.ndarray]:
    """Use an engine as a run does; returns its weights."""
    advance(made, range(5))
    task = made.task
    for _ in made.evaluate(task.batch("valid", 0, index) for index in range(2)):
        pass
    return weights(made)


# secant holds a pool of threads, which cannot be compared
@pytest.mark.parametrize("optimizer", [name for name in OPTIMIZERS if name not in ("external", "secant")])
def test_an_equal_engine_builds_nothing(optimizer: str) -> None:
    """The seed, the cadence and the number of steps decide no program."""
    use(engine(config(optimizer, "jax")))
    built.clear()
    found = use(engine(config(optimizer, "jax", seed=3, eval_every=2, max_steps=77)))
    assert not built
    KEPT.clear()
    assert same(found, use(engine(config(optimizer, "jax", seed=3))))


CHANGES: dict[str, dict[str, Any]] = {
    "accumulate": {"accumulate": 2},
    "clip_norm": {"clip_norm": 0.01},
    "float32": {"precision": "float32"},
    "an option": {"hyper": {"nesterov": True, "momentum": 0.5}},
    "a rate": {"hyper": {"lr": 0.02}},
    "a codec": {"comm": comm(codec="int8", algorithm="all_to_all", feedback=True), "world": 2},
    "two devices": {"world": 2},
}


@pytest.mark.parametrize("change", CHANGES)
def test_another_run_has_other_programs(change: str) -> None:
    use(engine(config("sgd", "jax")))
    found = use(engine(config("sgd", "jax", **CHANGES[change])))
    KEPT.clear()
    assert same(found, use(engine(config("sgd", "jax", **CHANGES[change]))))


def test_what_a_program_sends_is_counted_for_each_engine() -> None:
    first = engine(config("sgd", "jax", world=2))
    use(first)
    second = engine(config("sgd", "jax", world=2))  # after the first has compiled, which every engine hears
    use(second)
    assert second.facts()["bytes"] == first.facts()["bytes"] and second.facts()["bytes"]
    assert second.facts()["compile_cache"] == "hit"


def test_another_batch_size_has_other_programs() -> None:
    use(engine(config("sgd", "jax")))
    built.clear()
    use(engine(config("sgd", "jax"), type(tiny())(batch_size=8)))
    assert built


def test_an_edited_model_has_other_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A patched method, a patched function that it calls, and a patched function of another module."""
    from mylab.tinytask import jax as module

    from suite.tasks._nn import jax as layers

    before = use(engine(config("sgd", "jax")))
    loss, normalise = module.Net.loss, layers.batch_norm

    def double(self: Any, outputs: Any, batch: Any) -> Any:
        total, weight = loss(self, outputs, batch)
        return 2 * total, weight

    for target, name, value in (
        (module.Net, "loss", double),
        (module, "conv2d", lambda x, w, **_: 0.5 * layers.conv2d(x, w, stride=2, padding=1)),
        (module, "batch_norm", lambda *args, **named: normalise(*args, **(named | {"group": 8}))),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(target, name, value)
            found = use(engine(config("sgd", "jax")))
        assert not same(found, before), name
    assert same(use(engine(config("sgd", "jax"))), before)


SOURCE = """
import functools, jax, types
scale, settings, table = 2.0, types.SimpleNamespace(scale=1.0), [1.0]
def helper(x): return x
def make(number): return lambda x: number * x
@jax.jit
def compiled(x): return x
@functools.cache
def cached(): return 1.0
def decorate(function):
    @functools.wraps(function)
    def call(*given): return function(*given)
    return call
@decorate
def decorated(x): return x
class Model:
    factor = 1.0
    def __init__(self): self.bias = 0.0
    @property
    def constant(self): return 1.0
    @staticmethod
    def fixed(x): return x
    def __call__(self, x):
        x = decorated(compiled(helper(self.fixed(x)))) * self.factor * self.constant * cached()
        return x * scale * settings.scale * table[0] + self.bias
"""
EDITS = {
    "a method": "def call(self, x): return x\nModel.__call__ = call",
    "a function": "def helper(x): return 3 * x",
    "a compiled function": "@jax.jit\ndef compiled(x): return 3 * x",
    "a cached function": "@functools.cache\ndef cached(): return 3.0",
    "a decorated function": "@decorate\ndef decorated(x): return 3 * x",
    "a property": "Model.constant = property(lambda self: 3.0)",
    "a static method": "Model.fixed = staticmethod(lambda x: 3 * x)",
    "an attribute of the class": "Model.factor = 3.0",
    "code in place": "helper.__code__ = (lambda x: 3 * x).__code__",
    "a global": "scale = 3.0",
    "an attribute of a global": "settings.scale = 3.0",
    "an item of a global": "table[0] = 3.0",
    "the whole class": SOURCE.partition("class")[1] + SOURCE.partition("class")[2].replace("+ self.bias", "- 1"),
}


@pytest.fixture
def foreign(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module of nobody's package, such as a notebook."""
    module = types.ModuleType("notebook_of_a_test")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(SOURCE, vars(module))
    return module


@pytest.fixture
def notebook(foreign: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module as one of the suite's, whose programs are kept."""
    monkeypatch.setattr(jax_kept, "OWN", ["suite", foreign.__name__])
    return foreign


@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_cell_has_other_programs(notebook: Any, edit: str) -> None:
    x = np.ones(3)
    before = KeptJit(notebook.Model())(x)
    built.clear()
    assert np.array_equal(KeptJit(notebook.Model())(x), before) and not built
    exec(EDITS[edit], vars(notebook))
    after = KeptJit(notebook.Model())(x)
    KEPT.clear()
    jax.clear_caches()  # jax keeps its own programs for a function whose code was replaced in place
    assert np.array_equal(after, KeptJit(notebook.Model())(x)) and not np.array_equal(after, before)


def test_values_of_an_object_and_of_a_closure_count(notebook: Any) -> None:
    x, other, make = np.ones(3), notebook.Model(), notebook.make
    other.bias = 5.0
    assert not np.array_equal(KeptJit(notebook.Model())(x), KeptJit(other)(x))
    assert not np.array_equal(KeptJit(make(1.0))(x), KeptJit(make(2.0))(x))
    built.clear()
    KeptJit(make(2.0))(x)
    assert not built


def test_what_reaches_anybody_elses_code_is_compiled_anew(foreign: Any) -> None:
    """Only then is no way to edit it missed: a constant of another module, an item of a class's table."""
    x = np.ones(3)
    for function in (foreign.Model(), foreign.helper, foreign.compiled, foreign.make(2.0)):
        assert make_key(function, (x,)) is None
        assert make_key(jax.numpy.sin, (x,), function) is None

    class Inherits(foreign.Model):
        pass

    Inherits.__module__ = "suite.tasks"
    assert make_key(Inherits(), (x,)) is None


def test_a_constant_that_another_module_reads_counts(notebook: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    other = types.ModuleType("notebook_of_a_test.other")
    monkeypatch.setitem(sys.modules, other.__name__, other)
    exec("import notebook_of_a_test as c\ndef scale(x): return c.scale * x", vars(other))
    x = np.ones(3)
    before = KeptJit(functools.partial(other.scale))(x)  # jax itself keeps a function's own trace
    notebook.scale = 7.0
    assert not np.array_equal(KeptJit(functools.partial(other.scale))(x), before)


def test_python_numbers_are_no_arrays_and_settings_hold_for_an_old_object() -> None:
    def multiply(x: Any, number: Any) -> Any:
        return x * number

    x, kept, jitted = jax.numpy.ones(3, "bfloat16"), KeptJit(multiply), jax.jit(multiply)
    for number in (2.0, np.float64(2.0), 2, np.int32(2)):
        assert kept(x, number).dtype == jitted(x, number).dtype
    with jax.enable_x64(True):
        assert kept(np.ones(3), 2.0).dtype == np.float64
    with jax.debug_nans(True), pytest.raises(FloatingPointError):
        kept(jax.numpy.full(3, jax.numpy.inf), 0.0)


def test_an_object_that_fails_while_it_is_described_is_compiled_anew() -> None:
    class Raises:
        def __reduce__(self) -> Any:
            raise RuntimeError

        def __call__(self, x: Any) -> Any:
            return x

    assert make_key(Raises(), ()) is None and np.array_equal(KeptJit(Raises())(np.ones(3)), np.ones(3))


def test_shapes_types_and_settings_count() -> None:
    def key(x: Any) -> Any:
        return make_key(np.sin, (x,)).words  # type: ignore[union-attr]

    x = np.ones(3)
    assert key(x) == key(np.zeros(3))
    mesh = jax.make_mesh((1,), ("a",), devices=jax.devices()[:1])
    with jax.set_mesh(mesh):
        inside = key(x)
    assert inside != key(x)
    assert len({key(x), key(np.ones(4)), key(np.ones(3, np.float32)), key(jax.numpy.ones(3))}) == 4
    with jax.default_matmul_precision("bfloat16"):
        other = key(x)
    assert other != key(x)


def test_what_cannot_be_compared_is_compiled_anew() -> None:
    @dataclasses.dataclass(eq=False)
    class Reads:
        source: Any

        def __call__(self, x: Any) -> Any:
            return x * next(self.source)

    x = np.ones(3)
    numbers = (number for number in range(1, 9))  # a generator cannot be pickled
    assert make_key(Reads(numbers), (x,)) is None
    assert not np.array_equal(KeptJit(Reads(numbers))(x), KeptJit(Reads(numbers))(x))


def test_what_a_trace_notes_is_noted_by_each() -> None:
    @dataclasses.dataclass(eq=False)
    class Notes:
        __module__ = "suite.engine.layers"  # as the suite's own, whose programs are kept
        calls: int = 0

        def __call__(self, x: Any) -> Any:
            self.calls += 1
            return x

    one, other = Notes(), Notes()
    assert make_key(one, (np.ones(3),)) is not None
    KeptJit(one)(np.ones(3)), KeptJit(other)(np.ones(3))
    assert one.calls == other.calls == 1


def test_the_oldest_results_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("suite.engine.jax_kept.MOST", 2)
    keys = [make_key(np.sin, (np.ones(size),)) for size in range(1, 4)]
    for size, key in enumerate(keys):
        KEPT.keep(key, size + 1)
    assert [KEPT.find(key) for key in keys] == [None, 2, 3]
