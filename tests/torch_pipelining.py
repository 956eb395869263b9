"""One rank of a pipeline that torch.distributed.pipelining has cut; prints what differs from the unmodified model.

python torch_pipelining.py JOB RANK WORLD FILE, as torch_ranks.py; JOB is JSON: {"case", "cuts": modules before which it
is cut, "micro_batches"}. The answer is {"losses": relative differences, "gradients": of the gradients by parameter}.
"""

import json
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

DEADLINE = 60  # seconds that a rank waits for another


def main(job: dict[str, Any], rank: int, world: int, store: str) -> None:
    """Run forward and backward once with the schedule GPipe."""
    import torch
    import torch.distributed as dist
    from torch.distributed.pipelining import ScheduleGPipe, SplitPoint, pipeline
    from torch_models import made, slices

    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=world, timeout=timedelta(seconds=DEADLINE)
    )
    case, plain, count = made(job["case"]), made(job["case"]).model, job["micro_batches"]
    first, _ = slices((case.inputs, case.targets), 0, count)
    cut = pipeline(case.model, mb_args=first, split_spec=dict.fromkeys(job["cuts"], SplitPoint.BEGINNING))
    stage = cut.build_stage(rank, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, count, loss_fn=case.loss)
    losses: list[Any] = []
    inputs = case.inputs if rank == 0 else ()
    targets = {"target": case.targets, "losses": losses} if rank == world - 1 else {}
    schedule.step(*inputs, **targets)
    expected = []
    for number in range(count):
        arguments, answers = slices((case.inputs, case.targets), number, count)
        loss = case.loss(plain(*arguments), answers) if case.loss else plain(*arguments)
        loss.backward()
        expected.append(loss.item())
    whole = dict(plain.named_parameters())
    distances = {}
    for name, parameter in stage.submod.named_parameters():
        if name in whole and parameter.grad is not None:
            reference = whole[name].grad / count
            distances[name] = ((parameter.grad - reference).norm() / reference.norm()).item()
    mine = [abs(loss.item() / other - 1) for loss, other in zip(losses, expected, strict=False)]
    print(json.dumps({"losses": mine, "gradients": distances}))
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parent)]
    main(json.loads(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
