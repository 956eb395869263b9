"""Small runs of either engine, in this process or as two torch processes."""

import importlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from alone import gap as gap  # beside `weights`, which it compares

from suite import load
from suite.comm import setup
from suite.comm.channel import Channels
from suite.comm.settings import CommSettings
from suite.declared import Declared
from suite.nodes import Part, load_settings
from suite.settings import configure
from suite.settings.run import Run, read_run

DEVICE = os.environ.get("BENCH_DEVICE", "cpu")

BACKENDS = load.BACKENDS
INSIDE = {name: {"module": f"suite.optimizers.{name}"} for name in load.find_members("optimizers")}
OUTSIDE = {name: {"module": f"mylab.{name}", "lr": 0.1} for name in ("secant", "noisy")}
OPTIMIZERS = INSIDE | OUTSIDE
# hyper-parameters at which ten steps of the tiny task are well conditioned
SETTINGS: dict[str, dict[str, Any]] = {
    "sgd": {"lr": 0.1, "weight_decay": 0.0},
    "soap": {"lr": 0.01, "epsilon": 1e-3, "start_preconditioning": 4, "precondition_frequency": 2},
    "muon": {"lr": 0.02, "fallback_epsilon": 1e-4},
    "kfac": {"lr": 0.05, "damping": 0.3, "factor_interval": 2, "inverse_interval": 4, "weight_decay": 1e-3},
    "shampoo": {"lr": 0.05, "nesterov": False, "weight_decay": 0.0, "block_size": 3, "inverse_interval": 3},
    "adamw": {"lr": 0.01},
    "lars": {"lr": 0.2, "weight_decay": 1e-3, "trust": 0.2},
    "adagrad": {"lr": 0.05},
    "rmsprop": {"lr": 0.005, "epsilon": 1e-3},
    "lamb": {"lr": 0.02},
    "sm3": {"lr": 0.1, "weight_decay": 1e-3},
    "vogn": {
        "lr": 0.01,
        "damping": 0.1,
        "beta2": 0.3,
        "augmentation": 1e-4,
        "tempering_start": 0.3,
        "tempering_warmup": 6,
    },
}


def settings_of(optimizer: str) -> dict[str, Any]:
    """Settings for a small task: SETTINGS, or at least a learning rate whose first steps can be seen."""
    declared = load_settings(f"suite.optimizers.{optimizer}") if optimizer in INSIDE else None
    default = getattr(declared.given({}), "lr", 1.0) if declared and optimizer not in SETTINGS else 1.0
    return SETTINGS.get(optimizer, {}) | ({"lr": 0.01} if default < 0.01 else {})


def comm(**changes: Any) -> CommSettings:
    """`comm=float32`, changed; names stand for members, and `inner` counts only for a topology with hosts."""
    if changes.get("topology", "flat") == "flat":
        changes.pop("inner", None)
    path = next(path for path in load.find_files("comm") if path.stem == "float32")
    groups = {"codec": "codecs", "algorithm": "algorithms", "topology": "topologies", "schedule": "schedules"}
    for key, group in (groups | {"inner": "codecs"}).items():
        if isinstance(changes.get(key), str):
            changes[key] = {"module": f"suite.comm.{group}.{changes[key]}"}
    values = {key: value.plain() if isinstance(value, Declared) else value for key, value in changes.items()}
    return CommSettings.given(yaml.safe_load(path.read_text()) | values, "comm.")


def channels(backend: str, world: int = 2, **changes: Any) -> Channels:
    """Make the channels of the tiny task's values."""
    return setup.make_channels(comm(**changes), tiny(), world, backend)


def config(optimizer: str, backend: str, **changes: Any) -> Run:
    """A run on the tiny task; `hyper` are settings of the optimizer."""
    node = {"name": optimizer, **OPTIMIZERS[optimizer], **settings_of(optimizer), **changes.pop("hyper", {})}
    base = {
        "scale": "laptop",
        "launch": {"module": "suite.launch.local", "processes": "auto", "deadline": 600},
        "track": {"name": "none"},
        "seed": 0,
        "world": 1,
        "accumulate": 1,
        "precision": "float64",
        "deterministic": False,
        "device": DEVICE,
        "compile": False,
        "clip_norm": 0.0,
        "backend": backend,
        "optimizer": node,
        "task": {"name": "tiny", "module": "mylab.tinytask"},
        "comm": comm().plain(),
    }
    found = read_run(base)
    assert isinstance(found, Run)
    return change(found, changes)


