"""`suite plan`: what a command would run, and what is missing for it, without running anything."""

import argparse
import json
import math
import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from suite import configure, load, projection, published, record, run
from suite.contract import Task, UserError
from suite.published import Row
from suite.verbs import papers, plan_baseline

RANKS_PER_CORE = 4  # ranks that may share a core: slow, but their numbers hold
HELP = """Say what the same words would run without `plan`: parameters, steps, samples and epochs, what each device
gets and sends, and how long a step took in the most similar run found under runs/. With network= (a file of
conf/network) also what a step would take there, from what one device computes: compute_seconds=, or its run under
runs/. With experiment=, the published row that it repeats; at paper scale, the devices that papers used. Everything
that is missing here (data, devices, a framework) is one line. Nothing is trained or allocated, and no framework is
loaded. Exit codes: 0 the command would run here, 1 something is missing here (each thing is named; the plan is printed
all the same), 2 a command that could not run anywhere."""


def main(arguments: Sequence[str]) -> int:
    """0 would run here, 1 something is missing here."""
    parser = argparse.ArgumentParser(prog="suite plan", description=HELP)
    parser.add_argument("overrides", nargs="+", metavar="key=value", help="as for a run")
    parser.add_argument("--json", action="store_true", help="one object, the whole configuration included")
    parser.add_argument("--config-dir", type=Path, metavar="DIR", help="your own configuration groups")
    chosen = parser.parse_intermixed_args(arguments)
    config = configure.compose(chosen.overrides, chosen.config_dir)
    configure.refuse_foreign(config.get("optimizer"), chosen.overrides, chosen.config_dir)
    found = plan(config, papers.repeated(chosen.overrides))
    if chosen.json:
        print(json.dumps(found, indent=1))
    else:
        print("\n".join(lines(found)))
    return 1 if found["missing"] else 0


def plan(config: Mapping[str, Any], row: Row | None = None) -> dict[str, Any]:
    """What the configuration would run, and the published row that it repeats, if it does.

    Raises:
        UserError: where it could not run anywhere, for example because the batch cannot be shared out.
    """
    config, asked = projection.split(config)
    task, absent = describe(config)
    if "baseline" in config:
        return plan_baseline.plan(config, task, absent)
    shapes, layers = task.shapes(), task.layers()
    counts = {name: math.prod(spec.shape) for name, spec in shapes.items()}
    trained = {name for name, spec in shapes.items() if spec.kind == "parameter"}
    parameters = sum(counts[name] for name in trained)
    steps, samples = config["max_steps"], config["max_steps"] * task.batch_size
    there = projection.placed(config, asked)
    return {
        "task": task.name,
        "data": str(task.data) if not absent else task.data.name,
        "parameters": parameters,
        "state_bytes": 8
        * sum(
            -(-counts[name] // config["world"]) if shapes[name].placement == "rows" else counts[name]
            for name in trained
        ),
        "buffers": sum(counts[name] for name in shapes if name not in trained),
        "layers": dict(Counter(layer.kind for layer in layers.values())),
        "covered_parameters": sum(counts[name] for layer in layers.values() for name in layer.parameters),
        "targets": [str(target) for target in task.targets],
        "steps": steps,
        "samples": samples,
        "epochs": samples / task.data.samples["train"],
        "batch_size": task.batch_size,
        "batch_per_device": task.batch_size // config["world"],
        "micro_batch": task.batch_size // config["world"] // config["accumulate"],
        "gradient_bytes_per_step": gradient_bytes(there, task),
        "optimizer_bytes_per_step": projection.optimizer_bytes(projection.refreshes(there, task)),
        "measured": measured(config),
        "projected": projection.project(there, task, asked, measured(_share(config))) if asked else None,
        "published": asdict(row) if row else None,
        "published_devices": papers.devices(published.rows_for(task.name), batch_size=task.batch_size),
        "missing": [*absent, *missing(config)],
        "hash": record.config_hash(config),
        "config": dict(config),
    }


def describe(config: Mapping[str, Any]) -> tuple[Task, list[str]]:
    """The task, and what is missing of its data. A task that reads a directory can describe itself without it.

    Raises:
        UserError: for a configuration that no data would mend.
    """
    node = config["task"]
    try:
        return run.make_task(config), []
    except UserError as error:
        if "data_dir" not in node.get("source", {}):
            raise
        reason, _, _ = str(error).partition(". ")
        return run.make_task({**config, "task": {**node, "absent": True}}), [f"data: {reason}; type data_dir=DIRECTORY"]


def missing(config: Mapping[str, Any]) -> list[str]:
    """What the machine lacks, framework and devices, one line each."""
    if "baseline" in config:
        return []
    found = []
    try:
        load.framework(config["backend"])
    except UserError as error:
        found.append(f"framework: {error}")
    world, cores, visible = config["world"], len(os.sched_getaffinity(0)), gpus()
    if config["device"] == "cuda" or (config["device"] == "auto" and visible):
        if visible < world:
            found.append(f"{_count(world, 'GPU')}; here: {visible or 'none'}")
    elif world > cores * RANKS_PER_CORE:
        found.append(f"{_count(world, 'device')}; here: {_count(cores, 'CPU core')}")
    return found


def gpus() -> int:
    """NVIDIA GPUs that a run here could use, asked of the driver."""
    if shutil.which("nvidia-smi") is None:
        return 0
    done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True)
    present = sum(line.startswith("GPU ") for line in done.stdout.splitlines())
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return present if named is None else min(present, len([name for name in named.split(",") if name.strip()]))


