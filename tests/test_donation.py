"""In jax, what a program leaves alone is not moved: donated memory goes to the leaf that it was."""

import re

import pytest
from engines import advance, config, engine


@pytest.mark.parametrize("optimizer", ["kfac", "kbfgs", "shampoo"])
def test_a_gradient_copies_no_weights_and_nothing_of_their_shape(optimizer: str) -> None:
    made = engine(config(optimizer, "jax"))
    advance(made, range(3))
    halves = {name: program for name, (program, _) in made.programs.compiled.items() if name[0] == "gradient"}
    assert halves
    for name, program in halves.items():
        assert not re.findall(r" copy\(%(run__\w+_weight__)", program.as_text()), name


@pytest.mark.parametrize("optimizer", ["soap"])
def test_a_step_with_programs_before_it_copies_no_matrix_of_the_optimizers_state(optimizer: str) -> None:
    """Its refreshes need nothing of the step, which is one program as SGD's."""
    made = engine(config(optimizer, "jax"))
    advance(made, range(8))
    kinds = {name[0] for name in made.programs.compiled}
    assert kinds >= {"programs", "step"} and not kinds & {"gradient", "update"}
    for name, (program, _) in made.programs.compiled.items():
        if name[0] == "step":
            copied = set(re.findall(r" copy\(%(run__opt\w+)", program.as_text()))
            assert all("steps" in leaf for leaf in copied), (name, copied)
