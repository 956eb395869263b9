"""In jax, what a program leaves alone is not moved: donated memory goes to the leaf that it was."""

import re

import pytest
from engines import advance, config, engine


@pytest.mark.parametrize("optimizer", ["kfac", "kbfgs", "shampoo", "soap"])
def test_a_gradient_copies_no_weights_and_nothing_of_their_shape(optimizer: str) -> None:
    made = engine(config(optimizer, "jax"))
    advance(made, range(3))
    halves = {name: program for name, (program, _) in made.programs.compiled.items() if name[0] == "gradient"}
    assert halves
    for name, program in halves.items():
        assert not re.findall(r" copy\(%(run__\w+_weight__)", program.as_text()), name
