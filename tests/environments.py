"""Every torch optimizer in other people's training scripts; each function trains and returns the parameters by name.

`in_one_process` is the reference of all of them.
"""

import contextlib
from collections.abc import Callable
from typing import Any

import mlps
import numpy as np

STEPS = 4
Tree = dict[str, np.ndarray]


def start(name: str, **settings: Any) -> mlps.Torch:
    """Make the optimizer on the network of mlps.py, without the layer that is never called."""
    return mlps.Torch(name, "float64", *mlps.USED, **settings)


def observes(name: str) -> bool:
    """Return whether the optimizer needs `observed`."""
    from suite.optimizers._base.torch_observing import Observing

    return isinstance(start(name).optimizer, Observing)


def in_one_process(name: str) -> Tree:
    """Train in one process, as the reference."""
    return start(name).train(range(STEPS))


def drive(
    run: mlps.Torch,
    *,
    step: Callable[[Any], Any] | None = None,
    scaler: Any = None,
    part: slice = slice(None),
    model: Any = None,
    numbers: range = range(STEPS),
) -> Tree:
    """Train as a user's loop does; `part` are the samples of this process, `step` replaces `optimizer.step`."""
    import torch

    from suite.engine.torch_alone import observed

    sees = observes(run.name)
    for number in numbers:
        x, y = (torch.tensor(value)[part] for value in mlps.batch(number))

        def closure(x: Any = x, y: Any = y) -> Any:
            run.optimizer.zero_grad()
            known = {"scaler": scaler} if scaler else {}
            with observed(model or run.model, run.optimizer, **known) if sees else contextlib.nullcontext():
                loss = 0.5 * (((model or run.model)(x) - y) ** 2).sum() / len(x)
                (scaler.scale(loss) if scaler else loss).backward()
            return loss

        if run.name == "kbfgs":
            (step or run.optimizer.step)(closure)
            continue
        closure()
        if step:
            step(None)
        elif scaler:
            scaler.step(run.optimizer)
            scaler.update()
        else:
            run.optimizer.step()
    return run.params


def with_a_tensor_as_rate(name: str) -> Tree:
    """Train with a tensor as the learning rate of each group."""
    import torch

    run = start(name)
    for group in run.optimizer.param_groups:
        group["lr"] = torch.tensor(group["lr"], dtype=torch.float64)
    return drive(run)


def with_a_cyclic_schedule(name: str) -> Tree:
    """CyclicLR between two equal rates."""
    import torch

    run = start(name)
    lr = run.optimizer.param_groups[0]["lr"]
    schedule = torch.optim.lr_scheduler.CyclicLR(run.optimizer, lr, lr, cycle_momentum=False)
    return drive(run, step=lambda closure: (run.optimizer.step(closure), schedule.step()))


def with_a_scaled_loss(name: str) -> Tree:
    """A GradScaler whose scale is a power of two and never grows."""
    import torch

    return drive(start(name), scaler=torch.amp.GradScaler("cpu", init_scale=2.0**6))


def with_a_compiled_step(name: str) -> Tree:
    """`torch.compile` of the step; K-BFGS's closure is not compiled."""
    import torch

    run = start(name)
    torch.compiler.reset()
    try:
        return drive(run, step=torch.compile(run.optimizer.step, backend="aot_eager"))
    finally:
        torch.compiler.reset()


def with_checkpointed_layers(name: str) -> Tree:
    """Reentrant checkpointing of each layer."""
    from torch.utils.checkpoint import checkpoint

    run = start(name)
    for layer in mlps.USED[1:]:
        module = run.model.get_submodule(layer)
        module.forward = lambda x, inner=module.forward: checkpoint(inner, x, use_reentrant=True)
    return drive(run)


def wrapped(name: str) -> Tree:
    """An optimizer inside an object that passes calls on, as accelerate's is."""
    import torch

    class Wrapper(torch.optim.Optimizer):
        def __init__(self, inner: Any):
            self.optimizer = inner

        step = property(lambda self: self.optimizer.step)
        zero_grad = property(lambda self: self.optimizer.zero_grad)

    run = start(name)
    run.optimizer = Wrapper(run.optimizer)
    return drive(run)


def stored_by_name(name: str) -> Tree:
    """A state that passes through torch's distributed checkpoints, into a new optimizer, before each half."""
    import torch
    from torch.distributed.checkpoint import state_dict as dcp

    options = dcp.StateDictOptions(flatten_optimizer_state_dict=False)
    run = start(name)
    closures = [run.closure(step) for step in range(STEPS)]
    for step in range(STEPS):
        if step == STEPS // 2:
            state = dcp.get_optimizer_state_dict(run.model, run.optimizer, options=options)
            new = start(name)
            new.model.load_state_dict(run.model.state_dict())
            dcp.set_optimizer_state_dict(new.model, new.optimizer, state, options=options)
            run, closures = new, [new.closure(step) for step in range(STEPS)]
        run.optimizer.step(closures[step])
    assert torch.is_grad_enabled()
    return run.params


# ----------------------------------------------------------------------------------------------- several processes
def on_ranks(backend: str, rank: int, world: int, kind: str, name: str) -> Tree | str:
    """One rank's job: its parameters, or the message of a `UserError`."""
    from suite.contract import UserError

    try:
        return {"replicated": replicated, "sharded": sharded, "uneven": uneven}[kind](name, rank, world)
    except UserError as error:
        return str(error)


def replicated(name: str, rank: int, world: int) -> Tree:
    """DistributedDataParallel, each rank with its share of the samples."""
    from torch.nn.parallel import DistributedDataParallel

    run = start(name)
    share = mlps.SAMPLES // world
    return drive(run, part=slice(rank * share, (rank + 1) * share), model=DistributedDataParallel(run.model))


def uneven(name: str, rank: int, world: int) -> Tree:
    """One rank forgets to observe."""
    run = start(name)
    if rank and observes(name):
        run.optimizer.see = lambda sums, samples: None
    return drive(run)


def sharded(name: str, rank: int, world: int) -> Tree:
    """Parameters that are split by `fully_shard`, each rank with its share of the samples; resumed from the state."""
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    from suite import load

    model = mlps.network("float64", *mlps.USED)
    fully_shard(model, mesh=init_device_mesh("cpu", (world,)))
    run = mlps.Torch.__new__(mlps.Torch)
    run.name, run.kind, run.model = name, "float64", model
    make = load.load_half(f"suite.optimizers.{name}", "torch").make
    described = mlps.layers(*(layer for layer in mlps.DESCRIBED if layer in mlps.USED))
    run.optimizer = make(model.named_parameters(), **mlps.asked(name, "torch", described))
    share = mlps.SAMPLES // world
    part = slice(rank * share, (rank + 1) * share)
    drive(run, part=part, numbers=range(STEPS // 2))
    stored = get_optimizer_state_dict(model, run.optimizer)
    run.optimizer = make(model.named_parameters(), **mlps.asked(name, "torch", described))
    set_optimizer_state_dict(model, run.optimizer, stored)
    return drive(run, part=part, numbers=range(STEPS // 2, STEPS))
