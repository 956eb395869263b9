import jax
import optax

from suite.optimizers._base.jax import Optimizer, make_hyperparameters


def make(*, lr=0.1, momentum=0.9):
    trace = optax.trace(momentum)

    def update(grads, state, params):
        direction, inner = trace.update(grads, state["inner"], params)
        return jax.tree.map(lambda d: -state["hyper"]["lr"] * d, direction), state | {"inner": inner}

    return Optimizer(lambda params: {"hyper": make_hyperparameters(lr=lr), "inner": trace.init(params)}, update)
