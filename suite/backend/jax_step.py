"""A step's maths in jax, seen from one device inside `shard_map`: pure functions of the run's state."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from suite.backend.jax_device import typed
from suite.comm.channel import Channels
from suite.comm.coder.jax import Coder
from suite.comm.reduce.jax import Reduce
from suite.comm.tables import jax as by_rows
from suite.comm.transport.jax import Transport
from suite.contract import Objective, Rows, Task

Tree = dict[str, Any]
Observer = Callable[[Any, Array], Tree]
NO_KEY = (0, 0)  # between gradient and update nothing is drawn: see suite.communication


@dataclass(frozen=True)
class Maths:
    """Loss, gradients, statistics and update.

    Attributes:
        model: the task's model.
        optimizer: its optimizer.
        needs: what the optimizer asks for.
        channels: how what travels.
        accumulate: micro-batches a step.
        tables: parameters placed by rows; inside a step, `params` holds this rank's share of them.
        clip_norm: largest norm of the whole gradient, 0 for any.
        narrow: compute in bfloat16.
    """

    model: Any
    optimizer: Any
    needs: tuple[str, ...]
    channels: Channels
    tables: tuple[str, ...]
    accumulate: int
    clip_norm: float
    narrow: bool

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
        """((loss sum, weight, gradients, statistics), new buffers), (new carry, tables' rows): of one micro-batch."""
        whole = {name: value for name, value in params.items() if name not in self.tables}
        fetched = self._fetched(params, batch, reduce.transport)

        def loss(whole: Tree, rows: Tree, tap: Any) -> Any:
            inputs = batch | {f"{name}.rows": value for name, value in rows.items()}
            at = context(run, inputs, carry, key)
            return objective(self.model, whole, at, narrow=self.narrow, labels=labels, tap=tap)

        probes: dict[Any, Any] = {}
        if observe:
            found = _Calls()
            jax.eval_shape(lambda p: loss(p, {}, lambda name, x, y: found.add(name, y))[0], whole)
            probes = {at: jnp.zeros(value.shape, value.dtype) for at, value in found.values.items()}

        def probed(whole: Tree, rows: Tree, probes: dict[Any, Any]) -> Any:
            calls = _Calls()
            tap = (lambda name, x, y: y + probes[calls.note(name, x)]) if observe else _untouched
            total, made = loss(whole, rows, tap)
            return total, (*made, calls.values)

        gradient = jax.value_and_grad(probed, (0, 1, 2), has_aux=True)
        (total, (weight, buffers, after, inputs)), (grads, slopes, dy) = gradient(
            whole, {name: found.values for name, found in fetched.items()}, probes
        )
        taps = {at: (inputs[at], dy[at]) for at in dy}
        statistics = observe(taps, batch["weight"]) if observe else {}
        rows = {name: Rows(found.ids, slopes[name]) for name, found in fetched.items()}
        return ((total, weight, grads, statistics), buffers), (after, rows)

    def _fetched(self, params: Tree, batch: Tree, transport: Transport) -> dict[str, Rows]:
        """The rows of the tables that the batch names."""
        named = self.model.lookups(batch) if self.tables else {}
        return {name: Rows(ids, by_rows.fetch(name, params[name], ids, transport)) for name, ids in named.items()}

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
    ) -> Any:
        """Loss, gradients, statistics, buffers, carry and the tables' rows; means over ranks are Σ / Σ weight.

        `observe` makes the statistics' sums of the layers' taps and the samples' weights.
        """
        count = self.accumulate
        split = jax.tree.map(lambda v: v.reshape(count, -1, *v.shape[1:]), (batch, run["carry"]["owned"]))

        def one(micro: Any) -> Any:
            return self._tapped(params, run, micro[0], micro[1], key, reduce, labels, observe)

        if count == 1:
            sums, each = one(jax.tree.map(lambda v: v[0], split))
            each = jax.tree.map(lambda v: v[None], each)
        else:
            shape = jax.eval_shape(lambda m: one(m)[0], jax.tree.map(lambda v: v[0], split))
            zero = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shape)

            def body(total: Any, micro: Any) -> Any:
                sums, each = one(micro)
                return jax.tree.map(jnp.add, total, sums), each

            sums, each = lax.scan(body, zero, split)
        ((total, weight, grads, statistics), buffers), (after, rows) = sums, each
        counts = reduce.exact({"weight": weight, "samples": batch["weight"].sum()})
        weight, samples = counts["weight"], counts["samples"]  # what the loss counts, perhaps words; and whose words
        loss, grads = jax.tree.map(lambda v: v / weight, (total, grads))
        statistics = jax.tree.map(lambda v: v / samples, statistics)
        buffers = jax.tree.map(lambda v: v / count, buffers)
        rows = {name: Rows(found.ids, found.values / weight) for name, found in rows.items()}
        return loss, grads, statistics, buffers, jax.tree.map(lambda v: v.reshape(-1, *v.shape[2:]), after), rows

    def body(
        self,
        run: Tree,
        made: Tree,
        batch: Tree,
        key: Array,
        hyper: Tree,
        *,
        transport: Transport,
        half: str,
        phase: Any,
    ) -> tuple[Tree, Tree]:
        """The step, or its gradient or update half: the new run, and what was made on the way.

        That is the mean loss, and between the halves the gradient and what becomes of buffers and carry. The run comes
        first, and whole, because donated memory goes to the first result of its shape: to the leaf that it was.
        """
        optimizer, run, made = self.optimizer, dict(run), dict(made)
        run["opt"] = run["opt"] | {"hyper": run["opt"]["hyper"] | hyper}  # this step's, for all that runs in it
        reduce = Reduce(transport, self.channels, state=run["comm"]["owned"], key=key)

        def evaluate(params: Tree, labels: str = "given", observe: Any = None) -> tuple[Array, Tree, Tree]:
            observe = observe or (optimizer.observe if "observe" in self.needs else None)
            again = self._evaluate(params, run, batch, key, reduce, labels=labels, observe=observe)
            return again[:3]

        if half != "update":
            at = (
                optimizer.forward_params(run["params"], run["opt"], key)
                if "forward_params" in self.needs
                else run["params"]
            )
            observe = optimizer.observe if "statistics" in phase else None
            loss, grads, statistics, buffers, after, rows = self._evaluate(at, run, batch, key, reduce, observe=observe)
            grads = self.channels.schedule.mean(reduce, grads) | {
                name: by_rows.gradient(name, found.ids, found.values / reduce.world, run["params"][name], transport)
                for name, found in rows.items()
            }
            made["grads"], made["loss"] = self._clipped(grads, run["params"], reduce), reduce.exact(loss)
            # kept aside until the step ends: a further evaluation starts from the step's old buffers and carry
            made["next"] = {"buffers": reduce.exact(buffers), "owned": after}
            if observe:
                run["opt"] = optimizer.absorb(statistics, run["opt"], reduce=reduce)
            if "sampled" in phase:
                run["opt"] = optimizer.absorb(evaluate(run["params"], "sampled")[2], run["opt"], reduce=reduce)
        if half != "gradient":
            grads, after = made.pop("grads"), made.pop("next")
            offers = {"evaluate": evaluate, "reduce": reduce, "phase": phase, "key": key}
            offers["context"] = context(run, batch, run["carry"]["owned"], key)
            asked = {name: value for name, value in offers.items() if name in self.needs}
            updates, run["opt"] = optimizer.update(grads, run["opt"], run["params"], **asked)
            run["params"] = {name: _updated(value, updates[name]) for name, value in run["params"].items()}
            run["buffers"], run["carry"] = after["buffers"], {"owned": after["owned"]}
        run["comm"] = {"owned": reduce.state}
        return run, made

    def exchange(self, values: Tree, *, transport: Transport) -> Tree:
        """The mean over ranks of values that travel as gradients do."""
        return Reduce(transport, self.channels, state={}, key=NO_KEY).mean("gradients", values)

    def code(self, values: Tree, *, transport: Transport) -> Tree:
        """Gradients encoded and decoded, bucket by bucket; nothing is sent."""
        found = {}
        sizes = {name: value.size * value.dtype.itemsize for name, value in values.items()}
        for name, channel, members in self.channels.buckets(sizes):
            row = jnp.concatenate([values[member].reshape(-1) for member in members])[None]
            coder = Coder(f"trial/{name}", channel.codec, None, NO_KEY, transport.rank)
            payloads = lax.optimization_barrier(coder.encode("", row))  # which the network would need as they are
            found[name] = coder.decode(payloads, row[0])
        return found

    def prepared(self, run: Tree, batch: Tree, key: Array, *, transport: Transport, labels: str) -> Tree:
        """The optimizer's statistics of a batch, averaged over ranks."""
        reduce = Reduce(transport, self.channels, state={}, key=NO_KEY)
        observe = self.optimizer.observe
        return reduce.exact(self._evaluate(run["params"], run, batch, key, reduce, labels=labels, observe=observe)[2])

    def prepare(self, state: Tree, statistics: Tree, *, transport: Transport) -> Tree:
        """The optimizer's state that begins with these statistics."""
        return self.optimizer.prepare(statistics, state, reduce=Reduce(transport, self.channels, state={}, key=NO_KEY))

    def refresh(self, state: Tree, *, transport: Transport, names: tuple[str, ...]) -> Tree:
        """Run some of the optimizer's programs on its state, one after another: each may want all threads."""
        for name in names:
            reduce = Reduce(transport, self.channels, state={}, key=NO_KEY)
            state = lax.optimization_barrier(self.optimizer.program(name, state, reduce=reduce))
        return state

    def whole_gradients(
        self, run: Tree, batch: Tree, key: Array, *, transport: Transport, names: tuple[str, ...]
    ) -> Tree:
        """Of sparse matrices, the gradient (outputs, inputs) also where no weight is stored."""
        reduce = Reduce(transport, self.channels, state={}, key=NO_KEY)

        def observe(taps: Mapping[tuple[str, int], tuple[Array, Array]], weight: Array) -> Tree:
            sums: Tree = {}
            for (name, _), (x, dy) in taps.items():
                if name in names:
                    wide = jnp.promote_types(dy.dtype, jnp.float32)
                    found = dy.reshape(-1, dy.shape[-1]).astype(wide).T @ x.reshape(-1, x.shape[-1]).astype(wide)
                    sums[name] = sums[name] + found if name in sums else found
            return sums

        return reduce.exact(self._evaluate(run["params"], run, batch, key, reduce, observe=observe)[2])

    def reset(self, run: Tree, moved: Tree, *, transport: Transport) -> Tree:
        """Parameters and optimizer state (`params`, `opt`) in which blocks that have moved start again from zero."""
        params = {
            name: jnp.where(mask.reshape(-1, *[1] * (run["params"][name].ndim - 1)), 0, run["params"][name])
            for name, mask in moved.items()
        }
        return {"params": run["params"] | params, "opt": self.optimizer.reset(run["opt"], moved)}

    def predict(self, params: Tree, buffers: Tree, carry: Tree, batch: Tree, key: Array, *, world: int) -> Tree:
        """The model's outputs in evaluation mode."""
        fetched = self._fetched(params, batch, Transport(world))
        rows = {f"{name}.rows": found.values for name, found in fetched.items()}
        params, batch = _cast(params, batch | rows, self.narrow)
        return self.model.apply(params, buffers, carry, batch, train=False, key=key, tap=lambda name, x, y: y)[0]

    def _clipped(self, grads: Tree, params: Tree, reduce: Reduce) -> Tree:
        """The gradient, scaled down to a norm of `clip_norm` where it is larger (Pascanu et al. 2013, algorithm 1)."""
        if not self.clip_norm:
            return grads
        square = sum(jnp.vdot(grad, grad) for name, grad in grads.items() if name not in self.tables)
        if self.tables:  # each rank holds other rows; an id may stand there more than once
            whole = [_updated(jnp.zeros_like(params[name]), grads[name]) for name in self.tables]
            own = jnp.stack([jnp.vdot(grad, grad) for grad in whole]).sum()
            square = square + reduce.world * reduce.exact({"norm": own})["norm"]
        factor = jnp.minimum(1.0, self.clip_norm / jnp.sqrt(square))
        rows = {name: Rows(grads[name].ids, grads[name].values * factor) for name in self.tables}
        return {name: grad * factor for name, grad in grads.items() if name not in rows} | rows


