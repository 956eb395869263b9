"""`suite plan`: show what a command would run and what is missing for it, without running anything."""

import argparse
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from suite import published
from suite.contract import CountsEpochs, MissingError, Task, UserError
from suite.launch import checks
from suite.launch.premises import check_places, describe_task, format_count, list_missing
from suite.projection import baseline as plan_baseline
from suite.projection import measured, memory, project
from suite.projection import partition as plan_partition
from suite.published import Row, papers
from suite.record import record
from suite.settings import recipes
from suite.settings.configure import resolve
from suite.settings.effects import hash_run
from suite.settings.run import AnyRun, BaselineRun, Run

HELP = """Show what the command without `plan` would run: parameters, steps, samples and epochs, what each device
receives and sends, the step time of the most similar run under runs/, and what bounds it. With network= (a file of
conf/network), also the projected step time on that network; the computation of one device is taken from
compute_seconds= or from a run under runs/. With partition=, the stages into which the model is cut; --picture draws
them. With experiment=, the published row that the run repeats; at paper scale, the numbers of devices that papers used.
One line for each warning (settings that are neither published nor tuned, less than one epoch, more memory than a device
has, as estimated) and for each thing that is missing here (data, devices, a framework). Nothing is trained or
allocated; only partition= and optimizer=external import a framework. Exit codes: 0 the command would run here, 1
something is missing here (the plan is still printed), 2 the command cannot run anywhere."""


def main(arguments: Sequence[str]) -> int:
    """Print the plan."""
    parser = argparse.ArgumentParser(prog="suite plan", description=HELP)
    parser.add_argument("overrides", nargs="+", metavar="key=value", help="as for a run")
    parser.add_argument("--json", action="store_true", help="print one JSON object, with the whole configuration")
    parser.add_argument("--config-dir", type=Path, metavar="DIR", help="your own configuration groups")
    parser.add_argument("--picture", type=Path, metavar="FILE.svg", help="with partition=: draw the stages and a step")
    chosen = parser.parse_intermixed_args(arguments)
    run = resolve(chosen.overrides, chosen.config_dir)
    planned = describe_plan(run, papers.find_repeated(chosen.overrides), chosen.picture, chosen.config_dir)
    if chosen.json:
        print(record.format_json(planned, indent=1))
    else:
        print("\n".join(format_plan(planned, run, chosen.config_dir)))
    return 1 if planned["missing"] else 0


