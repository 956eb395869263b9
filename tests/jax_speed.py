"""One process of a speed test: trains a BERT of 6 layers in as many stages as there are processes.

python jax_speed.py RANK WORLD ADDRESS prints the predicted seconds of a step and those of each step after the first
two, as JSON.
"""

import json
import os
import sys
import time
from pathlib import Path

STEPS, MICRO_BATCHES, BATCH, LENGTH, WIDTH, WORDS = 8, 8, 32, 64, 256, 4000


def main(rank: int, world: int, address: str) -> None:
    """One rank."""
    import jax

    jax.config.update("jax_platforms", "cpu")
    if world > 1:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(address, world, rank)
    sys.path.insert(0, str(Path(__file__).parent))
    import jax_models

    jax_models.BATCH, jax_models.LENGTH, jax_models.WIDTH, jax_models.WORDS = BATCH, LENGTH, WIDTH, WORDS
    from suite.comm.partition.jax import partition

    case = jax_models.bert(jax_models.Draw())
    pipeline = partition(case.function, case.params, case.inputs, stages=world, micro_batches=MICRO_BATCHES)
    measured = pipeline.calibrate(*case.inputs)
    seconds = []
    for _ in range(STEPS):
        began = time.perf_counter()
        jax.block_until_ready((pipeline.step(*case.inputs), pipeline.gradients))
        seconds.append(time.perf_counter() - began)
    if not rank:
        print(pipeline.plan, measured, sep="\n", file=sys.stderr)
        print(json.dumps({"predicted": measured.seconds, "seconds": seconds[2:]}), flush=True)
    os._exit(0)  # gloo's threads abort in the interpreter's own clean-up now and then


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
