"""One rank of a pipeline that torch.distributed.pipelining has cut (a job of pool.py), beside the unmodified model.

A job is {"case", "cuts": modules before which it is cut, "micro_batches"}. The answer is {"losses": relative
differences, "gradients": of the gradients by parameter}.
"""

from typing import Any


def train(backend: str, rank: int, world: int, job: dict[str, Any]) -> dict[str, Any]:
    """Run forward and backward once with the schedule GPipe."""
    import torch
    from torch.distributed.pipelining import ScheduleGPipe, SplitPoint, pipeline
    from torch_models import made, slices

    torch.set_num_threads(1)
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
    return {"losses": mine, "gradients": distances}
