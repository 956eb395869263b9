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
from suite.record import record


def plan(
    config: Mapping[str, Any],
    task: Task,
    options: Mapping[str, Any],
    absent: Sequence[str],
    missing: Sequence[str],
    picture: Path | None = None,
) -> dict[str, Any]:
    """Plan the stages; the framework of the run's backend traces the model.

    Args:
        config: of the run.
        task: made from it.
        options: keys of a projection; `network` is used.
        absent: the data that is missing.
        missing: what else this machine lacks.
        picture: the SVG file for a picture of the plan; None: none.

    Raises:
        UserError: if the model cannot be cut, does not fit, or its data is missing.
        WriteError: if the picture cannot be written.
    """
    if absent:
        raise UserError(f"partition={config['partition']['name']}: a plan needs one batch; {absent[0]}")
    links = network.make(options["network"]) if "network" in options else ONE_HOST
    planned = load.half("suite.engine.pipeline", f"{config['backend']}_plan").plan(task, config, links)
    if picture:
        disk.replace(picture, draw_plan(planned))
    specs = task.shapes().values()
    return {
        "task": task.name,
        "data": str(task.data),
        "parameters": sum(math.prod(spec.shape) for spec in specs if spec.kind == "parameter"),
        "steps": config["max_steps"],
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
        "hash": record.config_hash(config),
        "config": dict(config),
    }


def lines(planned: Mapping[str, Any]) -> list[str]:
    """The plan as lines of text."""
    config = planned["config"]
    head = [planned["task"], config["scale"], planned["data"], config["optimizer"]["name"], config["backend"]]
    return [
        " · ".join([*head, f"{config['world']:,} devices", f"network {planned['network']}"]),
        f"parameters  {planned['parameters']:,}",
        *planned["table"].splitlines(),
        f"steps       {planned['steps']:,} at most",
        f"targets     {', '.join(planned['targets']) or 'none'}",
        *(f"missing: {reason}" for reason in planned["missing"]),
    ]
