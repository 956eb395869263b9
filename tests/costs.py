"""Costs of a step at `scale=gpu` in float32, from shapes on any machine: nothing is trained, and no array is made.

`.venv/bin/python tests/costs.py` writes tests/golden/costs.yaml again, and prints the table of docs/accelerators.md.
"""

import contextlib
import re
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import yaml

from suite.contract import Task
from suite.launch.job import make_task
from suite.projection.memory import estimate_memory
from suite.settings import configure
from suite.settings.run import Run

GOLDEN = Path(__file__).with_name("golden") / "costs.yaml"
HEAD = "# Costs of one step at scale=gpu precision=float32; `.venv/bin/python tests/costs.py` writes them again.\n"
CASES = ("resnet50 sgd", "resnet50 lars", "resnet50 kfac", "bert lamb", "dlrm sgd", "transformer adamw")
OPTIONS = {"bert lamb": ["task.batch_size=256", "accumulate=1"]}  # one of its recipe's micro-batches
# generated data whose batches have the same arrays, and the shapes of a sample's arrays that differ
BATCHES: dict[str, tuple[list[str], dict[str, tuple[int, ...]]]] = {
    "resnet50": (["task.data=digits", "task.bn_group=2"], {"image": (3, 224, 224)}),
    "bert": (["task.data=hmm"], {}),
    "dlrm": (["task.data=clicks"], {}),
    "transformer": (["task.data=grammar"], {"source": (64,), "target": (64,)}),  # padded to `length`
}
# NVIDIA H100 SXM (data sheet): operations a second without sparsity, and bytes a second
PEAKS, BANDWIDTH = {"float32": 66.9e12, "TF32": 494.7e12, "bfloat16": 989.4e12}, 3.35e12
STABLEHLO = re.compile(r"= \"?stablehlo\.")
Costs = dict[str, int]


def resolve_run(case: str, *words: str) -> Run:
    """Return the run of a case."""
    task, optimizer = case.split()
    options = OPTIONS.get(case, [])
    usual = [f"task={task}", f"optimizer={optimizer}", "scale=gpu", "precision=float32"]
    return configure.resolve_training([*usual, *options, *words])


def make_batch(case: str, count: int) -> dict[str, np.ndarray]:
    """A batch of zeros with `count` samples."""
    options, shapes = BATCHES[case.split()[0]]
    run = resolve_run(case, *options, "task.batch_size=2", "accumulate=1")
    batch = make_task(run).batch("train", 0, 0, 0, 1)
    return {name: make_zeros((count, *shapes.get(name, value.shape[1:])), value.dtype) for name, value in batch.items()}


def make_zeros(shape: tuple[int, ...], kind: Any = np.float32) -> np.ndarray:
    """Zeros that take no memory."""
    return np.broadcast_to(np.zeros((), kind), shape)


def measure_torch(case: str) -> Costs:
    """Operators on the device `meta`, their FLOPs, and the bytes of their operands and results."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from suite.counters.torch import Operators
    from suite.engine import torch as engines
    from suite.engine.torch_step import Maths

    class Traffic(Operators):
        """Also adds up bytes. A number that the host reads is 0, because there is none."""

        nbytes = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            reads = func is torch.ops.aten._local_scalar_dense.default
            result = 0 if reads else super().__torch_dispatch__(func, types, args, kwargs)
            if not func.is_view:
                leaves = torch.utils._pytree.tree_leaves((args, kwargs, result))
                self.nbytes += sum(leaf.nbytes for leaf in leaves if isinstance(leaf, torch.Tensor))
            return result

    run = resolve_run(case)
    task = make_task(run, absent=True)
    shapes, batch = task.shapes(), make_batch(case, task.batch_size)
    with (
        mock.patch.object(engines, "device_for", lambda name: torch.device("meta")),
        mock.patch.object(Maths, "autocast", lambda maths: contextlib.nullcontext()),  # it does not know `meta`
        mock.patch.object(task, "init", lambda seed, name: make_zeros(shapes[name].shape)),
    ):
        with Traffic():
            engine = engines.Engine(task, run)
        with FlopCounterMode(display=False) as flops, Traffic() as operators:
            engine.step(0, batch, {})
    counts = {"operators": operators.calls.total(), "flops": flops.get_total_flops(), "bytes": operators.nbytes}
    return counts | estimate_held(run, task)


def measure_jax(case: str) -> Costs:
    """StableHLO's operations, and the FLOPs and bytes that XLA counts in the lowered programs, without its passes."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding

    from suite.engine import jax as engines
    from suite.engine.jax_programs import Lowered, Programs

    run = resolve_run(case, "backend=jax", "device=cpu")
    task = make_task(run, absent=True)
    shapes, made, lowered = task.shapes(), list[engines.Engine](), dict[Any, Lowered]()

    def make_engine() -> Any:
        made.append(engines.Engine(task, run))
        return made[0].run

    with mock.patch.object(task, "init", lambda seed, name: jnp.zeros(shapes[name].shape)):
        state = jax.eval_shape(make_engine)
    [engine] = made
    engine.run = jax.tree.map(
        lambda value, spec: jax.ShapeDtypeStruct(value.shape, value.dtype, sharding=NamedSharding(engine.mesh, spec)),
        state,
        engine.layout.spec(state),
    )
    with mock.patch.object(Programs, "compile", lambda programs, found: lowered.update(found)):
        engine.warm(make_batch(case, task.batch_size), range(1), {})
    programs = [item.program for item in lowered.values()]
    costs = [program.cost_analysis() for program in programs]
    return {
        "operators": sum(len(STABLEHLO.findall(program.as_text())) for program in programs),
        "flops": int(sum(cost["flops"] for cost in costs)),
        "bytes": int(sum(cost["bytes accessed"] for cost in costs)),
        **estimate_held(run, task),
    }


def estimate_held(run: Run, task: Task) -> Costs:
    """Return the most bytes that a step holds, as `suite plan` estimates them."""
    return {"held": sum(estimate_memory(run, task).values())}


MEASURES = {"torch": measure_torch, "jax": measure_jax}


def read_golden() -> dict[str, dict[str, Costs]]:
    """Costs by case and framework, as a reviewer has accepted them."""
    return yaml.safe_load(GOLDEN.read_text(encoding="utf-8"))


def list_bounds() -> list[str]:
    """Rows of a table: samples a second of each case in torch, if one part of the hardware alone were busy."""
    titles = ["task, optimizer", "batch", *(f"products in {kind}" for kind in PEAKS), "memory"]
    rows = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for case, found in read_golden().items():
        batch, costs = resolve_run(case).task.options()["batch_size"], found["torch"]
        seconds = [*(costs["flops"] / peak for peak in PEAKS.values()), costs["bytes"] / BANDWIDTH]
        task, optimizer = case.split()
        rates = " | ".join(f"{float(f'{batch / each:.2g}'):,.0f}" for each in seconds)
        rows.append(f"| `{task}`, {optimizer} | {batch} | {rates} |")
    return rows


if __name__ == "__main__":
    found = {case: {backend: measure(case) for backend, measure in MEASURES.items()} for case in CASES}
    GOLDEN.write_text(HEAD + yaml.safe_dump(found, sort_keys=False), encoding="utf-8")
    print("\n".join(list_bounds()))
