"""Plans the stages of a task's model in jax without training it."""

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from suite import load
from suite.comm.partition.device import ONE_HOST
from suite.comm.partition.jax import plan as planned
from suite.comm.partition.plan import Plan
from suite.comm.projection.network import Network
from suite.contract import Task
from suite.engine.jax_device import typed
from suite.engine.jax_programs import Mode
from suite.engine.pipeline import described
from suite.engine.pipeline.jax import sums


def plan(task: Task, config: Mapping[str, Any], network: Network = ONE_HOST) -> Plan:
    """Plan the stages of a run. The model's parameters are not made.

    Without `partition.tflops`, operations are timed here.

    Args:
        task: data and model description.
        config: of the run, with `partition`.
        network: between the devices.

    Raises:
        UserError: if the model cannot be cut or does not fit.
    """
    node = config["partition"]
    with Mode(config["precision"]):
        kind = jnp.result_type(float)
        return planned(
            functools.partial(sums, load.half(config["task"]["module"], "jax").make(task)),
            {name: jax.ShapeDtypeStruct(spec.shape, kind) for name, spec in task.shapes().items()},
            (typed(task.batch("train", config["seed"], 0, 0, 1)), np.uint32(config["seed"]), np.uint32(0)),
            devices=config["world"],
            stages=node["stages"],
            micro_batches=node["micro_batches"],
            schedule=node["schedule"],
            memory=node["memory_gib"] * 2**30,
            device=described(node),
            network=network,
            rannc_compat=node["rannc_compat"],
        )
