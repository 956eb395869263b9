"""A step's maths in jax, seen from one device inside `shard_map`: pure functions of the run's state."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from suite.comm.channel import Channels
from suite.comm.reduce.jax import Reduce
from suite.comm.tables import jax as by_rows
from suite.comm.transport.jax import Transport
from suite.contract import JaxModel, JaxOptimizer, Objective, Rows, Task
from suite.engine import select_update_words
from suite.engine.jax_device import cast_batch
from suite.optimizers._base.jax import widen_floats
from suite.optimizers._linalg.jax import multiply_matrices

Tree = dict[str, Any]
Observer = Callable[[Any, Array], Tree]
NO_KEY = (0, 0)  # for programs that draw no random numbers: see suite.comm.setup


@dataclass(frozen=True)
class Maths:
    """Loss, gradients, statistics and update.

    Attributes:
        model: the task's model.
        optimizer: its optimizer.
        needs: the optimizer's NEEDS.
        channels: the channels of gradients and statistics.
        accumulate: micro-batches in a step.
        tables: parameters placed by rows; inside a step, `params` contains this rank's rows of them.
        clip_norm: largest norm of the whole gradient; 0: no clipping.
        rounded: parameters that the model gets in bfloat16 in training; see `suite.engine.list_rounded`.
    """

    model: JaxModel
    optimizer: JaxOptimizer
    needs: tuple[str, ...]
    channels: Channels
    tables: tuple[str, ...]
    accumulate: int
    clip_norm: float
    rounded: Sequence[str]

    def _tapped(
        self,
        params: Tree,
        run: Tree,
        batch: Tree,
        carry: Tree,
        key: Array,
        reduce: Reduce,
        labels: str,
        observe: Observer | None,
    ) -> Any:
        """One micro-batch: ((loss sum, weight, gradients, statistics), new buffers), (new carry, gradients of rows)."""
        whole = {name: value for name, value in params.items() if name not in self.tables}
        fetched = self._fetched(params, batch, reduce.transport)

        def loss(whole: Tree, rows: Tree, tap: Any) -> Any:
            inputs = batch | {f"{name}.rows": value for name, value in rows.items()}
            inputs_of_loss = make_context(run, inputs, carry, key)
            return compute_loss(self.model, whole, inputs_of_loss, rounded=self.rounded, labels=labels, tap=tap)

        probes: dict[Any, Any] = {}
        if observe:
            outputs = Calls()
            jax.eval_shape(lambda p: loss(p, {}, lambda name, x, y: outputs.add(name, y))[0], whole)
            probes = {call: jnp.zeros(value.shape, value.dtype) for call, value in outputs.values.items()}

        def probed(whole: Tree, rows: Tree, probes: dict[Any, Any]) -> Any:
            calls = Calls()
            tap = (lambda name, x, y: y + probes[calls.note(name, x)]) if observe else keep_output
            total, auxiliary = loss(whole, rows, tap)
            return total, (*auxiliary, calls.values)

        gradient = jax.value_and_grad(probed, (0, 1, 2), has_aux=True)
        (total, (weight, buffers, after, inputs)), (grads, slopes, dy) = gradient(
            whole, {name: lookup.values for name, lookup in fetched.items()}, probes
        )
        taps = {call: (inputs[call], dy[call]) for call in dy}
        statistics = observe(taps, batch["weight"]) if observe else {}
        rows = {name: Rows(lookup.ids, slopes[name]) for name, lookup in fetched.items()}
        return ((total, weight, grads, statistics), buffers), (after, rows)

    def _fetched(self, params: Tree, batch: Tree, transport: Transport) -> dict[str, Rows]:
        """Fetch the rows of the tables that the batch reads."""
        named = self.model.lookups(batch) if self.tables else {}
        unchecked = transport.unchecked()  # several micro-batches are a compiled loop, which cannot return checksums
        return {name: Rows(ids, by_rows.fetch_rows(name, params[name], ids, unchecked)) for name, ids in named.items()}

    def _evaluate(
        self,
        params: Tree,
        run: Tree,
        batch: Tree,
        key: Array,
        reduce: Reduce,
        *,
        labels: str = "given",
        observe: Observer | None,
        per_term: bool = False,
    ) -> Any:
        """Loss, gradients, statistics, buffers, carry and gradients of rows, for all micro-batches.

        The mean of loss, gradients and statistics over ranks is Σ sum / Σ weight. `observe` computes the sums of
        statistics from the layers' taps and the samples' weights.
        """
        count = self.accumulate
        split = jax.tree.map(lambda v: v.reshape(count, -1, *v.shape[1:]), (batch, run["carry"]["owned"]))

        def tapped(micro: Any) -> Any:
            return self._tapped(params, run, micro[0], micro[1], key, reduce, labels, observe)

        if count == 1:
            sums, stacked = tapped(jax.tree.map(lambda v: v[0], split))
            stacked = jax.tree.map(lambda v: v[None], stacked)
        else:
            shape = jax.eval_shape(lambda m: tapped(m)[0], jax.tree.map(lambda v: v[0], split))
            zero = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shape)

            def body(total: Any, micro: Any) -> Any:
                sums, stacked = tapped(micro)
                return jax.tree.map(jnp.add, total, sums), stacked

            sums, stacked = lax.scan(body, zero, split)
        ((total, weight, grads, statistics), buffers), (after, rows) = sums, stacked
        counts = reduce.exact({"weight": weight, "samples": batch["weight"].sum()})
        weight, samples = counts["weight"], counts["samples"]  # the loss may count words, not samples
        loss, grads = jax.tree.map(lambda v: v / weight, (total, grads))
        statistics = jax.tree.map(lambda v: v / (weight if per_term else samples), statistics)
        buffers = jax.tree.map(lambda v: v / count, buffers)
        rows = {name: Rows(grad.ids, grad.values / weight) for name, grad in rows.items()}
        return loss, grads, statistics, buffers, jax.tree.map(lambda v: v.reshape(-1, *v.shape[2:]), after), rows

    def step(
        self, run: Tree, batch: Tree, key: Array, hyper: Tree, *, transport: Transport, phase: tuple[str, ...]
    ) -> tuple[Tree, Tree]:
        """Make a whole step; returns the new run and {"loss": the mean over ranks}. Arguments: see `differentiate`.

        The run comes first, because XLA gives donated memory to the first result of the same shape, which is then the
        same leaf.
        """
        run, halfway = self.differentiate(run, batch, key, hyper, transport=transport, phase=phase)
        loss = halfway.pop("loss")
        run, _ = self.update(run, halfway, batch, key, hyper, transport=transport, phase=phase)
        return run, {"loss": loss}

    def differentiate(
        self, run: Tree, batch: Tree, key: Array, hyper: Tree, *, transport: Transport, phase: tuple[str, ...]
    ) -> tuple[Tree, Tree]:
        """Make the first half of a step: loss, gradients and statistics.

        Args:
            run: the state.
            batch: this rank's share.
            key: (seed, step).
            hyper: scheduled hyper-parameters of this step.
            transport: of this trace.
            phase: the plan's words for this step.

        Returns:
            The new run, and `loss`, the mean over ranks, `grads`, and `next`, the new buffers and carry: the run gets
            these when the step ends, because a further evaluation starts from the step's old ones.
        """
        optimizer, run, reduce = self.optimizer, self._with_hyper(run, hyper), self._reduce(run, key, transport)
        observe = optimizer.observe if "statistics" in phase else None
        weights = run["params"]
        if "forward_params" in self.needs:
            weights = optimizer.forward_params(weights, run["opt"], key)
        loss, grads, statistics, buffers, after, rows = self._evaluate(
            weights, run, batch, key, reduce, observe=observe
        )
        grads = self.channels.schedule.mean(reduce, grads) | {
            name: by_rows.sum_gradient(name, grad.ids, grad.values / reduce.world, run["params"][name], transport)
            for name, grad in rows.items()
        }
        grads, loss = self._clipped(grads, run["params"], reduce), reduce.exact(loss)
        if "collect" in self.needs:
            run["opt"] = optimizer.collect(grads, run["opt"], run["params"])
        kept = {"buffers": reduce.exact(buffers), "owned": after}
        if observe:
            run["opt"] = optimizer.absorb(statistics, run["opt"], reduce=reduce)
        if "sampled" in phase:
            observe = optimizer.observe
            again = self._evaluate(run["params"], run, batch, key, reduce, labels="sampled", observe=observe)
            run["opt"] = optimizer.absorb(again[2], run["opt"], reduce=reduce)
        run["comm"] = {"owned": reduce.state}
        return run, {"grads": grads, "next": kept, "loss": loss}

    def update(
        self,
        run: Tree,
        halfway: Tree,
        batch: Tree,
        key: Array,
        hyper: Tree,
        *,
        transport: Transport,
        phase: tuple[str, ...],
    ) -> tuple[Tree, Tree]:
        """Make the second half of a step, which moves the parameters.

        Args:
            run: the state after the first half.
            halfway: `grads` and `next` of the first half.
            batch: this rank's share.
            key: (seed, step).
            hyper: scheduled hyper-parameters of this step.
            transport: of this trace.
            phase: the plan's words for this step.

        Returns:
            The new run, and {}, as no half has results beside it.
        """
        optimizer, run, reduce = self.optimizer, self._with_hyper(run, hyper), self._reduce(run, key, transport)

        def evaluate(
            params: Tree, labels: str = "given", observe: Any = None, per_term: bool = False
        ) -> tuple[Array, Tree, Tree]:
            observe = observe or (optimizer.observe if "observe" in self.needs else None)
            again = self._evaluate(params, run, batch, key, reduce, labels=labels, observe=observe, per_term=per_term)
            return again[:3]

        offers = {"evaluate": evaluate, "reduce": reduce, "phase": select_update_words(phase), "key": key}
        offers["context"] = make_context(run, batch, run["carry"]["owned"], key)
        needed = {name: value for name, value in offers.items() if name in self.needs}
        updates, run["opt"] = optimizer.update(halfway["grads"], run["opt"], run["params"], **needed)
        run["params"] = {name: apply_update(value, updates[name]) for name, value in run["params"].items()}
        run["buffers"], run["carry"] = halfway["next"]["buffers"], {"owned": halfway["next"]["owned"]}
        run["comm"] = {"owned": reduce.state}
        return run, {}

    def _with_hyper(self, run: Tree, hyper: Tree) -> Tree:
        """Return a copy of the run whose optimizer has this step's hyper-parameters."""
        return run | {"opt": run["opt"] | {"hyper": run["opt"]["hyper"] | hyper}}

    def _reduce(self, run: Tree, key: Array, transport: Transport) -> Reduce:
        return Reduce(transport, self.channels, state=run["comm"]["owned"], key=key)

    def exchange(self, values: Tree, *, transport: Transport) -> Tree:
        """Return the mean over ranks of values that are sent as gradients are."""
        reduce = Reduce(transport, self.channels, state={}, key=NO_KEY)
        return reduce.mean("gradients", values, gradients=True)

    def code(self, values: Tree, *, transport: Transport) -> Tree:
        """Encode and decode gradients bucket by bucket; nothing is sent."""
        return Reduce(transport, self.channels, state={}, key=NO_KEY).code(values)

    def prepared(self, run: Tree, batch: Tree, key: Array, *, transport: Transport, labels: str) -> Tree:
        """Return the optimizer's statistics of a batch, averaged over ranks."""
        reduce = Reduce(transport, self.channels, state={}, key=NO_KEY)
        observe = self.optimizer.observe
        return reduce.exact(self._evaluate(run["params"], run, batch, key, reduce, labels=labels, observe=observe)[2])

    def add(self, total: Tree, statistics: Tree, *, transport: Transport) -> Tree:
        """Return the sum of two batches' statistics."""
        return jax.tree.map(jnp.add, total, statistics)

    def prepare(self, state: Tree, total: Tree, share: Array, *, transport: Transport) -> Tree:
        """Return the optimizer's state, initialised with the sum of batches' statistics times each one's share."""
        mean = lax.optimization_barrier(jax.tree.map(lambda value: value * share, total))
        return self.optimizer.prepare(mean, state, reduce=Reduce(transport, self.channels, state={}, key=NO_KEY))

    def refresh(self, state: Tree, *, transport: Transport, names: tuple[str, ...]) -> Tree:
        """Run some of the optimizer's programs on its state, one after another: each may use all threads."""
        for name in names:
            reduce = Reduce(transport, self.channels, state={}, key=NO_KEY)
            state = lax.optimization_barrier(self.optimizer.program(name, state, reduce=reduce))
        return state

    def whole_gradients(
        self, run: Tree, batch: Tree, key: Array, *, transport: Transport, names: tuple[str, ...]
    ) -> Tree:
        """Return the gradients (outputs, inputs) of whole sparse matrices, including places without a stored block."""
        reduce = Reduce(transport, self.channels, state={}, key=NO_KEY)

        def observe(taps: Mapping[tuple[str, int], tuple[Array, Array]], weight: Array) -> Tree:
            sums: Tree = {}
            for (name, _), (x, dy) in taps.items():
                if name in names:
                    product = multiply_matrices(dy.reshape(-1, dy.shape[-1]).T, x.reshape(-1, x.shape[-1]))
                    sums[name] = sums[name] + product if name in sums else product
            return sums

        return reduce.exact(self._evaluate(run["params"], run, batch, key, reduce, observe=observe)[2])

    def reset(self, run: Tree, moved: Tree, *, transport: Transport) -> Tree:
        """Return `params` and `opt` with zeros for the blocks that have moved; `moved` is {weight: (n,) booleans}."""
        params = {
            name: jnp.where(mask.reshape(-1, *[1] * (run["params"][name].ndim - 1)), 0, run["params"][name])
            for name, mask in moved.items()
        }
        return {"params": run["params"] | params, "opt": self.optimizer.reset(run["opt"], moved)}

    def predict(self, params: Tree, buffers: Tree, carry: Tree, batch: Tree, key: Array, *, world: int) -> Tree:
        """Return the model's outputs in evaluation mode, not rounded to bfloat16."""
        fetched = self._fetched(params, batch, Transport(world))
        rows = {f"{name}.rows": lookup.values for name, lookup in fetched.items()}
        return self.model.apply(params, buffers, carry, batch | rows, train=False, key=key, tap=keep_output)[0]

    def _clipped(self, grads: Tree, params: Tree, reduce: Reduce) -> Tree:
        """Scale the gradient to the norm `clip_norm` if its norm is larger (Pascanu et al. 2013, algorithm 1)."""
        if not self.clip_norm:
            return grads
        square = sum(jnp.vdot(grad, grad) for name, grad in grads.items() if name not in self.tables)
        if self.tables:  # ranks hold different rows; the updates of a recurring id are added first
            whole = [apply_update(jnp.zeros_like(params[name]), grads[name]) for name in self.tables]
            local_square = jnp.stack([jnp.vdot(grad, grad) for grad in whole]).sum()
            square = square + reduce.world * reduce.exact({"norm": local_square})["norm"]
        factor = jnp.minimum(1.0, self.clip_norm / jnp.sqrt(square))
        rows = {name: Rows(grads[name].ids, grads[name].values * factor) for name in self.tables}
        return {name: grad * factor for name, grad in grads.items() if name not in rows} | rows


