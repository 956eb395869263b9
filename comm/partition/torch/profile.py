"""Measures how long each operator of a traced model takes on a device."""

import dataclasses
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from suite.comm.partition.graph import Graph
from suite.comm.partition.torch.rehearsal import read_form
from suite.comm.partition.torch.tape import find_changed, get_attribute
from suite.comm.partition.torch.trace import Traced

REPEATS = 5  # measurements of each operation; the result is their median
LARGE = 2**22  # numbers that do not fit into a cache, as the gradients of a stage
SHORTEST = 1e-3  # seconds that one measurement takes at least, so that the clock's resolution does not matter


def profile_stages(traced: Traced, device: torch.device) -> Graph:
    """Return the model's graph with the measured seconds of each operator.

    Operators with the same arguments are measured once. They run on random values (indices are 0), so that the model's
    weights need not be on the device. The backward pass includes adding the gradients of parameters to their sums.
    """
    adding = _adding(device)
    seconds: dict[str, tuple[float, float]] = {}
    nodes = []
    for node, call in zip(traced.graph.nodes, traced.nodes, strict=True):
        key = _signature(traced, call)
        if key not in seconds:
            seconds[key] = _measured(traced, call, device)
        read = [traced.graph.parameters[name] for name in node.parameters]
        forward, backward = seconds[key]
        backward += adding * sum(parameter.nbytes for parameter in read if parameter.trainable)
        nodes.append(dataclasses.replace(node, seconds=(forward, backward)))
    return dataclasses.replace(traced.graph, nodes=tuple(nodes))


def _like(traced: Traced, node: fx.Node) -> Any:
    """A tensor like the one that a node gives, or the submodule that it names."""
    if node.name in traced.fakes:
        return traced.fakes[node.name]
    return get_attribute(traced.module, str(node.target)) if node.op == "get_attr" else None


def _signature(traced: Traced, call: fx.Node) -> str:
    """Equal for operators with equal arguments, apart from values."""

    def described(node: fx.Node) -> Any:
        like = _like(traced, node)
        return str(read_form(like)) if isinstance(like, Tensor) else node.name

    arguments = fx.map_arg((call.args, call.kwargs), described)
    return f"{call.target} {arguments}"


def _measured(traced: Traced, call: fx.Node, device: torch.device) -> tuple[float, float]:
    """Median seconds of an operator, (forward, backward)."""

    def made(node: fx.Node) -> Any:
        like = _like(traced, node)
        return _random(like, device) if isinstance(like, Tensor) else like

    args, kwargs = fx.map_arg((call.args, call.kwargs), made)
    target = call.target
    assert callable(target)
    if find_changed(call) is not None:  # torch changes no leaf in place; the backward pass is taken to be as long
        with torch.no_grad():
            forward = _timed(lambda: target(*args, **kwargs), device)
        return forward, forward * any(leaf.requires_grad for leaf in _tensors((args, kwargs)))
    with torch.enable_grad():
        forward = _timed(lambda: target(*args, **kwargs), device)
        result = target(*args, **kwargs)
        roots = [v for v in pytree.tree_leaves(result) if isinstance(v, Tensor) and v.requires_grad]
        leaves = [leaf for leaf in _tensors((args, kwargs)) if leaf.requires_grad]
        if not roots or not leaves:
            return forward, 0.0
        grads = [torch.ones_like(root) for root in roots]

        def back() -> None:
            torch.autograd.grad(roots, leaves, grads, allow_unused=True, retain_graph=True)

        return forward, _timed(back, device)


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]


def _adding(device: torch.device) -> float:
    """Seconds of adding a gradient to its sum, for each byte of it."""
    total, grad = torch.zeros(LARGE, device=device), torch.zeros(LARGE, device=device)
    return _timed(lambda: total.add_(grad), device) / grad.nbytes


def _random(like: Tensor, device: torch.device) -> Tensor:
    """A tensor of the same form; floating-point values are random, others are 0."""
    value = torch.empty_strided(tuple(like.shape), tuple(like.stride()), dtype=like.dtype, device=device)
    if 0 in value.stride():
        value = torch.zeros(tuple(like.shape), dtype=like.dtype, device=device)
    value = value.normal_() if value.is_floating_point() else value.zero_()
    return value.requires_grad_(like.requires_grad)


def _timed(work: Callable[[], Any], device: torch.device) -> float:
    """Median seconds of one call."""
    wait_for_device(device)
    work()
    wait_for_device(device)
    began = time.perf_counter()
    work()
    wait_for_device(device)
    calls = max(1, round(SHORTEST / max(time.perf_counter() - began, 1e-7)))
    samples = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        for _ in range(calls):
            work()
        wait_for_device(device)
        samples.append((time.perf_counter() - began) / calls)
    return statistics.median(samples)


def wait_for_device(device: torch.device) -> None:
    """Wait until a device is done."""
    if device.type != "cpu":
        torch.get_device_module(device).synchronize(device)
