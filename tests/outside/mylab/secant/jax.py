from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import optax

from mylab.secant import INTERVAL, LAG, scale
from suite.optimizers._base.jax import Optimizer, make_hyperparameters


def make(*, lr=0.1):
    pool, future = ThreadPoolExecutor(1), []

    def put(old, new):
        return jax.device_put(np.asarray(new, old.dtype), old.sharding)

    def init(params):
        ones, kind = jax.tree.map(jnp.ones_like, params), next(iter(params.values())).dtype
        state = {"curvature": ones, "pending": jax.tree.map(jnp.ones_like, params), "due": jnp.asarray(-1)}
        return state | {"hyper": make_hyperparameters(lr=lr), "scale": jnp.ones((), kind)}

    def host(state, step):
        if int(state["due"]) == step:
            found = future.pop().result() if future else scale(jax.device_get(state["pending"]))
            state = state | {"scale": put(state["scale"], found), "due": put(state["due"], -1)}
        if step and step % INTERVAL == 0:
            seen = jax.device_get(state["curvature"])
            future[:] = [pool.submit(scale, seen)]
            pending = jax.tree.map(put, state["pending"], seen)
            state = state | {"pending": pending, "due": put(state["due"], step + LAG)}
        return state

    def update(grads, state, params, *, evaluate, reduce):
        updates = jax.tree.map(lambda g: -state["hyper"]["lr"] * state["scale"] * g, grads)
        after = reduce.mean("after", evaluate(optax.apply_updates(params, updates))[1])
        curvature = jax.tree.map(lambda c, a, g: 0.9 * c + 0.1 * (a - g) ** 2, state["curvature"], after, grads)
        return updates, state | {"curvature": curvature}

    return Optimizer(init, update, host=host, drain=lambda: [f.result() for f in future])