def make_context(run: Tree, batch: Tree, carry: Tree, key: Any) -> Tree:
    """Return the inputs of the loss except the parameters: `Objective.context`."""
    return {"batch": batch, "buffers": run["buffers"], "patterns": run["patterns"], "carry": carry, "key": key}


def keep_output(name: str, x: Array, y: Array) -> Array:
    """Return the tap that changes nothing."""
    return y


def compute_loss(
    model: JaxModel,
    params: Tree,
    context: Tree,
    *,
    rounded: Sequence[str] = (),
    labels: str = "given",
    tap: Any = keep_output,
) -> tuple[Array, tuple[Array, Tree, Tree]]:
    """Compute the loss of a batch; `suite.contract.Objective.value`.

    Args:
        model: the task's model.
        params: parameters, without the tables placed by rows.
        context: the other inputs, as `make_context` returns them.
        rounded: parameters that the model gets in bfloat16; its layers compute in the types of their weights.
        labels: "given", or "sampled" from the model's distribution.
        tap: receives each layer's name, input and output; its result replaces the output.

    Returns:
        The summed loss in at least float32, and (what the sum counts, new buffers, new carry).
    """
    batch, buffers, key = (context[name] for name in ("batch", "buffers", "key"))
    params = params | {name: params[name].astype(jnp.bfloat16) for name in rounded}
    all_buffers, carry = buffers | context["patterns"], context["carry"]
    outputs, after, carry = model.apply(params, all_buffers, carry, batch, train=True, key=key, tap=tap)
    outputs, carry = jax.tree.map(widen_floats, (outputs, carry))
    if labels == "sampled":
        outputs = model.sample(outputs, key, batch)
    total, weight = model.loss(outputs, batch)
    return total, (weight, {name: after[name] for name in buffers}, carry)


