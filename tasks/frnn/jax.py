"""FRNN in jax: pure functions of a flat parameter dictionary; only an LSTM's recurrence is inside a scan."""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array, lax

from suite import stream
from suite.tasks._nn.jax import dropout, linear, widen_floats
from suite.tasks.frnn import FRNN
from suite.tasks.frnn.architecture import Architecture

Tree = dict[str, Array]
Tap = Callable[[str, Array, Array], Array]


def lstm(gates: Array, weight: Array, hidden: Array, cell: Array, mask: Array | None) -> tuple[Array, Array, Array]:
    """Long short-term memory (Hochreiter and Schmidhuber 1997; with forget gates, Gers et al. 2000).

    Args:
        gates: (N, T, 4 · hidden) the inputs' share of the gates: input, forget, cell, output.
        weight: (4 · hidden, hidden) of the recurrence.
        hidden: (N, hidden) state before the first step.
        cell: (N, hidden) cell before it.
        mask: (N, hidden) multiplies the recurrent state, as in Keras's recurrent dropout.

    Returns:
        Every step's hidden state (N, T, hidden), the last one and the last cell.
    """
    wide = widen_floats(weight)  # its gradient is a sum over steps

    def step(state: tuple[Array, Array], gates: Array) -> tuple[tuple[Array, Array], Array]:
        hidden, cell = state
        gates = gates + (hidden if mask is None else hidden * mask) @ wide.astype(hidden.dtype).T
        first, forget, new, last = jnp.split(gates, 4, 1)
        cell = jax.nn.sigmoid(forget) * cell + jax.nn.sigmoid(first) * jnp.tanh(new)
        hidden = jax.nn.sigmoid(last) * jnp.tanh(cell)
        return (hidden, cell), hidden

    (hidden, cell), outputs = lax.scan(step, (hidden, cell), gates.swapaxes(0, 1))
    return outputs.swapaxes(0, 1), hidden, cell