def describe_plan(
    run: AnyRun, row: Row | None = None, picture: Path | None = None, directory: Path | None = None
) -> dict[str, Any]:
    """Describe the run of a configuration.

    Args:
        run: the run.
        row: the published row that the run repeats, if any.
        picture: the file for a picture of the stages; None: none.
        directory: the user's own configuration groups, for the commands in errors.

    Returns:
        The plan as `--json` prints it; sizes are in bytes, times in seconds.

    Raises:
        UserError: if the run cannot work anywhere, for example because world= does not divide the batch; or if there is
            nothing to draw.
    """
    if picture and not (isinstance(run, Run) and run.partition):
        raise UserError("--picture: without partition= there are no stages to draw; set partition=auto as well")
    task, absent = describe_task(run, directory)
    try:
        checks.check_run(run, task)
    except MissingError as error:
        absent.append(str(error))
    if isinstance(run, BaselineRun):
        return plan_baseline.plan_baseline(run, task, absent)
    check_places(run)
    if run.partition:
        return plan_partition.plan_partition(run, task, absent, list_missing(run), picture)
    shapes, layers = task.shapes(), task.layers()
    counts = {name: math.prod(spec.shape) for name, spec in shapes.items()}
    trained = {name for name, spec in shapes.items() if spec.kind == "parameter"}
    parameters = sum(counts[name] for name in trained)
    steps, samples = run.max_steps, run.max_steps * task.batch_size
    on_network = project.place_ranks(run)
    alone = measured.find_measured(measured.take_share(run)) if run.network else None
    projected = project.project_step(on_network, task, alone) if run.network else None
    return {
        "task": task.name,
        "data": str(task.data) if not absent else task.data.name,
        "parameters": parameters,
        "state_bytes": 8
        * sum(-(-counts[name] // run.world) if shapes[name].placement == "rows" else counts[name] for name in trained),
        "buffers": sum(counts[name] for name in shapes if name not in trained),
        "layers": dict(Counter(layer.kind for layer in layers.values())),
        "covered_parameters": sum(counts[name] for layer in layers.values() for name in layer.parameters),
        "targets": [str(target) for target in task.targets],
        "steps": steps,
        "samples": samples,
        "epochs": steps / epoch if (epoch := epoch_steps(task)) else None,
        "batch_size": task.batch_size,
        "batch_per_device": task.batch_size // run.world,
        "micro_batch": task.batch_size // run.world // run.accumulate,
        "gradient_bytes_per_step": gradient_bytes(on_network, task),
        "optimizer_bytes_per_step": project.optimizer_bytes(project.list_refreshes(on_network, task)),
        "measured": measured.find_measured(run),
        "projected": projected,
        "parts": measured.split_step(run, projected),
        "published": asdict(row) if row else None,
        "published_devices": papers.list_devices(published.find_rows(task.name), batch_size=task.batch_size),
        "memory": memory.estimate_memory(run, task),
        "warnings": list_warnings(run, task),
        "missing": [*absent, *list_missing(run)],
        "hash": hash_run(project.without_projection(run)),
        "config": project.without_projection(run).plain(),
    }


def list_warnings(run: Run, task: Task) -> list[str]:
    """Warnings about a run: untuned settings, less than an epoch, too little memory."""
    messages = [recipes.warn_untuned(run)] if recipes.warn_untuned(run) else []
    steps, epoch = run.max_steps, epoch_steps(task)
    if epoch and steps < epoch:
        messages.append(
            f"{steps:,} steps of {task.batch_size:,} {task.data.unit} are {steps / epoch:.4g} of an epoch; for a whole "
            f"epoch, set max_steps={math.ceil(epoch)}"
        )
    recipe_epochs = run.tuning.epochs
    if epoch and recipe_epochs and not recipe_epochs / 2 <= steps / epoch <= 2 * recipe_epochs:
        messages.append(
            f"{steps:,} steps are {steps / epoch:.3g} epochs of this data, but the recipe trains {recipe_epochs:g} "
            f"epochs; set max_steps={math.ceil(recipe_epochs * epoch)}"
        )
    if "outside" in run.optimizer.needs and memory.count_outside_state(run, task) is None:
        messages.append(f"memory: the state of {run.optimizer.name} is not counted, because no step can be made here")
    if excess := memory.describe_excess(run, task):
        messages.append(excess)
    return messages


def epoch_steps(task: Task) -> float | None:
    """Steps of one pass over the training data; None if unknown."""
    if isinstance(task, CountsEpochs):
        return task.epoch_steps
    return task.data.samples["train"] / task.batch_size


def gradient_bytes(run: Run, task: Task) -> dict[str, int]:
    """Bytes that one reduction of the gradients sends, by the ledger's formulas.

    Returns:
        `each`: bytes sent by rank 0. `all`: this number times `world`. With a leader topology, rank 0 is a leader;
        `all` then counts every rank as a leader.
    """
    rank_bytes = sum(item.sent for bucket in project.list_gradients(run, task) for item in bucket.entries)
    return {"each": rank_bytes, "all": rank_bytes * run.world}


def format_plan(planned: Mapping[str, Any], run: AnyRun, directory: Path | None = None) -> list[str]:
    """Return the plan as lines of text; commands in it repeat the directory of the user's own configuration groups."""
    if isinstance(run, BaselineRun):
        return plan_baseline.format_plan(planned, run)
    if run.partition:
        return plan_partition.format_plan(planned, run)
    sent, near = planned["gradient_bytes_per_step"], planned["measured"]
    head = [planned["task"], run.scale, planned["data"], run.optimizer.name, run.backend, run.precision]
    layers = ", ".join(f"{count} {kind}" for kind, count in planned["layers"].items())
    wire = f"{sent['each']:,} bytes a step and device for the gradients, {sent['all']:,} for all devices"
    wire += project.optimizer_text(planned["optimizer_bytes_per_step"])
    if run.comm.policy:
        wire += f"; comm={run.comm.name} chooses a mode during the run; its trials send more"
    time = "unknown: runs/ has no run of the same task, optimizer, backend and number of devices on an idle machine"
    if near:
        differs = f"; that run differs in {', '.join(near['differs'])}" if near["differs"] else ""
        total = planned["steps"] * near["step_seconds"]
        step = f"{1000 * near['step_seconds']:.1f} ms a step"
        waits = "" if near["input_share"] is None else f", {100 * near['input_share']:.0f} % of it waiting for batches"
        time = f"{total:,.0f} s of training, at {step}{waits}, as in {near['result']}{differs}"
    projection: list[str] = []
    if projected := planned["projected"]:
        one_device = measured.name_command(measured.take_share(run), run.optimizer.name, directory)
        projection += project.format_projection(projected, one_device)
    if not run.compute_seconds and (projected["compute_seconds"] if projected else near):
        projection.append(measured.format_parts(planned["parts"], run, bool(projected), directory))
    paper = []
    if planned["published"]:
        contents, source = papers.format_row(Row(**planned["published"]))
        paper += [f"published   {contents}", f"            {source}"]
    if run.scale == "paper" and not (planned["published"] or {}).get("devices"):
        used = papers.format_devices(planned["published_devices"], batch_size=planned["batch_size"], world=run.world)
        paper.append(f"papers used {used}")
    return [
        " · ".join([*head, format_count(run.world, "device"), f"comm {run.comm.name}"]),
        f"parameters  {planned['parameters']:,}, and {planned['buffers']:,} numbers in buffers",
        _memory(planned["memory"], run.precision),
        f"layers      {layers}: {planned['covered_parameters']:,} parameters that a curvature method can cover",
        f"steps       {planned['steps']:,} at most, of {planned['batch_size']:,} samples: {_epochs(planned['epochs'])}",
        f"targets     {', '.join(planned['targets']) or 'none'}",
        f"tuning      {run.tuning.source}, {format_count(run.tuning.trials, 'trial')}",
        f"device      {planned['batch_per_device']:,} samples a step, in micro-batches of {planned['micro_batch']:,}",
        f"sent        {wire if run.world > 1 else 'nothing: one device'}",
        f"time        {time}",
        *projection,
        *paper,
        *(f"warning: {message}" for message in planned["warnings"]),
        *(f"missing: {reason}" for reason in planned["missing"]),
    ]


def _epochs(count: float | None) -> str:
    return "epochs unknown without the data" if count is None else f"{count:.3g} epoch(s)"


def _memory(needed: Mapping[str, int], precision: str) -> str:
    """Return the line with the estimated memory of one device and its parts."""
    parts = {name: memory.format_gib(count) for name, count in needed.items()}
    stored = "parameters, gradients and copies in bfloat16" if precision == "bfloat16" else "parameters and gradients"
    activations = f"activations of a micro-batch {parts['activations']}"
    if not needed["activations"]:
        activations = "activations not counted: the task does not estimate them"
    return (
        f"memory      about {memory.format_gib(sum(needed.values()))} GiB on each device: {stored} "
        f"{parts['parameters']}, optimizer {parts['optimizer']}, {activations}; not counted: kernels' work space and "
        "the framework"
    )
