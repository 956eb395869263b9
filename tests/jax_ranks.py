"""One process of a pipeline: trains a step of each case, and compares it with the same stages in one process.

python jax_ranks.py jax RANK WORLD ADDRESS OUT CASES, where CASES is JSON: {title: [case, stages, devices, recompute,
schedule]}. Writes OUT/RANK.json: {title: {"loss", "paths": of its parameters, "different": paths of gradients that have
other bits}}. With `partition` in place of CASES, it writes what the public function does. With `dies`, rank 1 is killed
in the second step, and the other ranks write the error and the seconds that it took.
"""

import dataclasses
import json
import os
import signal
import sys
import time
from pathlib import Path


def main(rank: str, world: str, address: str, out: str, cases: str) -> None:
    """One rank."""
    sys.path.insert(0, str(Path(__file__).parent))
    import conftest  # noqa: F401  (environment)

    os.environ.pop("XLA_FLAGS", None)
    from suite import load

    processes = load.half("suite.engine.ranks", "jax")
    processes.connect(int(rank), int(world), address, 60)
    if cases == "dies":
        result = dies(int(rank))
    elif cases == "partition":
        result = public()
    else:
        result = {title: compared(*case) for title, case in json.loads(cases).items()}
    (Path(out) / f"{rank}.json").write_text(json.dumps(result))
    if cases != "dies":
        processes.disconnect()  # waits for the other ranks: jax ends them when rank 0 ends


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


def public() -> dict[str, object]:
    """The plan and the loss of `partition`, and the error for a request that cannot be met."""
    from jax_models import CASES, Draw

    from suite.comm.partition.jax import partition, run
    from suite.contract import UserError

    case = CASES["swapped"](Draw())
    pipeline = partition(case.function, case.params, case.inputs, stages=2, micro_batches=4)
    loss = pipeline.step(*case.inputs)
    assert float(loss) == float(run(pipeline.traced, pipeline.plan, case.params, case.inputs)[0])
    try:
        partition(case.function, case.params, case.inputs, stages=3)
    except UserError as error:
        return {"plan": dataclasses.asdict(pipeline.plan), "loss": float(loss), "error": str(error)}
    return {}


def dies(rank: int) -> dict[str, object]:
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


if __name__ == "__main__":
    main(*sys.argv[2:])
    os._exit(0)  # gloo's threads abort in the interpreter's own clean-up now and then
