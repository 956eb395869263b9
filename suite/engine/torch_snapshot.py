"""Snapshots of the torch engine's state: its arrays by name, as checkpoints hold them."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from suite import engine
from suite.contract import Skeleton, Snapshot
from suite.engine import tree

RESIDUALS = "run.residuals."  # prefix of their names in a snapshot


def list_arrays(
    state: dict[str, Any], residuals: Mapping[str, Tensor], tables: Collection[str], *, replicated: bool
) -> Snapshot:
    """Return this rank's arrays by name, and a JSON skeleton; see `Engine.snapshot`.

    Args:
        state: of `model`, `optimizer` and `carry`.
        residuals: of the communication, by name.
        tables: names of the parameters that are split by rows.
        replicated: whether to include the arrays that are equal on all ranks.
    """
    arrays: dict[str, Tensor] = {}
    packed = tree.pack_tree(state, arrays, "run", lambda v: v if isinstance(v, Tensor) else None)
    named = {RESIDUALS + name: value for name, value in residuals.items()}
    own = (
        dict.fromkeys(_list_tables(state["optimizer"], tables), engine.TABLES)
        | dict.fromkeys(_list_owned(state["optimizer"], "run.optimizer"), engine.SLICES)
        | {name: engine.CARRY for name in arrays if name.startswith("run.carry.")}
        | dict.fromkeys(named, engine.RESIDUALS)
    )
    chosen = {name: value for name, value in (arrays | named).items() if replicated or name in own}
    return {name: v.detach().cpu().contiguous().numpy() for name, v in chosen.items()}, {"tree": packed, "own": own}


def read_arrays(
    arrays: dict[str, np.ndarray], skeleton: Skeleton, device: torch.device
) -> tuple[Any, dict[str, Tensor]]:
    """Return the state and the residuals of a snapshot of this rank, on the device."""

    def load(value: np.ndarray) -> Tensor:
        return torch.from_numpy(value.copy()).to(device)

    residuals = {name.removeprefix(RESIDUALS): load(v) for name, v in arrays.items() if name.startswith(RESIDUALS)}
    return tree.unpack_tree(skeleton["tree"], arrays, load), residuals


def _list_tables(optimizer: Mapping[str, Any], tables: Collection[str]) -> Iterator[str]:
    """Yield the names in a snapshot of this rank's rows of tables, and of their optimizer state."""
    groups = optimizer["param_groups"]
    places = {name: index for g in groups for name, index in zip(g["param_names"], g["params"], strict=True)}
    for table in tables:
        yield f"run.model.{table}"
        values = optimizer["state"].get(places[table], {}).items()
        yield from (f"run.optimizer.state.{places[table]}.{key}" for key, value in values if value.ndim)


def _list_owned(value: Any, path: str, inside: bool = False) -> Iterator[str]:
    """Yield the names, as `tree.pack_tree` builds them, of the tensors below a key `owned`."""
    if isinstance(value, Tensor) and inside:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
    for key, item in items:
        yield from _list_owned(item, f"{path}.{key}", inside or key == "owned")
