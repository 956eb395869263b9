"""One rank of a pipeline that trains a case (a job of pool.py), and what differs from the unmodified model.

A job is {"case", "stages", "micro_batches", "schedule", "steps", "die": [rank, step] or null, "comm": changes of
comm=float32 or null, "activations": a codec's module and options or null, "calibrate": whether to measure the stages
first, "average_buffers": whether micro-batches start from the step's old buffers}.
"""

import os
import signal
from typing import Any

import pool

DEADLINE = pool.MEET  # seconds that a rank waits for another


def start(world: int, function: str = "torch_ranks.train", **job: Any) -> list[dict[str, Any]]:
    """Run a job on `world` processes; each rank's answer. A rank that fails answers {"error": its error}."""
    answers = pool.ask("torch", world, function, job)
    return [{"error": answer.text} if isinstance(answer, pool.Failure) else answer for answer in answers]


def train(backend: str, rank: int, world: int, job: dict[str, Any]) -> dict[str, Any]:
    """Train; returns what this rank saw."""
    import engines
    import torch
    from torch_models import made, slices
    from wired import Task

    from suite.comm import setup
    from suite.comm.partition.torch import partition

    torch.set_num_threads(1)
    case, plain = made(job["case"]), made(job["case"]).model
    count = job["micro_batches"]
    channels = None
    if job.get("comm"):
        channels = setup.make_channels(engines.comm(**job["comm"]), Task(1), world, backend)  # type: ignore[arg-type]
    activations = setup.make_codec(engines.part(**job["activations"]), backend) if job.get("activations") else None
    pipeline = partition(
        case.model,
        case.inputs,
        case.targets,
        loss=case.loss,
        micro_batches=count,
        stages=job["stages"],
        schedule=job["schedule"],
        channels=channels,
        activations=activations,
        outputs=True,
        average_buffers=job.get("average_buffers", False),
        deadline=DEADLINE,
    )
    measured = pipeline.calibrate(case.inputs, case.targets, steps=1) if job.get("calibrate") else pipeline.plan
    mine = torch.optim.SGD(pipeline.parameters(), lr=0.1) if list(pipeline.parameters()) else None
    other = torch.optim.SGD(plain.parameters(), lr=0.1)
    different: set[str] = set()
    furthest = 0.0
    losses, equal, seeds = [], [], set()
    for step in range(job["steps"]):
        if job.get("die") == [rank, step]:
            os.kill(os.getpid(), signal.SIGKILL)
        loss = pipeline.step(case.inputs, case.targets)
        other.zero_grad()
        total, results = 0.0, {}
        old = {name: buffer.clone() for name, buffer in plain.named_buffers()}
        sums = {name: torch.zeros_like(buffer) for name, buffer in old.items()}
        for number in range(count):
            if job.get("average_buffers"):
                plain.load_state_dict(old, strict=False)
            inputs, targets = slices((case.inputs, case.targets), number, count)
            torch.manual_seed(pipeline.seed_of(step, number))
            seeds.add(pipeline.seed_of(step, number))
            outputs = plain(*inputs)
            value = case.loss(outputs, targets) if case.loss else outputs
            value.backward()
            total += value.item()
            results[number] = outputs.detach()
            for name, buffer in plain.named_buffers():
                sums[name] += buffer
        if job.get("average_buffers"):
            plain.load_state_dict({name: value / count for name, value in sums.items()}, strict=False)
        losses.append([loss.item(), total / count])
        assert len(seeds) == (step + 1) * count, "two micro-batches draw the same numbers"
        equal += [torch.equal(result, results[number]) for number, result in pipeline.outputs.items()]
        whole = dict(plain.named_parameters())
        for parameter in whole.values():
            parameter.grad = None if parameter.grad is None else parameter.grad / count
        norm = torch.stack([p.grad.norm() for p in whole.values() if p.grad is not None]).norm()
        for name, parameter in pipeline.named_parameters():
            mean, expected = parameter.grad, whole[name].grad
            assert mean is not None and expected is not None
            if not torch.equal(mean, expected):
                different.add(name)
                furthest = max(furthest, ((mean - expected).norm() / norm).item())
        if mine:
            mine.step()
        other.step()
    place, buffers = pipeline.place, dict(plain.named_buffers())
    return {
        "place": [place.pipeline, place.stage, place.replica],
        "parameters": [name for name, _ in pipeline.named_parameters()],
        "different": sorted(different),
        "furthest": furthest,
        "buffers": {name: (buffer - buffers[name]).double().norm().item() for name, buffer in pipeline.named_buffers()},
        "gradients": [p.grad.double().sum().item() for p in pipeline.parameters() if p.grad is not None],
        "residuals": sorted(pipeline.replicas.residuals),
        "losses": losses,
        "outputs": equal,
        "received": [stage.received for stage in pipeline.plan.stages],
        "returned": [stage.returned for stage in pipeline.plan.stages],
        "replicas": [stage.replicas for stage in pipeline.plan.stages],
        "measured": [seconds for stage in measured.stages for seconds in (stage.forward, stage.backward)],
        "predicted": measured.seconds,
        "sent": pipeline.ledger.sent,
    }
