"""Sums of many terms that a traced program adds up in bfloat16.

jax adds in the type of the terms, except in products and convolutions: 4,096 ones in bfloat16 are 256 in a lookup's
gradient, and 1,024 in a bias's on a CPU. Sums that the program writes out term by term are not found.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax.extend.core import Literal

from suite.contract import UserError

MOST = 16  # terms; each addition rounds by up to 2^-9, which is 3 % in 16, and much less where roundings cancel


class NarrowSum(NamedTuple):
    """A sum in bfloat16.

    Attributes:
        terms: the most that are added to one value; infinite in a loop without a known end.
        primitive: name of the operation that adds them.
        shape: of the result.
        place: file and line outside of jax that the operation, or the one it is the gradient of, comes from.
    """

    terms: float
    primitive: str
    shape: tuple[int, ...]
    place: str


def check_sums(program: Any) -> None:
    """Check that a program (a jaxpr) has no sum of many terms in bfloat16.

    Raises:
        UserError: it has; the message names the longest.
    """
    longest = max(list_narrow_sums(program), default=None)
    if longest and longest.terms > MOST:
        what = f"{longest.primitive} of {longest.terms:,} terms into an array of shape {longest.shape}"
        raise UserError(
            f"precision=bfloat16: {longest.place} adds in bfloat16, or its gradient does ({what}), and would be wrong; "
            "declare a table as one (Spec.table, or a Layer of kind embedding), convert to float32 before the sum, or "
            "set precision=float32"
        )


def list_narrow_sums(program: Any) -> Iterator[NarrowSum]:
    """Yield the sums in bfloat16 of a program and of those that it calls."""
    for equation in program.eqns:
        if terms := _count_terms(equation):
            shape = equation.outvars[0].aval.shape
            yield NarrowSum(terms, equation.primitive.name, shape, _locate(equation))
        for value in equation.params.values():
            for inner in value if isinstance(value, tuple | list) else (value,):
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    yield from list_narrow_sums(inner)


def _count_terms(equation: Any) -> float:
    """Terms of each sum in bfloat16 that an operation makes; 0 for other operations."""
    name, given, params = equation.primitive.name, equation.invars, equation.params
    if name in ("scan", "while"):
        return _count_rounds(equation)
    if not any(_is_narrow(variable) for variable in equation.outvars):
        return 0
    shape = given[0].aval.shape
    if name == "reduce_sum":
        return math.prod(shape[axis] for axis in params["axes"])
    if name == "scatter-add" and not params["unique_indices"]:
        places = given[1].aval.shape[:-1]
        apart = params["dimension_numbers"].scatter_indices_batching_dims
        return math.prod(size for axis, size in enumerate(places) if axis not in apart)
    if name == "cumsum":
        return shape[params["axis"]]
    if name == "reduce_window_sum":
        return math.prod(params["window_dimensions"])
    if name == "select_and_scatter_add":  # as many as there are windows over one place
        windows = zip(params["window_dimensions"], params["window_strides"], strict=True)
        return math.prod(-(-size // stride) for size, stride in windows)
    return 0


def _count_rounds(loop: Any) -> float:
    """Rounds of a loop that adds to a value in bfloat16; 0 if it does not."""
    if loop.primitive.name == "scan":
        body, first, rounds = loop.params["jaxpr"].jaxpr, loop.params["num_consts"], float(loop.params["length"])
    else:
        body, first, rounds = loop.params["body_jaxpr"].jaxpr, loop.params["body_nconsts"], math.inf
    makers = {variable: equation for equation in body.eqns for variable in equation.outvars}
    for before, after in zip(body.invars[first:], body.outvars, strict=False):  # the carry; a scan has more of both
        maker = makers.get(after) if _is_narrow(after) and not isinstance(after, Literal) else None
        if maker is not None and maker.primitive.name in ("add", "add_any") and before in maker.invars:
            return rounds
    return 0


def _is_narrow(variable: Any) -> bool:
    return getattr(variable.aval, "dtype", None) == jnp.bfloat16


def _locate(equation: Any) -> str:
    """File and line of the innermost call outside of jax."""
    traceback = equation.source_info.traceback
    frames = traceback.frames if traceback else ()
    place = next((frame for frame in frames if "/jax/" not in frame.file_name), None)
    return f"{place.file_name}, line {place.line_num}" if place else "the model"
