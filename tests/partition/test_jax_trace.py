"""Tests of the description of a jax function that the planner gets."""

import random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import Var
from jax_cuts import traced
from jax_models import CASES, WIDTH, Draw

from suite.comm.partition.jax.trace import trace_function
from suite.contract import UserError


def nodes(made: Any, operation: str) -> list[Any]:
    return [node for node in made.graph.nodes if node.operation == operation]


def test_products_and_convolutions_are_counted_exactly() -> None:
    def function(params: Any, images: Any) -> Any:
        x = jax.lax.conv_general_dilated(images, params["kernel"], (1, 1), "SAME", feature_group_count=2)
        return (x.reshape(len(x), -1) @ params["head"]).mean()

    shapes = {"kernel": jax.ShapeDtypeStruct((6, 2, 3, 3), jnp.float32)}
    shapes |= {"head": jax.ShapeDtypeStruct((6 * 5 * 5, 7), jnp.float32)}
    made = trace_function(function, shapes, (jax.ShapeDtypeStruct((2, 4, 5, 5), jnp.float32),))
    [conv], [product] = nodes(made, "conv_general_dilated"), nodes(made, "dot_general")
    assert conv.flops == 2 * (2 * 6 * 5 * 5) * (2 * 3 * 3)
    assert product.flops == 2 * 2 * 150 * 7
    assert conv.parameters == ("kernel",) and conv.layer == "kernel"


def test_loops_count_every_iteration() -> None:
    def function(params: Any, x: Any) -> Any:
        return jax.lax.scan(lambda hidden, weight: (jnp.tanh(hidden @ weight), None), x, params)[0].mean()

    made = trace_function(function, jnp.zeros((5, 4, 4)), (jnp.zeros((2, 4)),))
    [loop] = nodes(made, "scan")
    assert loop.flops == 5 * (2 * 2 * 4 * 4 + 2 * 4)


def test_dependencies() -> None:
    made = traced(CASES["dropout"](Draw()))
    drawn = nodes(made, "random_bits")
    assert [node.random for node in drawn] == [True] + 4 * [False]  # the fixed key, then keys from the input
    values = made.graph.values
    assert not values[drawn[0].outputs[0]].batched
    assert all(values[node.outputs[0]].batched for node in drawn[1:])
    assert not any(values[node.outputs[0]].differentiable for node in drawn)
    product = nodes(made, "dot_general")[0]
    assert values[product.outputs[0]].differentiable
    assert made.graph.values["%inputs/1"].batched and not made.graph.values["%inputs/0"].batched


def test_values_without_the_samples_are_not_batched() -> None:
    """A batch normalization's mean depends on the samples, but its size does not."""
    made = traced(CASES["residual"](Draw()))
    means = [node for node in nodes(made, "reduce_sum") if made.shapes[node.outputs[0]].shape == (4,)]
    assert means
    assert not any(made.graph.values[node.outputs[0]].batched for node in means)


def test_a_stopped_gradient_is_not_sent_back() -> None:
    def function(params: Any, x: Any) -> Any:
        hidden = jnp.tanh(x @ params)
        return (hidden * jax.lax.stop_gradient(hidden)).mean()

    made = trace_function(function, jnp.zeros((4, 4)), (jnp.zeros((2, 4)),))
    [stopped] = nodes(made, "stop_gradient")
    assert not made.graph.values[stopped.outputs[0]].differentiable


def test_saved_bytes_are_those_that_jax_keeps() -> None:
    """Operations together save what jax.vjp of the whole function keeps, without parameters and inputs."""
    for name in ("bert", "residual", "forked"):
        case = CASES[name](Draw())
        made = traced(case, 1)

        def kept(params: Any, *inputs: Any, case: Any = case) -> Any:
            return jax.tree.leaves(jax.vjp(lambda params: case.function(params, *inputs), params)[1])

        jaxpr = jax.make_jaxpr(kept)(case.params, *case.inputs).jaxpr
        given = {*jaxpr.invars, *jaxpr.constvars}
        arrays = {atom for atom in jaxpr.outvars if isinstance(atom, Var)} - given
        whole = sum(atom.aval.size * atom.aval.dtype.itemsize for atom in arrays)  # type: ignore[attr-defined]
        assert whole == pytest.approx(sum(node.saved for node in made.graph.nodes), rel=0.15)


def test_layers_and_parameters_have_paths() -> None:
    made = traced(CASES["bert"](Draw()))
    assert {node.layer for node in made.graph.nodes} == {"embed", "positions", *(f"layers/{n}" for n in range(6))}
    assert made.graph.parameters["layers/3/up"].nbytes == 4 * WIDTH * 4 * WIDTH
    scoped = trace_function(
        lambda w, x: jax.named_scope("outer")(jax.jit(lambda v: jax.named_scope("inner")(jnp.tanh)(v @ w)))(x).sum(),
        jnp.zeros((4, 4)),
        (jnp.zeros((2, 4)),),
    )
    assert nodes(scoped, "tanh")[0].layer == "outer/inner"


def test_arrays_in_the_function_are_fixed_parameters() -> None:
    made = traced(CASES["unread"](Draw()))
    fixed = [name for name, parameter in made.graph.parameters.items() if not parameter.trainable]
    assert fixed[0] == "offset" and set(fixed[1:]) == made.constants.keys() and len(fixed) == 3


@pytest.mark.parametrize(
    "function, words",
    [
        (lambda w, x: x @ w, r"must return floating-point scalars: the mean loss, .*; it returns float32\[2, 4\]"),
        (lambda w, x: ((x @ w).sum(), x), "must return one scalar loss"),
        (lambda w, x: ((x @ w).sum(), x.sum(), x.sum()), "must compute the new value of params, with the shape"),
        (lambda w, x: ((x @ w).sum(), x.sum(), w), "must compute the new value of params"),
        (lambda w, x: ((x @ w).sum(), x.sum(), {"mean": x.mean()}), "must compute the new value of mean"),
        (lambda w, x: ((x @ w).sum(), x.sum(), 2.0 * w), "does not depend on the parameters"),
        (lambda w, x: ((x @ w).sum(), w.sum()), "the weight of <lambda> depends on the parameters"),
        (lambda w, x: x.sum(), "does not depend on the parameters"),
        (lambda w, x: jax.lax.stop_gradient(x @ w).sum(), "does not depend on the parameters"),
    ],
)
def test_functions_that_cannot_be_cut_are_rejected(function: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        trace_function(function, jnp.zeros((4, 4)), (jnp.zeros((2, 4)),))


@pytest.mark.parametrize("kind", ["numpy", "generator", "counter", "shape", "python"])
def test_a_function_of_python_s_state_is_rejected(kind: str) -> None:
    """jax keeps the numbers of the trace; the function itself has others in every call."""
    numbers, calls = np.random.default_rng(0), []

    def function(params: Any, x: Any) -> Any:
        calls.append(None)
        if kind == "numpy":
            return (x @ params * np.random.rand(4)).mean()
        if kind == "python":
            return (x @ params).mean() * random.random()
        if kind == "generator":
            return (x @ params * numbers.random(4)).mean()
        return (x @ params).mean() * len(calls) if kind == "counter" else (x @ params)[:, : 1 + len(calls) % 2].mean()

    words = {"numpy": r"draws numbers with np\.random", "python": "draws numbers with random"}
    before = str(np.random.get_state())
    with pytest.raises(UserError, match=words.get(kind, "is another one when it is traced again")):
        trace_function(function, jnp.ones((4, 4)), (jnp.ones((2, 4)),))
    assert str(np.random.get_state()) == before