def make_objective(
    model: JaxModel, task: Task, seed: int, world: int, held: Mapping[str, Tree], *, rounded: Sequence[str]
) -> Objective:
    """Return the objective of one rank's batch; `held` has the parameters, buffers and patterns by kind."""
    batch, carry = cast_batch(task.batch("train", seed, 0, 0, world)), cast_batch(task.carry(task.batch_size // world))
    run = {"buffers": held["buffer"], "patterns": held["pattern"]}
    example = make_context(run, batch, carry, np.zeros(2, np.uint32))
    return Objective(
        functools.partial(compute_loss, model, rounded=rounded), jax.eval_shape(lambda inputs: inputs, example)
    )


class Calls:
    """One value for each call of a layer in a trace, by (layer, how many calls came before)."""

    def __init__(self) -> None:
        self.count: dict[str, int] = {}
        self.values: dict[tuple[str, int], Any] = {}

    def note(self, name: str, value: Any) -> tuple[str, int]:
        """Store `value` for this call, and return the call's key."""
        call = name, self.count.get(name, 0)
        self.count[name] = call[1] + 1
        self.values[call] = value
        return call

    def add(self, name: str, value: Any) -> Any:
        """Store `value` for this call, and return it."""
        self.note(name, value)
        return value


def apply_update(value: Array, update: Any) -> Array:
    """Return `value` plus an update; that of a table may be `Rows`."""
    if isinstance(update, Rows):
        return value.at[update.ids].add(update.values)
    return (value + update).astype(value.dtype)