def gradient_bytes(config: Mapping[str, Any], task: Task) -> dict[str, int]:
    """Bytes that reducing the gradients once puts on the wire, by the ledger's formulas: rank 0's, and all ranks'.

    With leaders, rank 0 is one of them, and `all` counts every rank as one.
    """
    each = sum(item.sent for bucket in projection.gradients(config, task) for item in bucket.entries)
    return {"each": each, "all": each * config["world"]}


def measured(config: Mapping[str, Any], folder: Path = Path("runs")) -> dict[str, Any] | None:
    """The step time of the result in `folder` that is most like this run; None where none does the same work.

    The same work is the same task (targets apart), optimizer, backend and number of devices.
    """
    wanted, work = _settings(config), _work(config)
    found = []
    for path in sorted(folder.glob("*/*/result.json")):
        result = json.loads(path.read_text())
        its, seconds = result["spec"]["config"], result["step_seconds"]["p50"]
        if seconds is not None and result["outcome"]["kind"] != "failed" and _work(its) == work:
            theirs = _settings(its)
            differs = sorted(key for key in wanted.keys() | theirs.keys() if wanted.get(key) != theirs.get(key))
            found.append({"result": str(path), "step_seconds": seconds, "differs": differs})
    return min(found, key=lambda one: len(one["differs"]), default=None)


def _share(config: Mapping[str, Any]) -> dict[str, Any]:
    """The run of one device with its share of the batch."""
    task = {**config["task"], "batch_size": config["task"]["batch_size"] // config["world"]}
    return {**config, "world": 1, "task": task}


def _one_device(config: Mapping[str, Any]) -> str:
    share, name = _share(config)["task"], config["optimizer"]["name"]
    return f"suite +task={share['name']} optimizer={name} scale={config['scale']} task.batch_size={share['batch_size']}"


def _work(config: Mapping[str, Any]) -> list[Any]:
    task = {name: value for name, value in config["task"].items() if name != "targets"}
    return [task, config["optimizer"]["name"], config["backend"], config["world"]]


def _settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted keys of what can change the time of a step."""
    spared = (*record.UNHASHED, "tuning", "seed", "task")
    return configure.flat({name: value for name, value in config.items() if name not in spared})


def _count(number: int, name: str) -> str:
    return f"{number:,} {name}{'s' if number != 1 else ''}"


def lines(found: Mapping[str, Any]) -> list[str]:
    """A plan for people."""
    if "baseline" in found["config"]:
        return plan_baseline.lines(found)
    config, sent, near = found["config"], found["gradient_bytes_per_step"], found["measured"]
    head = [found["task"], config["scale"], found["data"], config["optimizer"]["name"], config["backend"]]
    layers = ", ".join(f"{count} {kind}" for kind, count in found["layers"].items())
    wire = f"{sent['each']:,} bytes a step and device for the gradients, {sent['all']:,} over all"
    wire += projection.also(found["optimizer_bytes_per_step"])
    if config["comm"]["policy"]:
        wire += f"; comm={config['comm']['name']} chooses while it runs, and what it tries comes on top"
    time = "unknown: no run of the same task, optimizer, backend and number of devices lies under runs/"
    if near:
        also = f"; other values there: {', '.join(near['differs'])}" if near["differs"] else ""
        total = found["steps"] * near["step_seconds"]
        time = (
            f"{total:,.0f} s of training, at {1000 * near['step_seconds']:.1f} ms a step as in {near['result']}{also}"
        )
    paper = []
    if found["published"]:
        said, where = papers.report(Row(**found["published"]))
        paper += [f"published   {said}", f"            {where}"]
    if config["scale"] == "paper" and not (found["published"] or {}).get("devices"):
        used = papers.used(found["published_devices"], batch_size=found["batch_size"], world=config["world"])
        paper.append(f"papers used {used}")
    return [
        " · ".join([*head, _count(config["world"], "device"), f"comm {config['comm']['name']}"]),
        f"parameters  {found['parameters']:,}, and {found['buffers']:,} numbers in buffers",
        f"memory      {found['state_bytes'] / 2**30:,.3g} GiB for parameters and gradients in float32 on each device, "
        "optimizer state and activations not counted",
        f"layers      {layers}: {found['covered_parameters']:,} parameters that a curvature method can cover",
        f"steps       {found['steps']:,} at most, of {found['batch_size']:,} samples: {found['epochs']:.3g} epoch(s)",
        f"targets     {', '.join(found['targets']) or 'none'}",
        f"tuning      {config['tuning']['source']}, {_count(config['tuning']['trials'], 'trial')}",
        f"device      {found['batch_per_device']:,} samples a step, in micro-batches of {found['micro_batch']:,}",
        f"sent        {wire if config['world'] > 1 else 'nothing: one device'}",
        f"time        {time}",
        *(projection.lines(found["projected"], _one_device(config)) if found["projected"] else []),
        *paper,
        *(f"missing: {what}" for what in found["missing"]),
    ]
