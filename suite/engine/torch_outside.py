"""Optimizers of other packages in torch: what they draw, save and evaluate, in the terms of the engine."""

import contextlib
import random
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from suite.engine import torch_snapshot

NUMPY: Any = np.random  # whose types lack its functions for the global generator
OWN = np.random.MT19937(0)


class Outside:
    """An optimizer that knows nothing of the suite, as the engine calls it.

    - A step draws from torch's, NumPy's and Python's global generators what (seed, step) determines, on all ranks the
      same, because all ranks make the same update. The generators are restored afterwards.
    - A method that trains at one point and is evaluated at another has `train()` and `eval()`. Its parameters are at
      the point of training, except inside `evaluated_params`.
    - Its state is that of `state_dict()`, in the types that it has there, and its plain attributes.

    Args:
        make: returns the optimizer.
        device: of the parameters.
    """

    def __init__(self, make: Callable[[], torch.optim.Optimizer], device: torch.device):
        self.device = device
        with seed_generators((0, 0), device):
            self.rival = make()
        self._switches = all(callable(getattr(self.rival, name, None)) for name in ("train", "eval"))
        self._common = vars(torch.optim.SGD([nn.Parameter(torch.zeros(1))])).keys()  # what every optimizer has
        self._call("train")

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The optimizer's groups."""
        return self.rival.param_groups

    @property
    def state(self) -> dict[Tensor, Any]:
        """The optimizer's state of each parameter."""
        return self.rival.state

    def step(self, *, key: tuple[int, int], closure: Callable[[], Tensor] | None = None) -> None:
        """Update the parameters from their gradients.

        Args:
            key: (seed, step).
            closure: computes the loss again; only the probe passes it, to learn what an optimizer needs.
        """
        with seed_generators(key, self.device):
            step: Any = self.rival.step
            step(*([closure] if closure else []))

    @contextlib.contextmanager
    def evaluated_params(self) -> Iterator[None]:
        """A context in which the parameters are at the point to evaluate; afterwards they have the bits of before."""
        if not self._switches or not self.rival.state:  # before the first step there is one point
            yield
            return
        held = {parameter: parameter.detach().clone() for group in self.param_groups for parameter in group["params"]}
        self._call("eval")
        try:
            yield
        finally:
            self._call("train")
            with torch.no_grad():  # a way there and back may round
                for parameter, value in held.items():
                    parameter.copy_(value)

    def _call(self, name: str) -> None:
        if self._switches:
            getattr(self.rival, name)()

    def find_ids(self) -> str | None:
        """Return the name of an attribute that has a parameter's `id` as a key; None if there is none."""
        ids = {id(parameter) for group in self.param_groups for parameter in group["params"]}
        kept = {name: value for name, value in vars(self.rival).items() if isinstance(value, Mapping)}
        return next((name for name, value in kept.items() if ids & {key for key in value if type(key) is int}), None)

    def state_dict(self) -> dict[str, Any]:
        """Return the state, and as `attributes` what the optimizer keeps beside it and a checkpoint can hold."""
        attributes = {name: value for name, value in vars(self.rival).items() if name not in self._common}
        return {**self.rival.state_dict(), "attributes": {n: v for n, v in attributes.items() if _is_plain(v)}}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load a `state_dict`.

        torch's own method casts the state of a parameter to the parameter's type, which changes it. It is called only
        where a class has another one, or hooks on it.
        """
        rest = {name: value for name, value in state_dict.items() if name != "attributes"}
        hooks = (getattr(self.rival, f"_optimizer_load_state_dict_{when}_hooks", {}) for when in ("pre", "post"))
        if type(self.rival).load_state_dict is not torch.optim.Optimizer.load_state_dict or any(hooks):
            self.rival.load_state_dict(rest)
        else:
            own, groups = self.param_groups, rest["param_groups"]
            numbers = [number for group in groups for number in group["params"]]
            places = dict(zip(numbers, [one for group in own for one in group["params"]], strict=True))
            state = {places.get(key, key): value for key, value in rest["state"].items()}
            loaded = [group | {"params": mine["params"]} for mine, group in zip(own, groups, strict=True)]
            self.rival.__setstate__(rest | {"state": defaultdict(dict, state), "param_groups": loaded})
        vars(self.rival).update(state_dict["attributes"])


def _is_plain(value: Any) -> bool:
    """Return whether a checkpoint can hold a value."""
    try:
        torch_snapshot.pack_state(value, {})
    except TypeError:
        return False
    return not callable(value)


@contextlib.contextmanager
def seed_generators(key: tuple[int, int], device: torch.device) -> Iterator[None]:
    """A context in which the global generators of torch, NumPy and Python are at a state made from (seed, step)."""
    word = zlib.crc32(f"{key[0]} {key[1]}".encode())
    generators = [torch.default_generator]
    if device.type == "cuda" and torch.cuda.default_generators:  # there are none before CUDA is initialised
        generators.append(torch.cuda.default_generators[device.index or 0])  # torch.manual_seed takes a millisecond
    states, numpy, python = [one.get_state() for one in generators], NUMPY.get_bit_generator(), random.getstate()
    for generator in generators:
        generator.manual_seed(word)
    NUMPY.set_bit_generator(OWN)  # to copy the state of NumPy's own takes longer than all of this
    np.random.seed(word)
    random.seed(word)
    try:
        yield
    finally:
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)
        NUMPY.set_bit_generator(numpy)
        random.setstate(python)


def set_hyper(group: dict[str, Any], hyper: Mapping[str, float]) -> None:
    """Set hyper-parameters of a group; a tensor, which compiled code reads, is filled in place.

    A group whose class gave it another learning rate than the others keeps its ratio to them (`lr_ratio`).
    """
    for name, value in hyper.items():
        value = value * group.get("lr_ratio", 1.0) if name == "lr" else value
        if isinstance(group[name], Tensor):
            group[name].fill_(value)
        else:
            group[name] = value