def context(run: Tree, batch: Tree, carry: Tree, key: Any) -> Tree:
    """What the loss depends on beside the parameters."""
    return {"batch": batch, "buffers": run["buffers"], "patterns": run["patterns"], "carry": carry, "key": key}


def _untouched(name: str, x: Array, y: Array) -> Array:
    return y


def objective(
    model: Any, params: Tree, context: Tree, *, narrow: bool, labels: str = "given", tap: Any = _untouched
) -> tuple[Array, tuple[Array, Tree, Tree]]:
    """The summed loss of a batch, and (what it counts, new buffers, new carry); see `suite.contract.Objective`.

    `narrow`: compute in bfloat16.
    """
    batch, buffers, key = (context[name] for name in ("batch", "buffers", "key"))
    params, inputs = _cast(params, batch, narrow)
    held, carry = buffers | context["patterns"], context["carry"]
    outputs, after, carry = model.apply(params, held, carry, inputs, train=True, key=key, tap=tap)
    if labels == "sampled":
        outputs = model.sample(outputs, key, batch)
    total, weight = model.loss(outputs, batch)
    return total, (weight, {name: after[name] for name in buffers}, carry)


def offered(model: Any, task: Task, seed: int, world: int, held: Mapping[str, Tree], *, narrow: bool) -> Objective:
    """The objective of one rank's batch, with shapes of its context; `held` are parameters, buffers and patterns."""
    batch, carry = typed(task.batch("train", seed, 0, 0, world)), typed(task.carry(task.batch_size // world))
    run = {"buffers": held["buffer"], "patterns": held["pattern"]}
    example = context(run, batch, carry, np.zeros(2, np.uint32))
    return Objective(functools.partial(objective, model, narrow=narrow), jax.eval_shape(lambda found: found, example))


class _Calls:
    """Counts how often each layer is called in one trace."""

    def __init__(self) -> None:
        self.count: dict[str, int] = {}
        self.values: dict[tuple[str, int], Any] = {}

    def note(self, name: str, value: Any) -> tuple[str, int]:
        """The key of this call, under which `value` is kept."""
        at = name, self.count.get(name, 0)
        self.count[name] = at[1] + 1
        self.values[at] = value
        return at

    def add(self, name: str, value: Any) -> Any:
        """Keep `value` and hand it on."""
        self.note(name, value)
        return value


def _updated(value: Array, update: Any) -> Array:
    """`value` plus an update, which for a table may be `Rows`."""
    if isinstance(update, Rows):
        return value.at[update.ids].add(update.values)
    return (value + update).astype(value.dtype)


def _cast(params: Tree, batch: Tree, narrow: bool) -> tuple[Tree, Tree]:
    """Parameters and inputs as the model computes with them, in bfloat16 or as they are; samples' weights stay wide."""
    if not narrow:
        return params, batch
    return jax.tree.map(_bfloat16, params), {n: v if n == "weight" else _bfloat16(v) for n, v in batch.items()}


def _bfloat16(value: Array) -> Array:
    return value.astype(jnp.bfloat16) if jnp.issubdtype(value.dtype, jnp.floating) else value
