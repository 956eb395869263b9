"""Memory of a stage in a plan, against the bytes that are alive while the stage runs."""

import weakref
from typing import Any

import foreign_models
import pytest
import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from suite.comm.partition.device import ONE_HOST, Device
from suite.comm.partition.orders import in_flight
from suite.comm.partition.placement import place_passes
from suite.comm.partition.plan import Plan
from suite.comm.partition.planner.request import Request
from suite.comm.partition.planner.stages import ADAM
from suite.comm.partition.planning import plan
from suite.comm.partition.torch.alone import make_stages, micro_batch
from suite.comm.partition.torch.stage import seed_state
from suite.comm.partition.torch.trace import Traced, trace_model


class Alive(TorchDispatchMode):
    """Counts the bytes of new tensors, and the most at once, for the stage that runs."""

    def __init__(self, stages: int):
        super().__init__()
        self.stage, self.now, self.most = 0, [0] * stages, [0] * stages
        self.known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._note((args, kwargs), new=False)
        result = func(*args, **(kwargs or {}))
        self._note(result, new=True)
        return result

    def _note(self, tree: Any, new: bool) -> None:
        for tensor in pytree.tree_leaves(tree):
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage()._cdata not in self.known:
                storage, size = tensor.untyped_storage(), new * tensor.untyped_storage().nbytes()
                self.known.add(storage._cdata)
                self.now[self.stage] += size
                self.most[self.stage] = max(self.most[self.stage], self.now[self.stage])
                weakref.finalize(storage, self._forget, storage._cdata, self.stage, size)

    def _forget(self, key: int, stage: int, size: int) -> None:
        self.now[stage] -= size
        self.known.discard(key)


def measured(traced: Traced, made: Plan, batch: Any) -> list[int]:
    """Return the bytes of each stage in a step: its arrays, Adam's averages, its inputs, and what is alive beside."""
    chain, count = make_stages(traced, made), made.micro_batches
    alive, parts = Alive(len(chain)), [micro_batch(traced, batch, number, count) for number in range(count)]
    values: dict[tuple[int, int], Any] = {(0, number): () for number in range(count)}
    states = {(0, number): seed_state(torch.device("cpu"), number) for number in range(count)}
    grads: dict[tuple[int, int], Any] = {(len(chain) - 1, number): [] for number in range(count)}
    tied: dict[int, dict[str, torch.Tensor]] = {number: {} for number in range(count)}
    with alive:
        for event in place_passes([1] * len(chain), made.schedule, count):
            alive.stage, number, stage = event.stage, event.job.micro_batch, chain[event.stage]
            here, before, after = ((event.stage + step, number) for step in (0, -1, 1))
            if event.kind == "transfer":
                forward = event.job.kind == "forward"
                alive.stage += 1 if forward else -1
                boxes, place = (values, after) if forward else (grads, before)
                boxes[place] = [value.clone() for value in boxes[place]]
            elif event.job.kind == "forward":
                sent = stage.forward(number, parts[number], values.pop(here), states[here])
                values[after], states[after] = sent  # type: ignore[assignment]
                del sent
            else:
                own = {name: tied[number][name] for name in stage.part.parameters if name in tied[number]}
                returned = stage.backward(number, grads.pop(here), own)
                grads[before] = returned.values
                tied[number] |= returned.tied
                del returned
    totals = []
    for number, stage in enumerate(chain):
        arrays = [*stage.part.parameters.values(), *stage.part.buffers.values()]
        held = in_flight(made.schedule, len(chain) - number, 1, count)
        inputs = sum(traced.graph.values[name].nbytes for name in stage.part.inputs if traced.split[name])
        averages = ADAM * sum(parameter.nbytes for parameter in stage.own.values())
        totals.append(sum(array.nbytes for array in arrays) + averages + held * inputs + alive.most[number])
    return totals


@pytest.mark.parametrize("name", ["BART", "ResNet, BatchNorm"])
def test_memory_is_near_the_bytes_that_are_alive(name: str) -> None:
    """BART's embeddings have more gradients than a micro-batch has activations."""
    torch.manual_seed(0)
    model, inputs, targets = foreign_models.MODELS[name]()
    count = foreign_models.COUNT
    part = pytree.tree_map(lambda leaf: leaf[: foreign_models.BATCH // count], (inputs, targets))
    traced = trace_model(model.train(), *part, loss=foreign_models.mean_loss)
    made = plan(traced.graph, Request(2, foreign_models.BATCH, Device(2**40, 1e9, 1e9), ONE_HOST, 2, count))
    for stage, real in zip(made.stages, measured(traced, made, (inputs, targets)), strict=True):
        assert 0.9 <= stage.memory / real <= 1.3
