"""Trains a small network with PyTorch's `fully_shard` on two ranks, and in one process."""

import tempfile
from collections.abc import Mapping
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.optim import Optimizer

RANKS = 2
WIDTH = 32
OTHERS = {"Optimizer", "SparseAdam", "LBFGS"}  # the base class; one needs sparse gradients, one a closure


def compare_losses(name: str, seed: int, rate: float, steps: int) -> float:
    """Return the last loss on the ranks over the one in this process."""
    return train_sharded([name], seed, rate, steps)[name] / train_network(list_optimizers()[name], seed, rate, steps)


def count_errors(seed: int, rate: float, steps: int) -> float:
    """Return the share of optimizers that raise an error on the ranks."""
    names = list(list_optimizers())
    return 1 - len(train_sharded(names, seed, rate, steps)) / len(names)


def list_optimizers() -> dict[str, type[Optimizer]]:
    """Return the optimizers of `torch.optim` by name."""
    members = {name: member for name, member in vars(torch.optim).items() if name not in OTHERS}
    return {
        name: member for name, member in members.items() if isinstance(member, type) and issubclass(member, Optimizer)
    }


def train_network(optimizer: type[Optimizer], seed: int, rate: float, steps: int, *, sharded: bool = False) -> float:
    """Return the mean squared error on the batch after the last step."""
    torch.manual_seed(seed)
    layers = [nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3)]
    model = nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2])
    teacher = torch.randn(WIDTH, WIDTH) / WIDTH**0.5
    if sharded:
        fully_shard(model)
    updater = optimizer(model.parameters(), lr=rate)  # type: ignore[call-arg]  # the base class has no rate
    for _ in range(steps):
        _measure_loss(model, teacher, 64).backward()
        updater.step()
        updater.zero_grad()
    return _measure_loss(model, teacher, 1024).item()


def _measure_loss(model: nn.Module, teacher: torch.Tensor, size: int) -> torch.Tensor:
    batch = torch.randn(size, WIDTH)
    return (model(batch) - batch @ teacher).square().mean()


def train_sharded(names: list[str], seed: int, rate: float, steps: int) -> Mapping[str, float]:
    """Return the loss of each optimizer that raises no error."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_train_rank, (Path(folder), names, seed, rate, steps), RANKS)
        return torch.load(Path(folder) / "losses")


def _train_rank(rank: int, folder: Path, names: list[str], seed: int, rate: float, steps: int) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/ranks", rank=rank, world_size=RANKS)
    losses: dict[str, float] = {}
    for name in names:
        try:
            losses[name] = train_network(list_optimizers()[name], seed, rate, steps, sharded=True)
        except RuntimeError as error:  # both ranks meet it at the same place
            if "placement" not in str(error):  # how an array is sharded
                raise
    if rank == 0:
        torch.save(losses, folder / "losses")
    dist.destroy_process_group()
