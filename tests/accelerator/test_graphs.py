"""`compile=true` makes one graph of each model; each break adds launches, and keeps kernels from being fused.

Graphs are traced, and then run without a compiler.
"""

import functools
from typing import Any

import engines
import pytest
import small
import torch
from torch._dynamo.utils import counters

from suite.settings.run import Run

# what may break a graph, by a text in torch's explanation
ALLOWED = {"multiply_blocks": "a compiler would unroll the loop over stored blocks"}
SPARSE = ("bert-4", "bert-6")  # the forms with such products
STEPS = 4
FORMS = {f"{name}-{number}": (name, number) for name, forms in small.TASKS.items() for number in range(len(forms))}
FIRST = [
    pytest.param(form, marks=[] if form.endswith("-0") or form in SPARSE[:1] else pytest.mark.slow) for form in FORMS
]
FUSED = [name for name in engines.INSIDE if name != "external"]  # which is another package's class


@pytest.fixture(autouse=True)
def trace_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run traced graphs without a compiler, and count from zero."""
    torch.compiler.reset()
    counters.clear()
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))


def make_engine(form: str, *overrides: str, **changes: Any) -> Any:
    """An engine that compiles its model, on a task in one of its small forms."""
    task, number = FORMS[form]
    run: Run = small.small(task, small.TASKS[task][number], *overrides, compile=True, **changes)
    return engines.engine(run, small.make_small(run))


def find_breaks() -> list[str]:
    """Explanations of the breaks that are not allowed."""
    return [reason for reason in counters["graph_break"] if not any(text in reason for text in ALLOWED)]


def count_graphs() -> int:
    """Graphs that were traced since the test began."""
    return counters["stats"]["unique_graphs"]


@pytest.mark.parametrize("precision", ["float32", pytest.param("bfloat16", marks=pytest.mark.slow)])
@pytest.mark.parametrize("form", FIRST)
def test_a_model_is_one_graph_and_is_traced_before_the_first_step(form: str, precision: str) -> None:
    engine = make_engine(form, "optimizer=sgd", precision=precision)
    engine.warm(engine.task.batch("train", 0, 0), range(STEPS), {})
    traced = count_graphs()
    assert not find_breaks()
    assert traced == 1 if form not in SPARSE else traced > 1 and counters["graph_break"]
    engines.advance(engine, range(STEPS))
    list(engine.evaluate([engine.task.batch("valid", 0, 0)]))
    assert count_graphs() == traced, "a graph was traced while the clock ran"


@pytest.mark.parametrize("form", FIRST)
def test_a_loss_is_one_graph(form: str) -> None:
    engine = make_engine(form, "optimizer=sgd")
    part, _ = engine.maths.fetched(engine._micro(engine.task.batch("train", 0, 0))[0])
    outputs, _ = engine.model(part, engine.carry[0], (0, 0))
    torch.compile(engine.model.loss)(outputs, part)
    assert count_graphs() == 1 and not find_breaks()


@pytest.mark.parametrize("name", FUSED)
def test_a_step_is_one_graph(name: str) -> None:
    """Those that read results on the host refuse to be traced (tests/optimizers)."""
    engine = engines.engine(engines.config(name, "torch", precision="float32"))
    engines.advance(engine, range(2))
    if engine.optimizer.compiles:
        for parameter in engine.named.values():
            parameter.grad = torch.ones_like(parameter)
        torch.compile(engine.optimizer.step)()
        assert count_graphs() == 1 and not find_breaks()