def brief(steps: int, **changes: Any) -> Run:
    """A run of a few steps at a constant rate with an evaluation after each, for tests of the loop."""
    values = {"eval_every": 1, "schedule": {"shape": "constant", "warmup": 0}, **changes}
    return config("sgd", "torch", hyper={"lr": 1.0}, max_steps=steps, **values)


WHOLE = ("schedule", "candidates", "kinds")  # groups that `change` replaces


def change(run: Run, changes: Mapping[str, Any]) -> Run:
    """A run with other values at dotted keys; a group keeps the settings that are not named, if its member stays."""
    values = run.plain()
    for key, value in changes.items():
        *path, last = key.split(".")
        node = values
        for part in path:
            node = node[part]
        value = value.plain() if isinstance(value, Declared) else value
        if last == "task" and list(value) == ["module"] and value["module"].startswith("suite.tasks."):
            value = configure.resolve([f"task={value['module'].rpartition('.')[2]}"]).task.plain()
        kept = node.get(last) if isinstance(value, dict) and last not in WHOLE else None
        if kept and value.get("module", kept.get("module")) == kept.get("module"):
            value = {**kept, **value}
        elif isinstance(value, dict) and last in ("task", "optimizer"):
            value = {"name": value["module"].rpartition(".")[2], **value}
        node[last] = value
    changed = read_run(values)
    assert isinstance(changed, Run)
    return changed


def engine(settings: Run, task: Any = None) -> Any:
    """A fresh engine."""
    if settings.backend == "torch":
        import torch

        torch.set_num_threads(1)
    else:
        from suite.engine import jax_kept

        if "mylab" not in jax_kept.OWN:
            jax_kept.OWN.append("mylab")
    task = task or load.load_member(settings.task.module).make()
    return importlib.import_module(f"suite.engine.{settings.backend}").Engine(task, settings)


def part(module: str, **options: Any) -> Part:
    """A part of a configuration, such as a codec."""
    values = {"module": module, **options}
    return Part.chosen(values).given(values, "comm.codec.")


def options(node: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a member in a YAML file."""
    return {name: value for name, value in node.items() if name not in ("name", "module")}


def tiny(**options: Any) -> Any:
    """Make the tiny task outside the tree."""
    return load.load_member("mylab.tinytask").make(**options)


def called(key: str) -> str:
    """Return the model's name of a snapshot's array; empty where that is no parameter, buffer or pattern."""
    if key.startswith(("run['params']", "run['buffers']", "run['patterns']")):  # jax
        return key.split("'")[3]
    return key.removeprefix("run.model.") if key.startswith("run.model.") else ""  # torch


def weights(made: Any) -> dict[str, np.ndarray]:
    """Parameters and buffers by name, as NumPy copies; all ranks call it, because tables lie split over them."""
    arrays, skeleton = made.snapshot()
    found = {called(key): value.copy() for key, value in arrays.items() if called(key)}
    for name in sorted(called(key) for key in skeleton["own"] if called(key)):
        found[name] = np.concatenate(made.ranks.gather(found[name]))
    return found


def put(made: Any, values: dict[str, np.ndarray]) -> None:
    """Give an engine these parameters in the place of its own; all else stays."""
    arrays, skeleton = made.snapshot()
    made.restore({key: values.get(called(key), value).copy() for key, value in arrays.items()}, skeleton)


def advance(made: Any, steps: range, lr: float | None = None) -> list[float]:
    """Make some updates; returns their losses."""
    rank, world = made.share
    batch = lambda step: made.task.batch("train", 0, step, rank, world)  # noqa: E731
    hyper = {} if lr is None else {"lr": lr}
    made.warm(batch(steps[0]), steps, hyper)
    return made.losses([made.step(step, batch(step), hyper) for step in steps])


def same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    """Return whether everything in the first is in the other, bit for bit."""
    return all(np.array_equal(value, other[name]) for name, value in one.items())


TESTS = Path(__file__).parent
