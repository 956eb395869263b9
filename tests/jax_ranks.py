"""Jobs of pool.py: one process of a pipeline in jax trains, and compares itself with the same stages in one process."""

import dataclasses
import os
import signal
import time


def compare(
    backend: str, rank: int, world: int, cases: dict[str, tuple[str, int, int, bool, str]]
) -> dict[str, dict[str, object]]:
    """A step of each case, {title: [case, stages, devices, recompute, schedule]}.

    Returns {title: {"loss", "paths": of its parameters, "different": paths of gradients that have other bits}}.
    """
    return {title: compared(*case) for title, case in cases.items()}


def compared(name: str, stages: int, devices: int, recompute: bool, schedule: str) -> dict[str, object]:
    """A step of a pipeline beside the same stages in this process alone."""
    import numpy as np
    from jax_cuts import planned, traced
    from jax_models import CASES, Draw

    from suite.comm.partition.jax.alone import run
    from suite.comm.partition.jax.pipeline import Pipeline

    case = CASES[name](Draw())
    made = traced(case)
    cut = planned(made.graph, stages, recompute, schedule, devices)  # type: ignore[arg-type]
    pipeline = Pipeline(made, cut, case.params)
    loss = pipeline.step(*case.inputs)
    expected_loss, expected = run(made, cut, case.params, case.inputs)
    assert float(loss) == float(expected_loss), (float(loss), float(expected_loss))
    different = [
        path for path, grad in pipeline.gradients.items() if not np.array_equal(np.asarray(grad), expected[path])
    ]
    return {"loss": float(loss), "paths": sorted(pipeline.gradients), "different": different, "all": sorted(expected)}


def partition(backend: str, rank: int, world: int) -> dict[str, object]:
    """Return the plan and the loss of `partition`, and the error for a request that cannot be met."""
    from jax_models import CASES, Draw

    from suite.comm.partition import jax as public
    from suite.contract import UserError

    case = CASES["swapped"](Draw())
    pipeline = public.partition(case.function, case.params, case.inputs, stages=2, micro_batches=4)
    loss = pipeline.step(*case.inputs)
    assert float(loss) == float(public.run(pipeline.traced, pipeline.plan, case.params, case.inputs)[0])
    try:
        public.partition(case.function, case.params, case.inputs, stages=3)
    except UserError as error:
        return {"plan": dataclasses.asdict(pipeline.plan), "loss": float(loss), "error": str(error)}
    return {}


def die(backend: str, rank: int, world: int) -> dict[str, object]:
    """Kill rank 1 after the first step; return the other ranks' errors and how many seconds they waited."""
    from jax_cuts import planned, traced
    from jax_models import CASES, Draw

    from suite.comm.partition.jax.pipeline import Pipeline
    from suite.comm.partition.peers import PeerLost

    case = CASES["swapped"](Draw())
    made = traced(case)
    pipeline = Pipeline(made, planned(made.graph, 3, False), case.params)
    pipeline.step(*case.inputs)
    if rank == 1:
        time.sleep(1)
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()
    try:
        pipeline.step(*case.inputs)
    except PeerLost as error:
        return {"error": str(error), "seconds": time.monotonic() - began}
    return {"error": "", "seconds": 0.0}
