"""An optax transformation from elsewhere."""

import inspect
from collections.abc import Mapping
from typing import Any

from jax import Array, eval_shape
from jax.numpy import ones
from optax import GradientTransformation

from suite.contract import UserError
from suite.optimizers._base.jax import Optimizer, hyper
from suite.optimizers.external import DEFAULTS, chosen, found, refused

Tree = dict[str, Array]


def external(
    *,
    torch: str = DEFAULTS["torch"],
    jax: str = DEFAULTS["jax"],
    lr: float = 0.1,
    arguments: Mapping[str, Any] | None = None,
    path: str | None = None,
    matrices: str | None = None,
) -> Optimizer:
    """The rival, made anew with the step's learning rate in each trace, as `optax.inject_hyperparams` does.

    Args:
        torch: the other backend's.
        jax: dotted path of a function that returns a transformation.
        lr: its `learning_rate`; a run sets it at each step.
        arguments: what else it is called with.
        path: folder to import it from.
        matrices: not read.

    Raises:
        UserError: where it is not there, takes other arguments, or no learning rate.
    """
    jax = chosen("jax", torch=torch, jax=jax)
    build: Any = found("jax", jax, path)
    if not inspect.isroutine(build) or "learning_rate" not in inspect.signature(build).parameters:
        raise UserError(f"optimizer.jax={jax}: takes no learning_rate, so it cannot follow the run's schedule")
    given = dict(arguments or {})
    try:
        made = build(learning_rate=lr, **given)
    except (TypeError, ValueError) as error:
        raise refused("jax", jax, error) from error
    if not isinstance(made, GradientTransformation):
        raise UserError(f"optimizer.jax={jax}: returns no optax.GradientTransformation")
    tiny = {"weight": ones((2, 2))}
    try:
        eval_shape(lambda: made.update(tiny, made.init(tiny), tiny))
    except TypeError as error:
        if "required" in str(error):  # other errors may be of the tiny tree's making
            raise UserError(f"optimizer.jax={jax}: asks for more than the gradient: {error}") from error

    def init(params: Tree) -> dict[str, Any]:
        return {"hyper": hyper(lr=lr), "rival": build(learning_rate=lr, **given).init(params)}

    def update(grads: Tree, state: dict[str, Any], params: Tree) -> tuple[Tree, dict[str, Any]]:
        rival = build(learning_rate=state["hyper"]["lr"], **given)
        updates, inner = rival.update(grads, state["rival"], params)
        return updates, state | {"rival": inner}

    return Optimizer(init, update)


make = external
