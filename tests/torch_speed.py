"""One process of a speed test: trains a BERT of 6 layers in as many stages as there are processes.

python torch_speed.py RANK WORLD ADDRESS prints the planned seconds of a step. Then it trains one step for each line of
its standard input, and prints its seconds. A single process trains the unmodified model with the same micro-batches.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

MICRO_BATCHES, BATCH, LENGTH, WIDTH, WORDS, LAYERS = 8, 32, 64, 256, 4000, 6


def main(rank: int, world: int, address: str) -> None:
    """One rank."""
    sys.path.insert(0, str(Path(__file__).parent))
    import torch
    import torch_models

    torch.set_num_threads(1)
    torch.manual_seed(0)
    torch_models.BATCH, torch_models.LENGTH, torch_models.WIDTH, torch_models.WORDS = BATCH, LENGTH, WIDTH, WORDS
    inputs = torch_models.ids(), torch.rand(BATCH, LENGTH) > 0.2
    case = torch_models.Case(torch_models.Encoder(LAYERS), inputs, torch_models.ids(), torch_models.words, draws=True)
    step, planned = (whole(case), 0.0) if world == 1 else cut(case, rank, world, address)
    print(planned, flush=True)
    for _ in sys.stdin:
        began = time.perf_counter()
        step()
        print(time.perf_counter() - began, flush=True)


def whole(case: Any) -> Callable[[], Any]:
    """A step of the unmodified model."""
    from torch_models import slices

    def step() -> None:
        case.model.zero_grad()
        for number in range(MICRO_BATCHES):
            inputs, targets = slices((case.inputs, case.targets), number, MICRO_BATCHES)
            case.loss(case.model(*inputs), targets).backward()
        for parameter in case.model.parameters():
            parameter.grad /= MICRO_BATCHES

    return step


def cut(case: Any, rank: int, world: int, address: str) -> tuple[Callable[[], Any], float]:
    """A step of the pipeline, and the seconds that it is planned to take."""
    import torch.distributed as dist

    from suite.comm.partition.torch import partition

    dist.init_process_group("gloo", init_method=f"tcp://{address}", rank=rank, world_size=world)
    options = {"loss": case.loss, "stages": world, "micro_batches": MICRO_BATCHES}
    pipeline = partition(case.model, case.inputs, case.targets, **options)
    measured = pipeline.calibrate(case.inputs, case.targets)
    if rank == 0:
        print(pipeline.plan, measured, sep="\n", file=sys.stderr)
    return lambda: pipeline.step(case.inputs, case.targets), measured.seconds


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
