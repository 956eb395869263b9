"""Estimates the memory that a run needs on a device, without a framework: parameters, optimizer and activations.

Parameters and gradients are counted exactly. The optimizer's state follows from its settings: one array of the
parameters' size for each moving average, and square matrices for each layer if the optimizer has any. The task
estimates the activations of one micro-batch. Not counted: work space of kernels, communication buffers, fragmentation,
the framework itself, and differences between jax and torch.
"""

import importlib
import itertools
import math
import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Mapping
from typing import Any

from suite.comm import setup
from suite.contract import Keeps, MissingError, Task
from suite.nodes import load_settings
from suite.settings.run import Run

VALUE = {"float64": 8, "bfloat16": 2}  # bytes of an activation; 4 in every other precision. Masters are float32
AVERAGES = (
    "momentum",
    "beta1",
    "beta2",
    "initial_accumulator",
)  # settings that each imply one array of the parameters' size
FACTORED = ("linear", "conv2d")  # kinds of layers with one matrix for the inputs and one for the outputs
MATRICES = 2  # for each of the two: statistics, and their inverse, root or basis
MOST = 2**20  # values of `accumulate=` that are tried one by one, before the largest
SURE = 1.05  # activations are estimated within 5 % (tests/test_memory.py), parameters exactly
USUAL = 80 * 2**30  # bytes of the accelerator that is assumed if there is none: A100 and H100 (NVIDIA's data sheets)


def estimate_memory(run: Run, task: Task) -> dict[str, int]:
    """Bytes on each device: `parameters` (with gradients), `optimizer` and `activations` of one micro-batch.

    In bfloat16, `parameters` contains the copies that a pass makes of matrices, which themselves are in float32. Of
    tables split by rows, only the device's share is counted. `activations` is 0 if the task does not estimate them.
    """
    world, value = run.world, VALUE.get(run.precision, 4)
    shapes = {name: spec for name, spec in task.shapes().items() if spec.kind == "parameter"}
    counts = {
        name: math.prod(spec.shape) // (world if spec.placement == "rows" else 1) for name, spec in shapes.items()
    }
    stored = 8 if run.precision == "float64" else 4
    micro = task.batch_size // world // run.accumulate
    return {
        "parameters": 2 * stored * sum(counts.values()) + _copies(run, task, counts),
        "optimizer": count_outside_state(run, task)
        or stored * _optimizer_elements(run.optimizer.options(), task, counts),
        "activations": int(micro * task.count_kept_bytes(value)) if isinstance(task, Keeps) else 0,
    }


def count_outside_state(run: Run, task: Task) -> int | None:
    """Return the bytes that an optimizer of another package stores; None for the suite's own, and if it is unknown."""
    module = run.optimizer.module
    if "outside" not in run.optimizer.needs:
        return None
    shapes = {name: spec.shape for name, spec in task.shapes().items() if spec.kind == "parameter"}
    declared = load_settings(module)
    assert declared
    settings = declared.given(run.optimizer.options(), "optimizer.")
    try:
        return importlib.import_module(f"{module}.plan").make(settings, shapes, run.backend).count_state_bytes()
    except MissingError:
        return None


def describe_excess(run: Run, task: Task, *, sure: bool = False) -> str | None:
    """Say what a run needs beyond a device's memory, and what to set; None if it fits.

    Args:
        run: the run, without stages.
        task: made from it.
        sure: whether to say so only if the parameters and activations alone do not fit. The optimizer's state is
            estimated less well: for some settings, the estimate is several times too high.
    """
    needed, (capacity, known) = estimate_memory(run, task), describe_device(run)
    total = sum(needed.values())
    if (total - needed["optimizer"] if sure else total) <= capacity * (SURE if sure else 1.0):
        return None
    return (
        f"memory: the run needs about {format_gib(total)} GiB on each device, but {known} has {format_gib(capacity)}; "
        + _advise_size(run, task, needed, capacity)
    )


def format_gib(count: int) -> str:
    """Return bytes in GiB, with three digits."""
    return f"{count / 2**30:,.0f}" if count >= 1000 * 2**30 else f"{count / 2**30:.3g}"


