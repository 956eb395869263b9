"""A model's outputs in evaluation mode, from all devices of a run in jax."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.experimental import multihost_utils
from jax.sharding import PartitionSpec as P

from suite.comm.transport import Ledger, make_entry
from suite.comm.transport.jax import AXIS
from suite.contract import JaxModel
from suite.engine.jax_device import Layout
from suite.engine.jax_kept import KeptJit

Tree = dict[str, Any]
Batch = dict[str, np.ndarray]


class Evaluation:
    """Evaluates batches. Each process passes its share of a batch, and gets the outputs for the whole batch.

    Args:
        predict: (parameters, buffers, carry, batch, key) to the outputs, on one device.
        model: encodes and decodes sequences, if the task generates them.
        layout: of the run's arrays.
        params: partition specs of the parameters.
        ledger: counts the bytes that are sent.
        seed: of the run.
    """

    def __init__(
        self, predict: Callable[..., Tree], model: JaxModel, layout: Layout, params: Any, ledger: Ledger, seed: int
    ):
        self.layout, self.ledger, self.seed = layout, ledger, seed
        specs = (params, P(), P(AXIS), P(AXIS), P())
        mapped = jax.shard_map(predict, mesh=layout.mesh, in_specs=specs, out_specs=P(AXIS), check_vma=False)
        # a pipeline's own method holds its engine, with all data: such a program is not kept
        kept = isinstance(predict, functools.partial)
        self._outputs = KeptJit(predict, mapped, layout.mesh.devices, repr(params)) if kept else jax.jit(mapped)
        self._model = model

    def __call__(
        self, params: Tree, buffers: Tree, carry: Tree, batch: Batch, generate: Callable[..., Batch] | None
    ) -> Batch:
        """Return the outputs for the whole batch.

        Args:
            params: parameters, on all devices.
            buffers: on all devices.
            carry: state between steps, split over the devices.
            batch: this process's share.
            generate: `suite.contract.Generates.generate`; its result is added to the outputs. Each process searches for
                its own share, on its first device.
        """
        inputs, key, _ = self.layout.inputs(self.seed, batch, 0, {})
        outputs = self._outputs(params, buffers, carry, inputs, key)
        hosted = {name: self.host(value) for name, value in outputs.items()}
        return hosted | (self._written(params, batch, generate) if generate else {})

    def _written(self, params: Tree, batch: Batch, generate: Callable[..., Batch]) -> Batch:
        local = {name: value.addressable_data(0) for name, value in params.items()}
        encode, decode_step = self._search
        kind = jnp.result_type(float)

        def start(batch: Batch) -> Any:
            return encode(local, {n: jnp.asarray(v, kind if v.dtype.kind == "f" else None) for n, v in batch.items()})

        def advance(state: Any, rows: np.ndarray, token: np.ndarray, position: int) -> tuple[np.ndarray, Any]:
            scores, state = decode_step(local, state, jnp.asarray(rows), jnp.asarray(token), np.int32(position))
            return np.asarray(scores), state

        written = generate(batch, start, advance)
        if jax.process_count() == 1:
            return written
        return {name: multihost_utils.process_allgather(value, tiled=True) for name, value in written.items()}

    @functools.cached_property
    def _search(self) -> tuple[Any, Any]:
        return KeptJit(self._model.encode), KeptJit(self._model.decode_step)

    def host(self, value: Array) -> np.ndarray:
        """Return the whole array on every host; one split over processes is gathered."""
        if not value.is_fully_addressable and not value.is_fully_replicated:
            world = self.layout.mesh.size
            self.ledger.add([make_entry("all_gather", "evaluation", str(value.dtype), value.nbytes // world, world)])
            value = multihost_utils.process_allgather(value, tiled=True)
        return widen_floats(np.asarray(value))


def widen_floats(host: np.ndarray) -> np.ndarray:
    """Floats and integers of types that NumPy lacks, such as bfloat16, as float32; other arrays unchanged."""
    return host.astype(np.float32) if host.dtype.kind == "V" else host
