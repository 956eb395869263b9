"""A member that lacks what a run needs is an error of one line, which names the file and what is missing."""

import importlib
from collections.abc import Callable
from typing import Any

import conftest
import pytest

RUN = ["--config-dir", str(conftest.OUTSIDE / "conf"), "+task=tiny", "track=none"]
CASES = {
    "mylab.tinytask make": ["optimizer=sgd"],
    "mylab.tinytask VERSION": ["optimizer=sgd"],
    "mylab.tinytask.Tiny score": ["optimizer=sgd"],
    "mylab.tinytask.Tiny shapes": ["optimizer=sgd", "backend=jax"],
    "mylab.tinytask.torch make": ["optimizer=sgd"],
    "mylab.tinytask.torch.Net loss": ["optimizer=sgd"],
    "mylab.tinytask.jax make": ["optimizer=sgd", "backend=jax"],
    "mylab.noisy NEEDS": ["optimizer=noisy"],
    "mylab.noisy.torch make": ["optimizer=noisy"],
    "mylab.noisy.torch.Noisy forward_params": ["optimizer=noisy"],
    "mylab.noisy.jax make": ["optimizer=noisy", "backend=jax"],
    "mylab.truncate16.torch make": ["optimizer=sgd", "comm=truncate16", "world=1"],
    "mylab.means score": ["baseline=means"],
}


@pytest.mark.sample(4)
@pytest.mark.parametrize("case", CASES)
def test_what_a_member_lacks_is_named(case: str, suite: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    place, name = case.split()
    module, _, kind = place.rpartition(".") if place.rpartition(".")[2].istitle() else (place, "", "")
    found = importlib.import_module(module)
    monkeypatch.delattr(getattr(found, kind) if kind else found, name)
    code, said = suite(*RUN, *CASES[case])
    lines = [line for line in said.splitlines() if line.startswith("suite: ")]
    assert code == 2 and "Traceback" not in said, said
    assert len(lines) == 1 and f"does not define {name}; add it" in lines[0] and found.__file__ in lines[0], said