@dataclass(frozen=True)
class Network:
    """Signals and profiles to one number per step; the twin of `suite.tasks.frnn.torch.Network`."""

    architecture: Architecture
    target: str
    activation: str
    rate: float
    l2: float
    length: int

    def apply(
        self, params: Tree, buffers: Tree, carry: Tree, batch: Tree, *, train: bool, key: Array | None, tap: Tap
    ) -> tuple[Tree, Tree, Tree]:
        """Outputs (`output` (N, T), and more as in torch), buffers, new carry (N, layers, hidden)."""
        if train:
            begins = batch["begins"][:, None, None]
            state = {name: jnp.where(begins, jnp.zeros_like(value), value) for name, value in carry.items()}
            outputs, state = self._read(params, batch, state, key, tap)
            return outputs | {"target": batch["target"], "penalty": self._penalty(params)}, buffers, state
        count, steps = batch["mask"].shape
        size = count, self.architecture.lstm_layers, self.architecture.hidden
        state = {name: jnp.zeros(size, batch["mask"].dtype) for name in ("hidden", "cell")}

        def read(state: Tree, piece: Tree) -> tuple[Tree, Array]:
            outputs, state = self._read(params, piece | {"index": batch["index"]}, state, None, tap)
            return state, outputs["output"]

        pieces = {
            name: batch[name].reshape(count, -1, self.length, *batch[name].shape[2:]).swapaxes(0, 1)
            for name in batch.keys() & {"signals", "profiles"}
        }
        _, output = lax.scan(read, state, pieces)  # (pieces, N, length)
        output = output.swapaxes(0, 1).reshape(count, steps)
        loss = (self._losses(widen_floats(output), batch["target"]) * batch["mask"]).sum(1)
        needed = {name: batch[name] for name in ("steps", "disrupted", "weight")}
        return {"output": output, "loss": loss} | needed, buffers, carry

    def _read(self, params: Tree, batch: Tree, state: Tree, key: Array | None, tap: Tap) -> tuple[Tree, Tree]:
        """`output` and `activity` (N, T) of some steps, and the state after them."""
        x, index = batch["signals"], batch["index"]
        activity = jnp.zeros_like(x[..., 0])
        if self.architecture.profiles:
            seen, activity = self._profiles(params, batch["profiles"], tap)
            x = jnp.concatenate([x, seen], 2)
        after = []
        for layer in range(self.architecture.lstm_layers):
            name, mask = f"lstm.{layer}", None
            hidden, cell = (
                state[part][:, layer].astype(params[f"{name}.recurrent.weight"].dtype) for part in ("hidden", "cell")
            )
            if self.rate and key is not None:
                x = x * self._mask(f"{name}/input", x[:, 0], key, index)[:, None]
                mask = self._mask(f"{name}/state", hidden, key, index)
            gates = linear(params, f"{name}.input", x, tap)
            x, *last = lstm(gates, params[f"{name}.recurrent.weight"], hidden, cell, mask)
            x = dropout(x, self.rate, key=key, name=f"{name}/output", index=index)
            after.append(last)
        hidden, cell = (jnp.stack(values, 1) for values in zip(*after, strict=True))
        moved = {"hidden": hidden.astype(state["hidden"].dtype), "cell": cell.astype(state["cell"].dtype)}
        return {"output": linear(params, "output", x, tap)[..., 0], "activity": activity}, moved

    def _profiles(self, params: Tree, x: Array, tap: Tap) -> tuple[Array, Array]:
        """Profiles (N, T, radii, 1D) to features (N, T, dense / 4), and the dense layers' summed squares (N, T)."""
        size, pool = self.architecture.kernel_size, self.architecture.pool
        active = jax.nn.relu if self.activation == "relu" else lambda x: x
        for layer in range(0, 2 * self.architecture.conv_layers, 2):
            points = x.shape[2] - size + 1
            x = jnp.concatenate([x[:, :, i : i + points] for i in range(size)], 3)  # neighbouring points adjacent
            for place in (layer, layer + 1):
                x = active(linear(params, f"conv.{place}", x, tap))
            x = x[:, :, : points // pool * pool].reshape(*x.shape[:2], -1, pool, x.shape[3]).max(3)
        x, activity = x.reshape(*x.shape[:2], -1), jnp.zeros_like(widen_floats(x[:, :, 0, 0]))
        for name in ("dense.0", "dense.1"):
            x = linear(params, name, x, tap)
            activity = activity + jnp.square(widen_floats(x)).sum(2)
            x = jax.nn.relu(x)
        return x, activity

    def _mask(self, name: str, like: Array, key: Array, index: Array) -> Array:
        """Dropout's factors (N, width), the same at every step of a sequence."""
        return dropout(jnp.ones_like(like), self.rate, key=key, name=name, index=index)

    def _penalty(self, params: Tree) -> Array:
        """Summed squares of the weights of the dense layers and the LSTMs."""
        return sum(
            (jnp.square(widen_floats(p)).sum() for name, p in params.items() if name.startswith(("dense", "lstm"))),
            jnp.zeros(()),
        )

    def _losses(self, output: Array, target: Array) -> Array:
        if self.target == "hinge":
            return jax.nn.relu(1.0 - target * output)
        return (output - target) ** 2

    def loss(self, outputs: Tree, batch: Tree) -> tuple[Array, Array]:
        """Summed losses of the steps that count, and their number."""
        mask = batch["mask"] * batch["weight"][:, None]
        losses = self._losses(outputs["output"], outputs["target"])
        losses = losses + self.l2 * (outputs["activity"] + outputs["penalty"])
        return (losses * mask).sum(), mask.sum()

    def sample(self, outputs: Tree, key: Array, batch: Tree) -> Tree:
        """Return the outputs with targets drawn from the model, as in torch."""
        output = outputs["output"]
        index = batch["index"][:, None] * output.shape[1] + jnp.arange(output.shape[1])
        if self.target == "hinge":
            draws = stream.uniform(jnp, key, "target", index)
            target = jnp.where(draws < jax.nn.sigmoid(2.0 * output), 1.0, -1.0)
        else:
            target = lax.stop_gradient(output) + 0.5**0.5 * stream.normal(jnp, key, "target", index)
        return outputs | {"target": target.astype(output.dtype)}


def make(task: FRNN) -> Network:
    """Make the task's model."""
    return Network(task.architecture, task.target, task.activation, task.dropout, task.l2, task.length)
