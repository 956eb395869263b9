"""Reads the time of a step from results under runs/: how long it takes, and which part of it is the longest."""

import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from suite.entries.intake import find_results
from suite.load import Plain, list_options, read_preset
from suite.record import record
from suite.settings import configure
from suite.settings.effects import differing_keys, select_settings
from suite.settings.overrides import quote_text, render_command
from suite.settings.run import Run

PLAIN = "sgd"  # the optimizer whose update costs least: a step with it stands for the model's
ENOUGH = 100  # steps whose mean is taken
LENGTHS = ("targets", "steps")  # settings of a task that say how long a run is; a step is the same
OF_OPTIMIZER = ("optimizer.", "schedule.")  # settings that a run with another optimizer does not share
GIVEN = ("task.variant", "task.data")  # settings of a task from which others follow; those are not repeated
# settings of a run, beside its task and optimizer, on which the time of a step depends
STEP = ("accumulate", "clip_norm", "compile", "deterministic", "device", "precision", "prefetch", "threads")


def find_measured(run: Run, folder: Path = Path("runs"), optimizer: str | None = None) -> dict[str, Any] | None:
    """Find the step time of the most similar result in `folder`.

    Only results with the same task (apart from LENGTHS), optimizer, backend and number of devices are considered, and
    none of a run whose machine was busy with other programs.

    Args:
        run: the run.
        folder: where the results lie.
        optimizer: name of the optimizer, if it is not the run's; the settings of the run's then count as equal.

    Returns:
        `result` (its path), `step_seconds` (the mean, which includes refreshes), `input_share` (of the training time,
        spent waiting for batches; None if it was not measured), and `differs` (the settings that differ); None if there
        is no such result.
    """
    settings, work = _settings(run), _work(run, optimizer or run.optimizer.name)
    ignored = OF_OPTIMIZER if optimizer else ()
    similar = []
    for path, result in find_results(folder):
        other, steps, trained = record.load_run(result), result.steps, result.train_seconds
        if not steps or trained is None or result.outcome.kind == "failed" or not isinstance(other, Run):
            continue
        if record.is_crowded(result):
            continue
        if _work(other, other.optimizer.name) == work:
            waited = result.input_seconds
            found = {
                "result": str(path),
                "step_seconds": trained / steps,
                "input_share": None if waited is None else waited / trained,
                "differs": [key for key in differing_keys(settings, _settings(other)) if not key.startswith(ignored)],
            }
            similar.append(found)
    return min(similar, key=lambda candidate: len(candidate["differs"]), default=None)


