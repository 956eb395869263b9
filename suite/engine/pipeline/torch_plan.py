"""Plans the stages of a task's model in torch without training it."""

from typing import Any

import torch
from torch import Tensor

from suite.comm.partition.device import ONE_HOST, Device
from suite.comm.partition.plan import Plan
from suite.comm.partition.planner.request import Request
from suite.comm.partition.planning import plan as planned
from suite.comm.partition.torch.profile import profile_stages
from suite.comm.partition.torch.trace import trace_model
from suite.comm.projection.network import Network
from suite.contract import Task
from suite.engine.pipeline import describe_device, partition_of
from suite.engine.pipeline.torch import Trained
from suite.engine.torch_device import describe_model
from suite.settings.run import Run


def plan(task: Task, run: Run, network: Network = ONE_HOST) -> Plan:
    """Plan the stages of a run.

    With `partition.tflops`, the model is on the `meta` device and needs no memory. Otherwise its operations are timed
    here.

    Args:
        task: data and model description.
        run: the run.
        network: between the devices.

    Raises:
        UserError: if the model cannot be cut or does not fit.
    """
    node, seed = partition_of(run), run.seed
    imagined = describe_device(node)
    where, micro_batches = torch.device("meta" if imagined else "cpu"), node.micro_batches
    dtype = torch.float64 if run.precision == "float64" else torch.float32
    model = describe_model(run.task, task)
    if not imagined:
        initial = {name: torch.from_numpy(task.init(seed, name)) for name in task.shapes()}
        model.load_state_dict(initial, assign=True)
    batch = task.batch("train", seed, 0, 0, 1)
    samples = task.batch_size // micro_batches

    def tensor(value: Any) -> Tensor:
        part = torch.from_numpy(value[:samples]).to(where)
        return part.to(dtype) if part.is_floating_point() else part

    inputs = {name: tensor(value) for name, value in batch.items()}, torch.tensor(seed), torch.tensor(0)
    traced = trace_model(Trained(model.to(dtype)).train(), inputs)
    graph = traced.graph if imagined else profile_stages(traced, where)
    device = imagined or Device(node.memory_gib * 2**30, 1.0, 1.0)  # timed operations need no speeds
    devices, schedule, compat = run.world, node.schedule, node.rannc_compat
    sizes = node.stages, micro_batches
    request = Request(devices, task.batch_size, device, network, *sizes, schedule, rannc_compat=compat)
    return planned(graph, request)
