"""A short run that a policy decides over; or one rank of it (pool.py), whose clock and scores are its own.

A rank answers {policy: {"decided": [[step, mode, steps, why]], "weights": their digest}}.
"""

import functools
import hashlib
import itertools
from typing import Any
from unittest import mock

STEPS = 8
MODES = "float32", "lossy"
SECONDS = (1.0, 2.0), (30.0, 2.5)  # of a step or an exchange in these modes, by rank
SCORES = (10.0, 1.0), (90.0, -1.0)  # the first and what is added each time, by rank
POLICIES = {
    "fastest": {"repeats": 2},
    "adaprec": {"probe_steps": 2, "probe_scores": 1, "commit_steps": 4},
}


def candidates() -> dict[str, Any]:
    """Return the modes to choose from."""
    from engines import comm

    return {"float32": comm(), "lossy": comm(codec="bfloat16", algorithm="all_to_all")}


def settings(backend: str, world: int, node: dict[str, Any]) -> dict[str, Any]:
    """Of a run on the tiny task that communicates so."""
    from engines import change, config

    return change(config("sgd", backend, world=world, comm=node, precision="float32", hyper={"lr": 0.1}), {
        "max_steps": STEPS, "eval_every": 4, "log_every": 1, "checkpoint_every": 5, "prefetch": 0, "decisions": None,
        "stop_at_target": False, "schedule": {"shape": "constant", "warmup": 0},
    })  # fmt: skip


def decided(backend: str, rank: int, world: int, name: str) -> dict[str, Any]:
    """One rank's run by one policy; time passes in steps and exchanges only."""
    from engines import comm, engine, weights

    from suite.contract import Decided
    from suite.training import loop
    from suite.training.clock import Clock

    node = comm(policy={"module": f"suite.comm.policies.{name}", **POLICIES[name]}, candidates=candidates())
    config = settings(backend, world, node)
    made, now, mode = engine(config), 0.0, ""
    use, scores = made.use, itertools.count(*SCORES[rank])

    def noted(asked: Any) -> None:
        nonlocal mode
        mode = asked
        use(asked)

    def timed(call: Any, *arguments: Any) -> Any:
        nonlocal now
        found = call(*arguments)
        now += dict(zip(MODES, SECONDS[rank], strict=True)).get(str(mode), 0.0)
        return found

    def score(parts: Any) -> dict[str, float]:
        for _ in parts:  # which all ranks make together
            pass
        return {"top1": next(scores)}

    made.use, made.step, made.exchange = noted, *(functools.partial(timed, c) for c in (made.step, made.exchange))
    made.task.score = score
    with mock.patch.object(loop, "Clock", functools.partial(Clock, now=lambda: now)):
        found = [event for event in loop.train(made.task, made, config) if isinstance(event, Decided)]
    held = weights(made)
    return {
        "decided": [[one.step, one.mode, one.steps, one.why] for one in found],
        "weights": hashlib.sha256(b"".join(held[key].tobytes() for key in sorted(held))).hexdigest(),
    }


def decide(backend: str, rank: int, world: int) -> dict[str, Any]:
    """One rank's runs."""
    return {name: decided(backend, rank, world, name) for name in POLICIES}
