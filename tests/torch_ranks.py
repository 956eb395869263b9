"""One rank of a pipeline that trains a case; prints what differs from the unmodified model, as one line of JSON.

python torch_ranks.py JOB RANK WORLD FILE; JOB is JSON: {"case", "stages", "micro_batches", "schedule", "steps", "die":
[rank, step] or null, "comm": changes of comm=float32 or null, "activations": a codec's module and options or
null, "calibrate": whether to measure the stages first}; FILE is the store of the processes' rendezvous.
"""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any

DEADLINE = 60  # seconds that a rank waits for another


def start(world: int, timeout: float = 600, script: str = __file__, **job: Any) -> list[dict[str, Any]]:
    """Run a job on `world` processes; each rank's answer. A rank that dies answers {"error": its last error}."""
    with tempfile.TemporaryDirectory() as folder:
        variables = {**os.environ, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, script, json.dumps(job)]
        processes = [
            subprocess.Popen(
                [*command, str(rank), str(world), f"{folder}/store"],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=variables,
            )
            for rank in range(world)
        ]
        answers = []
        for process in processes:
            try:
                printed, errors = process.communicate(timeout=timeout)
            except subprocess.TimeoutExpired:
                for other in processes:
                    other.kill()
                raise
            lines = (printed if process.returncode == 0 else errors).strip().splitlines()
            said = [line for line in lines if re.match(r"\[rank\d+\]: [\w.]+: ", line)] or lines or [""]
            answers.append(json.loads(lines[-1]) if process.returncode == 0 else {"error": said[-1]})
        return answers


def main(job: dict[str, Any], rank: int, world: int, store: str) -> None:
    """Train, and print what this rank saw."""
    import engines
    import torch
    import torch.distributed as dist
    from torch_models import made, slices
    from wired import Task

    from suite.comm import setup
    from suite.comm.partition.torch import partition

    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=world, timeout=timedelta(seconds=DEADLINE)
    )
    case, plain = made(job["case"]), made(job["case"]).model
    count = job["micro_batches"]
    channels = None
    if job.get("comm"):
        channels = setup.channels(engines.comm(**job["comm"]), Task(1), world, "torch")  # type: ignore[arg-type]
    activations = setup.codec(job["activations"], "torch") if job.get("activations") else None
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
        for number in range(count):
            inputs, targets = slices((case.inputs, case.targets), number, count)
            torch.manual_seed(pipeline.seed_of(step, number))
            seeds.add(pipeline.seed_of(step, number))
            outputs = plain(*inputs)
            value = case.loss(outputs, targets) if case.loss else outputs
            value.backward()
            total += value.item()
            results[number] = outputs.detach()
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
    place = pipeline.place
    answer = {
        "place": [place.pipeline, place.stage, place.replica],
        "parameters": [name for name, _ in pipeline.named_parameters()],
        "different": sorted(different),
        "furthest": furthest,
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
    print(json.dumps(answer))
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parent)]
    main(json.loads(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
