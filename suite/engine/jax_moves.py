"""Moves of the blocks of sparse matrices in the jax engine."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.sharding import PartitionSpec as P

from suite import engine
from suite.comm.transport.jax import AXIS
from suite.contract import Sparse
from suite.engine.jax_device import Layout
from suite.engine.jax_programs import Compiled, Lowered, Programs
from suite.engine.jax_step import Maths

Tree = dict[str, Any]


def lower_move(
    task: Sparse, maths: Maths, programs: Programs, layout: Layout, run: Tree, batch: Tree, key: Any
) -> dict[str, Lowered | Compiled]:
    """Lower the programs of a move: reset moved blocks, and if the task uses it, whole matrices' gradient.

    Args:
        task: the task, which selects the blocks.
        maths: of the step.
        programs: lowers them.
        layout: of arrays on the devices.
        run: state of the run.
        batch: of one step.
        key: of one step.
    """
    state, specs = layout.state_spec(run), {name: P() for name in task.matrices()}
    blocks = {f"{name}.weight": run["params"][f"{name}.weight"].shape[:1] for name in specs}
    masks = {name: jax.ShapeDtypeStruct(shape, bool, sharding=layout.whole) for name, shape in blocks.items()}
    both = {name: state[name] for name in ("params", "opt")}
    start = {name: run[name] for name in both}
    lowered = {"reset": programs.lower(maths.reset, (start, masks), (both, P()), both)}
    if task.by_gradient:
        body = functools.partial(maths.whole_gradients, names=tuple(specs))
        arguments = (run, batch, key), (state, P(AXIS), P()), specs
        lowered["whole gradients"] = programs.lower(body, *arguments, donate=False)
    return lowered


def move_blocks(
    task: Sparse,
    programs: Programs,
    layout: Layout,
    fetch: Callable[[Array], np.ndarray],
    run: Tree,
    batch: Tree,
    key: Any,
) -> None:
    """Move blocks of sparse matrices; moved blocks restart from zero.

    Args:
        task: the task, which selects the blocks.
        programs: those of `lower_move`, compiled.
        layout: of arrays on the devices.
        fetch: copies a whole array to the host.
        run: state of the run; its patterns, parameters and optimizer state are replaced.
        batch: of the step that was made.
        key: of the step that was made.
    """
    gradients: dict[str, np.ndarray] = {}
    if task.by_gradient:
        gradients = {name: fetch(value) for name, value in programs("whole gradients", run, batch, key).items()}
    weights = {name: fetch(run["params"][f"{name}.weight"]) for name in task.matrices()}
    patterns = {name: fetch(value) for name, value in run["patterns"].items()}
    seed, step = np.asarray(key).tolist()
    new_patterns, moved = engine.move_blocks(task, (seed, step), weights, patterns, gradients)
    run["patterns"] = jax.device_put(new_patterns, layout.whole)
    run |= programs("reset", {name: run[name] for name in ("params", "opt")}, jax.device_put(moved, layout.whole))
