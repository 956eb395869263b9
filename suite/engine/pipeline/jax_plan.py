"""Plans the stages of a task's model in jax without training it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from suite.comm.partition.device import ONE_HOST
from suite.comm.partition.jax import plan as planned
from suite.comm.partition.plan import Plan
from suite.comm.projection.network import Network
from suite.contract import Task
from suite.engine.jax_device import cast_batch
from suite.engine.jax_programs import Mode
from suite.engine.pipeline import describe_device, partition_of
from suite.engine.pipeline.jax import list_kinds, sum_losses
from suite.settings.run import Run


def plan(task: Task, run: Run, network: Network = ONE_HOST) -> Plan:
    """Plan the stages of a run. The model's parameters are not made.

    Without `partition.tflops`, operations are timed here.

    Args:
        task: data and model description.
        run: the run.
        network: between the devices.

    Raises:
        UserError: if the model cannot be cut or does not fit.
    """
    node = partition_of(run)
    with Mode(run.precision):
        kind = jnp.result_type(float)
        model = run.task.make_model("jax", task)
        return planned(
            functools.partial(sum_losses, model, list_kinds(task)),
            {
                name: jax.ShapeDtypeStruct(spec.shape, jnp.int32 if spec.kind == "pattern" else kind)
                for name, spec in task.shapes().items()
            },
            (cast_batch(task.batch("train", run.seed, 0, 0, 1)), np.uint32(run.seed), np.uint32(0)),
            devices=run.world,
            stages=node.stages,
            micro_batches=node.micro_batches,
            schedule=node.schedule,
            memory=node.memory_gib * 2**30,
            device=describe_device(node),
            network=network,
            rannc_compat=node.rannc_compat,
        )
