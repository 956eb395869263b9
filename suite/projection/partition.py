"""`suite plan` for a model that is cut into the stages of a pipeline; the devices need not exist."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from suite import disk, load
from suite.comm.partition.device import ONE_HOST
from suite.comm.partition.picture import draw_plan
from suite.comm.projection import network
from suite.contract import Task, UserError
from suite.projection.project import without_projection
from suite.settings.effects import hash_run
from suite.settings.run import Run


def plan_partition(
    run: Run,
    task: Task,
    absent: Sequence[str],
    missing: Sequence[str],
    picture: Path | None = None,
) -> dict[str, Any]:
    """Plan the stages; the framework of the run's backend traces the model.

    Args:
        run: the run.
        task: made from it.
        absent: the data that is missing.
        missing: what else this machine lacks.
        picture: the SVG file for a picture of the plan; None: none.

    Raises:
        UserError: if the model cannot be cut, does not fit, or its data is missing.
        WriteError: if the picture cannot be written.
    """
    if absent:
        raise UserError(f"partition={run.partition.name if run.partition else ''}: a plan needs one batch; {absent[0]}")
    links = network.make_network(run.network) if run.network else ONE_HOST
    planned = load.load_half("suite.engine.pipeline", f"{run.backend}_plan").plan(task, run, links)
    if picture:
        disk.replace_file(picture, draw_plan(planned))
    specs = task.shapes().values()
    return {
        "task": task.name,
        "data": str(task.data),
        "parameters": sum(math.prod(spec.shape) for spec in specs if spec.kind == "parameter"),
        "steps": run.max_steps,
        "targets": [str(target) for target in task.targets],
        "network": links.name,
        "table": str(planned),
        "partition": {
            "stages": [{**asdict(stage), "nodes": len(stage.nodes)} for stage in planned.stages],
            "pipelines": planned.pipelines,
            "micro_batches": planned.micro_batches,
            "step_seconds": planned.seconds,
            "samples_per_second": planned.throughput,
            "bubble": planned.bubble,
            "balance": planned.balance,
        },
        "missing": list(missing),
        "hash": hash_run(without_projection(run)),
        "config": run.plain(),
    }


def format_plan(planned: Mapping[str, Any], run: Run) -> list[str]:
    """Return the plan as lines of text."""
    head = [planned["task"], run.scale, planned["data"], run.optimizer.name, run.backend]
    return [
        " · ".join([*head, f"{run.world:,} devices", f"network {planned['network']}"]),
        f"parameters  {planned['parameters']:,}",
        *planned["table"].splitlines(),
        f"steps       {planned['steps']:,} at most",
        f"targets     {', '.join(planned['targets']) or 'none'}",
        *(f"missing: {reason}" for reason in planned["missing"]),
    ]