def take_share(run: Run) -> Run:
    """Return the run on one device, with that device's share of the batch."""
    task = run.task.model_copy(update={"batch_size": run.task.batch_size // run.world})
    return run.model_copy(update={"world": 1, "task": task})


def name_command(run: Run, optimizer: str, directory: Path | None) -> str:
    """Return the command of a short run of this task with an optimizer; a plan takes the time of a step from it.

    It repeats what the time of a step depends on, whether it was typed or a recipe has set it.
    """
    # the name of a class of another package is its dotted path
    choice = optimizer if optimizer in list_options("optimizer", directory) else run.optimizer.module.split(".")[-1]
    words = [f"task={run.task.name}", f"optimizer={choice}", f"backend={run.backend}", f"scale={run.scale}"]
    words += [f"task.batch_size={run.task.batch_size}", f"world={run.world}", f"max_steps={ENOUGH}"]
    own = optimizer == run.optimizer.name
    if run.world > 1 and (own or "optimizer" not in read_preset("comm", run.comm.name, directory)):
        words.append(f"comm={run.comm.name}")
    words += [f"data_dir={quote_text(run.data_dir)}"] if run.data_dir else []
    wanted = _repeated(run, of_optimizer=own)
    for first in (True, False):
        given = _repeated(configure.resolve_training(words, directory), of_optimizer=True)
        differing = [key for key in wanted if given.get(key) != wanted[key] and (not first or key in GIVEN)]
        words += [f"{_name_option(key, wanted)}={_render(wanted[key])}" for key in differing]
    return render_command(shlex.join(["suite", *words]), directory)


def _repeated(run: Run, *, of_optimizer: bool) -> dict[str, Plain]:
    """Return the settings, by key, on which the time of a step depends and which a command may have to repeat."""
    groups = ("task.", *OF_OPTIMIZER) if of_optimizer else ("task.",)
    settings = {leaf.key: leaf.value for leaf in run.leaves() if leaf.key in STEP or leaf.key.startswith(groups)}
    left_out = (*LENGTHS, "name", "data_dir")
    return {key: value for key, value in settings.items() if key.rpartition(".")[2] not in left_out}


def _name_option(key: str, settings: Mapping[str, Plain]) -> str:
    """Return the key by which a user sets a setting: options of the data are below the name of their source."""
    return re.sub(r"^task\.source\.", f"task.sources.{settings.get('task.data')}.options.", key)


def _render(value: Plain) -> str:
    """Return a value as Hydra reads it: as JSON, but without quotes around words and around the keys of a group."""
    if isinstance(value, str):
        return value if value.isidentifier() else quote_text(value)
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{name}:{_render(item)}" for name, item in value.items()) + "}"
    return json.dumps(value)


def split_step(run: Run, projected: Mapping[str, Any] | None, folder: Path = Path("runs")) -> dict[str, Any] | None:
    """Split a step among input, model, optimizer and network, by results of the run and of SGD on the same task.

    A projected step is that of one device's share of the batch, and what the network adds to it. Otherwise the model's
    part contains the exchange of gradients, which results do not measure alone.

    Args:
        run: the run.
        projected: the entry `projected` of its plan.
        folder: where the results lie.

    Returns:
        `seconds` by part, the means of a step: `model` (a step with SGD), `optimizer` (what the run's optimizer adds to
        it), `input` (waits for batches, if the results have them) and `network` (if it is projected); `longest`, the
        longest part; `model`, the result with SGD, and `differs`, in what that run differs. None if a result is
        missing.
    """
    alone = take_share(run) if projected else run
    mine, plain = find_measured(alone, folder), find_measured(alone, folder, PLAIN)
    if run.compute_seconds or not mine or not plain:
        return None
    model = _compute_seconds(plain)
    seconds = {"model": model, "optimizer": max(_compute_seconds(mine) - model, 0.0)}
    if mine["input_share"] is not None:
        seconds["input"] = mine["step_seconds"] * mine["input_share"]
    if projected:
        whole = projected["step_seconds"][projected["schedule"]]
        seconds["network"] = max(whole - projected["one_device_seconds"], 0.0)
    longest = max(seconds, key=lambda part: seconds[part])
    counted = (*STEP, "comm") if alone.world > 1 else STEP
    differs = sorted({name for name, *_ in (key.split(".") for key in plain["differs"]) if name in counted})
    return {"seconds": seconds, "longest": longest, "model": plain["result"], "differs": differs}


def format_parts(parts: Mapping[str, Any] | None, run: Run, projected: bool, directory: Path | None) -> str:
    """Return the line that names the longest part of a step, or the command that is missing for it."""
    if parts is None:
        command = name_command(take_share(run) if projected else run, PLAIN, directory)
        return f"bound by    unknown: to tell the model's time from the optimizer's, run this first: {command}"
    exchange = " with the exchange of its gradients" if run.world > 1 and not projected else ""
    shown = {part: f"{1000 * seconds:.3g} ms" for part, seconds in parts["seconds"].items()}
    words = {"optimizer": run.optimizer.name, "input": "waiting for batches", "network": "the network"}
    added = ", ".join(f"{words[part]} adds {time}" for part, time in shown.items() if part in words)
    differs = f", which differs in {', '.join(parts['differs'])}" if parts["differs"] else ""
    return (
        f"bound by    the {parts['longest']}: the model{exchange} takes {shown['model']} of a mean step (a step with "
        f"{PLAIN}, as in {parts['model']}{differs}); {added}"
    )


def _compute_seconds(measured: Mapping[str, Any]) -> float:
    """Return the mean seconds of a step without its waits for batches."""
    return measured["step_seconds"] * (1 - (measured["input_share"] or 0.0))


def _work(run: Run, optimizer: str) -> list[Any]:
    """Return what must be equal for two step times to be comparable."""
    task = {leaf.key: leaf.value for leaf in run.task.leaves() if leaf.key.rpartition(".")[2] not in LENGTHS}
    return [task, optimizer, run.backend, run.world]


def _settings(run: Run) -> dict[str, Any]:
    """Return the settings that can change the time of a step, by dotted key."""
    settings = select_settings(run, ("weights", "time"))
    return {key: value for key, value in settings.items() if not key.startswith("task.")}
