"""`suite new optimizer NAME`: write an optimizer outside the tree, which runs, and which you then edit."""

import argparse
import importlib.util
import keyword
from collections.abc import Sequence
from pathlib import Path

from suite import disk
from suite.contract import UserError

HELP = """Write the files of an optimizer of your own into a directory: one text for torch and jax, a NumPy reference, a
test that compares them, and the YAML file that names it. They run as written (an average of gradients); replace the
update by yours. No file is overwritten."""
MEMBER = '''"""Say in two sentences what it does.

m ← β m + (1 - β) g;  w ← w - η m.
"""

from suite.declared import Declared, setting
from suite.optimizers._rules import Ops, Rule, State, Value

SUMMARY = "a line for suite list"
CITATION = "authors: title, place and year"
NEEDS = ()


class Settings(Declared):
    """Say where the values come from."""

    lr: float = setting(0.05, "learning rate η", at_least=0, scheduled=True, search=(0.001, 1.0, "log"))
    beta: float = setting(0.9, "β, decay of the average of gradients", at_least=0, below=1)


def update(
    ops: Ops[Value], weights: list[Value], grads: list[Value], state: State, hyper: Settings, steps: Value
) -> tuple[list[Value], State]:
    """One step; `suite.optimizers._rules.Ops` lists the operations on lists of arrays."""
    mean = ops.average(state["mean"], grads, hyper.beta)
    return ops.move(weights, mean, hyper.lr), {"mean": mean}


RULE = Rule("NAME", Settings, update, lambda _: {"mean": 0.0})
'''
TORCH = '''"""KIND in torch."""

from NAME import RULE, Settings
from suite.optimizers._rules.torch import FirstOrder


class KIND(FirstOrder[Settings], rule=RULE):
    """Say what it does."""


make = KIND
'''
JAX = '''"""KIND in jax."""

from NAME import RULE
from suite.optimizers._rules.jax import define

make = define(RULE, "Say what it does.")
'''
REFERENCE = '''"""Specification of KIND in float64 NumPy, independent of the rule; name the paper's equations."""

from typing import Any

import numpy as np

from NAME import Settings

Tree = dict[str, np.ndarray]


def init(params: Tree) -> dict[str, Any]:
    """Averages at zero."""
    return {"mean": {name: np.zeros_like(value) for name, value in params.items()}}


def update(
    params: Tree, grads: Tree, state: dict[str, Any], settings: Settings, **_: Any
) -> tuple[Tree, dict[str, Any]]:
    """One step; returns new parameters and state."""
    mean = {name: settings.beta * state["mean"][name] + (1 - settings.beta) * grads[name] for name in params}
    return {name: w - settings.lr * mean[name] for name, w in params.items()}, {"mean": mean}
'''
TEST = '''"""torch and jax follow the reference."""

import numpy as np
import pytest

from NAME import Settings, reference

STEPS, SCALE = 20, np.array([[1.0, 3.0], [0.1, 2.0]])  # the gradient of w is SCALE * w
START = {"w": np.array([[1.0, -2.0], [0.5, 3.0]])}


def follow_reference() -> np.ndarray:
    params, state, settings = dict(START), reference.init(START), Settings()
    for _ in range(STEPS):
        params, state = reference.update(params, {"w": SCALE * params["w"]}, state, settings)
    return params["w"]


def test_torch_follows_the_reference() -> None:
    torch = pytest.importorskip("torch")
    from NAME.torch import make

    w = torch.nn.Parameter(torch.from_numpy(START["w"].copy()))
    optimizer = make([("w", w)])
    for _ in range(STEPS):
        w.grad = torch.from_numpy(SCALE) * w.detach()
        optimizer.step()
    np.testing.assert_allclose(w.detach().numpy(), follow_reference(), rtol=1e-12)


def test_jax_follows_the_reference() -> None:
    jax = pytest.importorskip("jax")
    from NAME.jax import make

    optimizer, params = make(), {"w": jax.numpy.asarray(START["w"], "float32")}
    state = optimizer.init(params)
    for _ in range(STEPS):
        changes, state = optimizer.update({"w": SCALE * params["w"]}, state, params)
        params = {"w": params["w"] + changes["w"]}
    np.testing.assert_allclose(params["w"], follow_reference(), rtol=1e-5)
'''
CONF = """# say where the values come from
name: NAME
module: NAME
lr: 0.05
beta: 0.9
"""
FILES = {
    "NAME/__init__.py": MEMBER,
    "NAME/torch.py": TORCH,
    "NAME/jax.py": JAX,
    "NAME/reference.py": REFERENCE,
    "test_NAME.py": TEST,
    "conf/optimizer/NAME.yaml": CONF,
}


def main(arguments: Sequence[str]) -> int:
    """Write the files, and print what to run."""
    parser = argparse.ArgumentParser(prog="suite new", description=HELP)
    parser.add_argument("kind", choices=["optimizer"])
    parser.add_argument("name", metavar="NAME", help="of the package and of the optimizer, such as signs")
    parser.add_argument("--to", type=Path, default=Path(), metavar="DIR", help="where to (default: here)")
    chosen = parser.parse_args(arguments)
    files = render_optimizer(chosen.name, chosen.to)
    if found := [str(path) for path in files if path.exists()]:
        raise UserError(f"{', '.join(found)}: exists already; choose another name, or --to DIR")
    for path, text in files.items():
        with disk.report_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        print(path)
    where = f"in {chosen.to}:\n" if chosen.to != Path() else ""
    print(f"\n{where}  pytest test_{chosen.name}.py\n  suite --config-dir conf task=resnet50 optimizer={chosen.name}")
    return 0


def render_optimizer(name: str, directory: Path) -> dict[Path, str]:
    """Return the text of each file of a new optimizer.

    Raises:
        UserError: the name cannot be that of a package, or is another package's.
    """
    if not name.isidentifier() or keyword.iskeyword(name) or name != name.lower():
        raise UserError(f"{name}: cannot be the name of a package; use lower-case letters, digits and _")
    if importlib.util.find_spec(name) and not (directory / name).exists():
        raise UserError(f"{name}: is the name of an installed package; choose another name")
    if importlib.util.find_spec(f"suite.optimizers.{name}"):
        raise UserError(f"{name}: is an optimizer of the suite; choose another name")
    kind = "".join(part.capitalize() for part in name.split("_"))
    return {
        directory / path.replace("NAME", name): text.replace("NAME", name).replace("KIND", kind)
        for path, text in FILES.items()
    }
