"""Every Python block of the documentation is run, and trains as no plain SGD or AdamW does."""

import contextlib
import importlib
import inspect
import re
from collections.abc import Callable
from typing import Any

import conftest
import numpy as np
import pytest
from torch import nn

ROOT = conftest.TESTS.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
PAGES.remove(ROOT / "docs" / "partition.md")  # its programs are run by tests/partition/test_page.py
TRANSFORMER = ROOT / "docs" / "transformer.md"  # each of its blocks continues from those before
PAGES.remove(TRANSFORMER)
PAGES += sorted((ROOT / "tasks").glob("*/CARD.md"))
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
BLOCKS = [
    pytest.param(block, id=f"{page.stem}-{number}")
    for page in PAGES
    for number, block in enumerate(BLOCK.findall(page.read_text()))
]
USED = re.compile(r"^from suite\.optimizers\.(\w+)\.(torch|jax) import make as \w+$", re.MULTILINE)
RIVALS = ("sgd", "momentum", "adamw")


def run(block: str, found: dict[str, Any] | None = None) -> dict[str, Any]:
    """Run a block after others, which have left these names, and return all names."""
    import torch

    state = torch.get_rng_state()
    found = {"__name__": "snippet"} if found is None else found
    try:
        exec(compile(block, "<documentation>", "exec"), found)
    finally:
        torch.set_rng_state(state)
    return found


def ends(found: dict[str, Any]) -> np.ndarray:
    """Return the trained parameters, one after another."""
    if isinstance(found.get("model"), nn.Module):
        values = [value.detach().numpy() for value in found["model"].parameters()]
    else:
        import jax

        values = jax.tree.leaves(found["params"])
    return np.concatenate([np.asarray(value).reshape(-1) for value in values])


def in_torch(kind: str) -> Callable[..., Any]:
    """A plain optimizer that takes what the block gives its own."""
    import torch

    def make(parameters: Any, *, lr: float = 0.01, **_: Any) -> Any:
        plain = {
            "sgd": lambda given: torch.optim.SGD(given, lr=lr),
            "momentum": lambda given: torch.optim.SGD(given, lr=lr, momentum=0.9),
            "adamw": lambda given: torch.optim.AdamW(given, lr=lr, betas=(0.95, 0.95)),
        }
        return plain[kind](parameters)

    return make


def in_jax(kind: str) -> Callable[..., Any]:
    """A plain optimizer that takes what the block gives its own."""
    import optax

    def make(*, lr: Any = 0.01, **_: Any) -> Any:
        plain = {"sgd": optax.sgd(lr), "momentum": optax.sgd(lr, 0.9), "adamw": optax.adamw(lr, 0.95, 0.95)}
        return optax.with_extra_args_support(plain[kind])

    return make


def blind(loss: Callable[..., Any], optimizer: Any) -> Callable[..., Any]:
    """`observing` without statistics."""
    import jax

    def look(params: Any, state: Any, *arguments: Any) -> Any:
        taps = {"tap": lambda name, x, y: y} if "tap" in inspect.signature(loss).parameters else {}
        return *jax.value_and_grad(lambda p: loss(p, *arguments, **taps))(params), {}

    return look


def replaced(block: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Run the block with a plain optimizer in the place of the suite's."""
    with monkeypatch.context() as patch:
        for name, backend in USED.findall(block):
            rival = in_torch(kind) if backend == "torch" else in_jax(kind)
            if "inject_hyperparams" in block:  # hands over every argument of its signature
                block = re.sub(r"static_args=static\)", "static_args=())", block)
                block = block.replace(", precondition_frequency=5", "")
            patch.setattr(importlib.import_module(f"suite.optimizers.{name}.{backend}"), "make", rival)
        torch_alone = importlib.import_module("suite.engine.torch_alone")
        patch.setattr(torch_alone, "observed", lambda model, optimizer: contextlib.nullcontext())
        patch.setattr(importlib.import_module("suite.engine.jax_alone"), "observing", blind)
        return run(block)


@pytest.mark.parametrize("block", BLOCKS)
def test_it_runs_and_its_loss_falls(block: str) -> None:
    found = run(block)
    assert found["losses"][-1] < 0.8 * found["losses"][0]


def run_page(page: str) -> list[list[float]]:
    """Run all blocks of a page, and return the losses of each."""
    found: dict[str, Any] = {"__name__": "snippet"}
    return [run(block, found)["losses"] for block in BLOCK.findall(page)]


LEAST = np.log(2.0)  # nats a word: the next is one of two


@pytest.mark.filterwarnings("ignore")  # those of Lightning and Hugging Face
@pytest.mark.parametrize("framework", ["torch", pytest.param("flax", marks=pytest.mark.slow)])
def test_the_transformer_learns_all_that_can_be_learned(framework: str) -> None:
    in_torch, flax = TRANSFORMER.read_text().split("## Flax")
    for losses in run_page(in_torch if framework == "torch" else flax):
        assert losses[0] > 2.5 and abs(losses[-1] - LEAST) < 0.06


def test_the_transformer_diverges_without_the_number_of_words() -> None:
    """As its page says; K-FAC warns once."""
    block = BLOCK.findall(TRANSFORMER.read_text())[0].replace(", counted=targets.numel()", "")
    assert run(block)["losses"][-1] > 100.0
    with pytest.warns(UserWarning, match="such as words, pass their number") as warned:
        assert np.isnan(run(block.replace("damping=0.01", "damping=0.00001"))["losses"][-1])
    assert len(warned) == 1


@pytest.mark.sample(4)
@pytest.mark.parametrize("block", BLOCKS)
def test_it_is_none_of_the_plain_methods(block: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even nearly: relative to the whole way, after the same steps at the same rate."""
    assert len(USED.findall(block)) == 1
    trained = ends(run(block))
    start = ends(replaced(re.sub(r"range\(40\)", "range(0)", block), "sgd", monkeypatch))
    for kind in RIVALS:
        other = ends(replaced(block, kind, monkeypatch))
        assert np.abs(other - start).max() > 1e-4, "the comparison did not train"
        if (kind, *USED.findall(block)[0]) != ("adamw", "adamw", "torch"):
            assert np.linalg.norm(trained - other) > 0.05 * np.linalg.norm(trained - start), kind


def test_the_page_shows_every_kind_in_both_backends() -> None:
    blocks = BLOCK.findall((ROOT / "docs" / "optimizers.md").read_text())
    used = {pair for block in blocks for pair in USED.findall(block)}
    assert {(name, backend) for name in ("shampoo", "soap", "muon", "kfac") for backend in ("torch", "jax")} <= used
