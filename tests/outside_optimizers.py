"""Every optimizer of other packages through the suite's engine, against a loop by hand: `make outside`.

    python tests/outside_optimizers.py [PAGE [PACKAGE…]]

Six steps at a varying learning rate must give the weights of the loop, bit for bit in torch, to 1e-9 in float64 in jax;
weights that are kept must be those that the package evaluates; and three steps, a snapshot and three steps of a new
engine must give the same weights as six. PAGE, `docs/outside.md` by default, lists what was right, refused, or wrong.
"""

import functools
import importlib
import importlib.metadata
import inspect
import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

sys.path[:0] = [str(Path(__file__).parent / "outside"), str(Path(__file__).parent)]

import numpy as np  # noqa: E402
from engines import config, engine, tiny  # noqa: E402

from suite.contract import UserError  # noqa: E402
from suite.engine.probing import describe_error  # noqa: E402

STEPS, LR = 6, 0.01
RATES = [LR * factor for factor in (1.0, 0.8, 0.9, 0.5, 0.7, 0.2)]
SECONDS = 300  # for one optimizer; a package may compile for each shape
PACKAGES = {  # backend, distribution, modules
    "torch.optim": ("torch", "torch"),
    "pytorch_optimizer": ("torch", "pytorch_optimizer"),
    "torchao.optim": ("torch", "torchao"),
    "schedulefree": ("torch", "schedulefree"),
    "heavyball": ("torch", "heavyball"),
    "optax": ("jax", "optax"),
    "optax.contrib": ("jax", "optax"),
}
MATRICES = dict.fromkeys(("Muon", "AdaMuon", "AdaGO", "DistributedMuon", "MuonClip", "NorMuon"), "use_muon")
ARGUMENTS: dict[str, dict[str, Any]] = {  # that have no default
    "pytorch_optimizer.BSAM": {"num_data": 100},
    "pytorch_optimizer.Ranger21": {"num_iterations": 100},
    "optax.contrib.dpsgd": {"l2_norm_clip": 1.0, "noise_multiplier": 0.1, "seed": 0},
}


class Outcome(NamedTuple):
    """What an optimizer did: `right`, `constant` (right at a constant rate), `refused`, `ours`, `theirs`; and why."""

    name: str
    kind: str
    why: str = ""


def list_optimizers(package: str) -> list[str]:
    """Return the names of a package's optimizers: classes in torch, functions of a learning rate in jax."""
    module = importlib.import_module(package)
    if PACKAGES[package][0] == "jax":
        functions = {name: value for name, value in vars(module).items() if inspect.isfunction(value)}
        return sorted(
            n for n, v in functions.items() if n[0] != "_" and "learning_rate" in inspect.signature(v).parameters
        )
    from torch.optim import Optimizer

    kinds = {name: value for name, value in vars(module).items() if isinstance(value, type)}
    return sorted(n for n, v in kinds.items() if n[0] != "_" and issubclass(v, Optimizer) and v is not Optimizer)


def try_optimizer(package: str, name: str) -> Outcome:
    """Compare one optimizer with a loop by hand."""
    dotted = f"{package}.{name}"
    try:
        return Outcome(name, *compare(dotted, PACKAGES[package][0], "linear"))
    except UserError as error:
        if "does not read the learning rate" not in str(error):
            return Outcome(name, "refused", str(error).partition(": ")[2].partition("; see optimizer.arguments")[0])
    except Exception as error:  # of other people's code
        return Outcome(name, "ours", f"traceback: {describe_error(error)}")
    try:
        kind, why = compare(dotted, PACKAGES[package][0], "constant")
        return Outcome(name, "constant" if kind == "right" else kind, why)
    except Exception as error:
        return Outcome(name, "ours", f"traceback: {describe_error(error)}")


def compare(dotted: str, backend: str, shape: str) -> tuple[str, str]:
    """Return the kind of outcome, and its cause.

    Raises:
        UserError: the suite refuses the optimizer.
    """
    rates = RATES if shape == "linear" else [LR] * STEPS
    hyper = {backend: dotted, "lr": LR, "matrices": find_option(dotted), "arguments": ARGUMENTS.get(dotted)}
    precision = {"torch": "float32", "jax": "float64"}[backend]
    settings = config("external", backend, precision=precision, hyper=hyper, schedule={"shape": shape, "warmup": 0})
    whole, half, rest = engine(settings), engine(settings), engine(settings)
    whole.warm(whole.task.batch("train", 0, 0), range(STEPS), {"lr": rates[0]})
    advance(whole, range(STEPS), rates)
    by_hand = {"torch": train_torch, "jax": train_jax}[backend]
    trained, evaluated = by_hand(dotted, rates)
    limit = 0.0 if backend == "torch" else 1e-9
    if (gap := measure_gap(snapshot_weights(whole), trained)) > limit:
        return "ours", f"differs from a loop by hand by {gap:.1e}"
    if (gap := measure_gap(whole.weights(), evaluated)) > limit:
        return "ours", f"is evaluated at weights that differ by {gap:.1e}"
    if measure_gap(snapshot_weights(whole), trained) > limit:
        return "ours", "an evaluation changes the weights"
    advance(half, range(3), rates)
    arrays, skeleton = half.snapshot()
    rest.restore({name: value.copy() for name, value in arrays.items()}, json.loads(json.dumps(skeleton)))
    advance(rest, range(3, STEPS), rates)
    if (gap := measure_gap(snapshot_weights(rest), snapshot_weights(whole))) > 0:
        return "theirs", f"continues otherwise by {gap:.1e}: keeps state outside of its state_dict()"
    return "right", ""