def _advise_size(run: Run, task: Task, needed: Mapping[str, int], capacity: int) -> str:
    """Advise how a run fits into a device's memory: the smallest `accumulate=` for which the estimate fits."""
    fixed, share = needed["parameters"] + needed["optimizer"], task.batch_size // run.world // task.group
    larger = range(run.accumulate + 1, share + 1)
    for accumulate in itertools.chain(larger[:MOST], larger[-1:]):
        activations = needed["activations"] * run.accumulate // accumulate
        if not share % accumulate and fixed + activations <= capacity:
            return f"set accumulate={accumulate} for smaller micro-batches"
    alone = f"parameters and optimizer alone need {format_gib(fixed)} GiB"
    if any(spec.placement == "rows" for spec in task.shapes().values()):  # more devices, each with fewer rows
        for world in range(run.world + 1, task.batch_size // task.group + 1):
            wider = run.model_copy(update={"world": world})
            divides = not (task.batch_size % (world * run.accumulate * task.group) or task.eval_batch_size % world)
            if divides and sum(estimate_memory(wider, task).values()) <= capacity:
                return f"{alone}: set world={world}, so that each device has a part of the tables"
    return f"{alone}: choose a smaller model"


def _copies(run: Run, task: Task, counts: Mapping[str, int]) -> int:
    """Return the bytes of a pass's copies of its matrices and kernels; tables that are only looked up have none."""
    if run.precision != "bfloat16":
        return 0
    tables = {name for layer in task.layers().values() if layer.kind == "embedding" for name in layer.parameters}
    shapes = task.shapes()
    return VALUE["bfloat16"] * sum(
        count for name, count in counts.items() if name not in tables and len(shapes[name].shape) > 1
    )


def _optimizer_elements(optimizer: Mapping[str, Any], task: Task, counts: Mapping[str, int]) -> int:
    """Return the number of elements in an optimizer's state."""
    averages = 0
    for name in AVERAGES:
        zero = name == "momentum" and not optimizer.get(name)  # no velocity is stored then
        averages += name in optimizer and not zero
    shapes = {name: task.shapes()[name].shape for name in counts}
    if "factor_decay" in optimizer:  # K-FAC and K-BFGS see layers, not tables
        layers = [layer for layer in task.layers().values() if layer.kind in FACTORED]
        shapes = {layer.parameters[0]: shapes[layer.parameters[0]] for layer in layers}
    elif not {"block_size", "precondition_frequency"} & optimizer.keys():
        shapes = {}
    matrices = sum(_squares(shape, optimizer) for shape in shapes.values() if len(shape) > 1)
    return averages * sum(counts.values()) + _left_elements(optimizer, task, counts) + MATRICES * matrices


def _left_elements(optimizer: Mapping[str, Any], task: Task, counts: Mapping[str, int]) -> int:
    """Return the number of elements that AdamW updates beside K-FAC or Muon, with a second average of the gradient."""
    if not optimizer.get("fallback_ratio") or "beta2" in optimizer:  # VOGN has two averages of everything
        return 0
    layers = list(task.layers().values())
    if "factor_decay" in optimizer:  # K-FAC takes all parameters of a layer that has its matrix for itself
        uses = Counter(layer.parameters[0] for layer in layers)
        taken = {name for layer in layers if uses[layer.parameters[0]] == 1 for name in layer.parameters}
    else:
        taken = {layer.parameters[0] for layer in layers if layer.kind in FACTORED}
    return sum(count for name, count in counts.items() if name not in taken)


def _squares(shape: tuple[int, ...], optimizer: Mapping[str, Any]) -> int:
    """Return the number of elements of one square matrix for each of the two sides of a parameter.

    `block_size` splits a side into blocks; a side longer than `max_size` has no matrix.
    """
    block, longest = optimizer.get("block_size"), optimizer.get("max_size")
    sides = [side for side in (shape[0], math.prod(shape[1:])) if not longest or side <= longest]
    return sum(side * min(side, block or side) for side in sides)


def describe_device(run: Run) -> tuple[int, str]:
    """Return the memory of one device in bytes, and the device in words.

    A GPU's memory is read from the driver: the least of those in CUDA_VISIBLE_DEVICES. Without one, `USUAL` is assumed.
    Ranks on the CPU share the host's memory.
    """
    if run.device != "cuda" and not (run.device == "auto" and shutil.which("nvidia-smi")):
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return total // setup.count_local_ranks(run.world), "each rank's share of this machine"
    if shutil.which("nvidia-smi"):
        command = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        command += [f"--id={visible}"] if visible else []
        done = subprocess.run(command, capture_output=True, text=True)
        sizes = [int(line) for line in done.stdout.split() if line.isdecimal()]
        if sizes:
            return min(sizes) * 2**20, "the smallest GPU here"
    return USUAL, "the assumed accelerator (none is here)"
