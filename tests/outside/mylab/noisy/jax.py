import jax
import jax.numpy as jnp

from mylab.noisy import DEVIATION
from suite import stream
from suite.optimizers._base.jax import Optimizer, make_hyperparameters


def make(*, lr=0.1):
    def init(params):
        return {"hyper": make_hyperparameters(lr=lr)}

    def update(grads, state, params):
        return jax.tree.map(lambda g: -state["hyper"]["lr"] * g, grads), state

    def forward_params(params, state, key):
        draw = lambda name, p: stream.normal(jnp, key, name, jnp.arange(p.size)).reshape(p.shape)  # noqa: E731
        return {name: p + DEVIATION * draw(name, p).astype(p.dtype) for name, p in params.items()}

    return Optimizer(init, update, forward_params=forward_params)