def find_option(dotted: str) -> str | None:
    """Return the option by which a class tells matrices from vectors, `optimizer.matrices`."""
    package, _, name = dotted.rpartition(".")
    return MATRICES.get(name) if package == "pytorch_optimizer" else None


def advance(made: Any, steps: range, rates: list[float]) -> None:
    """Make some updates."""
    for step in steps:
        made.step(step, made.task.batch("train", 0, step), {"lr": rates[step]})


def snapshot_weights(made: Any) -> dict[str, np.ndarray]:
    """Return the parameters at the point of training."""
    from engines import weights

    return {name: value for name, value in weights(made).items() if "running" not in name}


def measure_gap(one: Any, other: dict[str, np.ndarray]) -> float:
    """Return the largest difference of the other's arrays, infinite if only one of them is finite."""
    gaps = [np.abs(np.asarray(one[name], np.float64) - value).max() for name, value in other.items()]
    equal = all(np.array_equal(one[name], value, equal_nan=True) for name, value in other.items())
    return 0.0 if equal else float(np.nan_to_num(max(gaps), nan=np.inf))


def train_torch(dotted: str, rates: list[float]) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Train as the package's documentation says; return the weights trained, and those to evaluate."""
    import torch
    from mylab.tinytask.torch import Net

    from suite.engine.torch_outside import seed_generators

    task, model, cpu = tiny(), Net(), torch.device("cpu")
    model.load_state_dict({name: torch.from_numpy(task.init(0, name)) for name in task.shapes()})
    module, _, name = dotted.rpartition(".")
    kind = getattr(importlib.import_module(module), name)
    first = next(iter(inspect.signature(kind).parameters))
    groups: Any = [{"params": list(model.parameters())}]
    if matrices := find_option(dotted):
        split = {large: [p for p in model.parameters() if (p.ndim > 1) is large] for large in (True, False)}
        groups = [{"params": params, matrices: large} for large, params in split.items()]
    given = {"model": model}.get(first, list(model.named_parameters()) if "named" in first else groups)
    with seed_generators((0, 0), cpu):
        optimizer = kind(given, lr=LR, **ARGUMENTS.get(dotted, {}))
    own = [float(group["lr"]) / LR for group in optimizer.param_groups]  # a class may give groups rates of their own
    ratios = [1.0 if math.isclose(ratio, 1.0, rel_tol=1e-6) else ratio for ratio in own]
    switches = all(callable(getattr(optimizer, switch, None)) for switch in ("train", "eval"))
    carry = {name: torch.from_numpy(value) for name, value in task.carry(task.batch_size).items()}
    for step, rate in enumerate(rates):
        batch = {name: torch.from_numpy(value) for name, value in task.batch("train", 0, step).items()}
        model.train()
        if switches:
            optimizer.train()
        for group, ratio in zip(optimizer.param_groups, ratios, strict=True):
            lr = rate * ratio
            group["lr"].fill_(lr) if isinstance(group["lr"], torch.Tensor) else group.update(lr=lr)
        optimizer.zero_grad()
        outputs, carry = model(batch, carry, (0, step))
        loss, weight = model.loss(outputs, batch)
        loss.backward()
        for parameter in model.parameters():
            parameter.grad = parameter.grad / weight
        with seed_generators((0, step), cpu):
            optimizer.step()
    trained = {name: value.detach().numpy().copy() for name, value in model.named_parameters()}
    if switches:
        optimizer.eval()
    return trained, {name: value.detach().numpy().copy() for name, value in model.named_parameters()}


def train_jax(dotted: str, rates: list[float]) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Train as the package's documentation says; return the weights trained, and those to evaluate."""
    import jax
    import jax.numpy as jnp
    import optax
    from mylab.tinytask.jax import Net

    module, _, name = dotted.rpartition(".")
    build = functools.partial(getattr(importlib.import_module(module), name), **ARGUMENTS.get(dotted, {}))
    task, model = tiny(), Net()
    with jax.enable_x64(True):
        values = {name: jnp.asarray(task.init(0, name), float) for name in task.shapes()}
        buffers = {name: values.pop(name) for name in list(values) if "running" in name}
        carry = {name: jnp.asarray(value, float) for name, value in task.carry(task.batch_size).items()}
        state = jax.jit(build(learning_rate=LR).init)(values)

        @jax.jit
        def step(values: Any, state: Any, buffers: Any, carry: Any, batch: Any, rate: Any) -> Any:
            def loss(values: Any) -> Any:
                options = {"train": True, "key": (0, 0), "tap": lambda name, x, y: y}
                outputs, new, after = model.apply(values, buffers, carry, batch, **options)
                total, weight = model.loss(outputs, batch)
                return total / weight, (new, after)

            grads, (new, after) = jax.grad(loss, has_aux=True)(values)
            updates, state = build(learning_rate=rate).update(grads, state, values)
            return optax.apply_updates(values, updates), state, new, after

        for number, rate in enumerate(rates):
            batch = task.batch("train", 0, number)
            batch = {n: jnp.asarray(v, float) if v.dtype.kind == "f" else jnp.asarray(v) for n, v in batch.items()}
            values, state, buffers, carry = step(values, state, buffers, carry, batch, jnp.asarray(rate, float))
        free = hasattr(state, "z") and hasattr(state, "b1")
        evaluated = optax.contrib.schedule_free_eval_params(state, values) if free else values
        return ({name: np.asarray(value) for name, value in part.items()} for part in (values, evaluated))  # type: ignore[return-value]


# ------------------------------------------------------------------------------------------------------ the page
def try_package(package: str, skipped: int) -> Iterator[Outcome]:
    """Yield the outcomes of a package's optimizers, after some that are skipped."""

    def expire(*_: Any) -> None:
        raise TimeoutError(f"no answer in {SECONDS} seconds")

    signal.signal(signal.SIGALRM, expire)
    if package == "heavyball":  # compiles for each shape: minutes for each optimizer
        import heavyball.utils

        heavyball.utils.compile_mode = None
    for name in list_optimizers(package)[skipped:]:
        signal.alarm(SECONDS)
        yield try_optimizer(package, name)
        signal.alarm(0)


def collect(package: str) -> list[Outcome]:
    """Return the outcomes of all optimizers of a package, tried in a process of its own."""
    found: list[Outcome] = []
    names = subprocess.run([sys.executable, __file__, "--names", package], capture_output=True, text=True, check=True)
    total = json.loads(names.stdout.splitlines()[-1])
    while len(found) < len(total):
        command = [sys.executable, __file__, "--try", package, str(len(found))]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
            assert process.stdout
            for line in process.stdout:
                if line.startswith("OUTCOME "):
                    found.append(Outcome(*json.loads(line[8:])))
                    print(package, *found[-1], flush=True)
        if process.returncode:
            found.append(Outcome(total[len(found)], "ours", f"the process ended with {process.returncode}"))
    return found


HEAD = """
`make outside` writes this page. Each optimizer makes six steps at a varying learning rate through the suite's engine
and in a loop by hand, and three steps, a snapshot and three more in a new engine. *Right*: the same weights (torch: bit
for bit in float32; jax: to 1e-9 in float64), evaluated where the package says, and continued bit for bit. *Right at a
constant rate*: the package does not read the rate after its first step, so a schedule that changes it is an error.
*Refused*: one line before the first step says why. In jax, functions without a `learning_rate` are parts of optimizers,
and are refused. heavyball runs without its compiler here, which takes minutes for each optimizer.
"""
KINDS = {
    "right": "right",
    "constant": "right at a constant rate",
    "refused": "refused",
    "theirs": "wrong, the package's fault",
    "ours": "wrong, the suite's fault",
}


def write_page(path: Path, found: dict[str, list[Outcome]]) -> None:
    """Write the page."""
    counts = {package: [sum(one.kind == kind for one in rows) for kind in KINDS] for package, rows in found.items()}
    versions = {package: importlib.metadata.version(PACKAGES[package][1]) for package in found}
    jax = importlib.metadata.version("jax")
    lines = [
        "# Optimizers of other packages, one by one",
        "",
        *HEAD.strip().splitlines(),
        "",
        "| package | version | " + " | ".join(KINDS.values()) + " |",
        "|---|---|" + "---|" * len(KINDS),
    ]
    for package, numbers in counts.items():
        extra = f", jax {jax}" if PACKAGES[package][0] == "jax" else ""
        lines.append(f"| `{package}` | {versions[package]}{extra} | " + " | ".join(map(str, numbers)) + " |")
    for package, rows in found.items():
        lines += ["", f"## {package}", "", "| optimizer | outcome | why |", "|---|---|---|"]
        lines += [f"| `{one.name}` | {KINDS[one.kind]} | {one.why.replace('|', chr(92) + '|')} |" for one in rows]
    path.write_text("\n".join(lines) + "\n")


def main(words: list[str]) -> None:
    """Write the page, or try one package."""
    if words[:1] == ["--names"]:
        print(json.dumps(list_optimizers(words[1])))
    elif words[:1] == ["--try"]:
        for outcome in try_package(words[1], int(words[2])):
            print("OUTCOME " + json.dumps(outcome), flush=True)
        os._exit(0)  # other packages' threads may keep a process
    else:
        page = Path(words[0] if words else Path(__file__).parent.parent / "docs" / "outside.md")
        write_page(page, {package: collect(package) for package in words[1:] or PACKAGES})


if __name__ == "__main__":
    main(sys.argv[1:])
