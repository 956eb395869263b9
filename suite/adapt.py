"""Lets a policy try ways of communicating, and holds the run to what it decides.

A policy (`suite.comm.policies`) asks; here the engine does what it asks for and is put back. Rank 0 asks and decides,
the other ranks are told. Decisions are events of the run: a restored run goes on with them, and `decisions=RESULT`
replays another run's, without trying anything.
"""

import functools
import json
import math
import statistics
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from suite import load
from suite.clock import Clock
from suite.comm.policies._policy import Commit, Measure, Point, Predict, Predicted, Probe, Probed, Situation
from suite.contract import Decided, Task, UserError
from suite.predict import Model


def recorded(path: str) -> list[dict[str, Any]]:
    """The decisions of a `result.json` or of an `events.jsonl`.

    Raises:
        UserError: where there are none.
    """
    try:
        text = Path(path).read_text()
        lines = [json.loads(line) for line in text.splitlines()] if path.endswith(".jsonl") else []
        found = [line for line in lines if line["event"] == "decided"] if lines else json.loads(text)["decisions"]
    except (OSError, KeyError, ValueError) as error:
        raise UserError(f"decisions={path}: no record of decisions ({error}); type a result.json") from error
    return [{name: one[name] for name in ("step", "mode", "steps", "why")} for one in found]


class Adaptation:
    """Decides before some steps how gradients travel.

    Args:
        config: the run's configuration: `comm decisions max_steps`; for `Predict` also `world precision network`.
        task: whose last target's metric is predicted.
        engine: a backend's, with `use`, `exchange`, `code`, `tell`, `warm`, `step`, `snapshot` and `restore`.
        clock: what is tried stays on it.
        batch: training batches by number.
        hyper: hyper-parameters by step.
        evaluate: the validation split's metrics at the engine's present state.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        task: Task,
        engine: Any,
        clock: Clock,
        *,
        batch: Callable[[int], Any],
        hyper: Sequence[Mapping[str, float]],
        evaluate: Callable[[], Mapping[str, float]],
    ):
        self.node, self.total = config["comm"], config["max_steps"]
        self.config, self.task, self.engine, self.clock = config, task, engine, clock
        self.batch, self.hyper, self.evaluate = batch, hyper, evaluate
        self.replay = {one["step"]: one for one in recorded(config["decisions"])} if config["decisions"] else None
        self.past: list[dict[str, Any]] = []
        self.points: list[Point] = []
        self.until: int | None = 0
        self.asking: Generator[Any, Any, None] | None = None  # the policy, once it has been asked

    def restore(self, past: Sequence[dict[str, Any]]) -> None:
        """Go on from a checkpoint's decisions."""
        self.past = list(past)
        if self.past:
            last = self.past[-1]
            self.points = [Point(**point) for one in self.past for point in one["points"]]
            self.until = None if last["steps"] is None else last["step"] + last["steps"]
            self.engine.use(last["mode"])

    def before(self, step: int) -> Decided | None:
        """Decide, where the time has come; None where it has not."""
        if step != self.until:
            return None
        began, seen = self.clock.settle(), len(self.points)
        if self.replay is not None:
            if step not in self.replay:
                raise UserError(f"decisions=: none for step {step}; they are of a run with another policy or length")
            one = self.replay[step]
            commit = Commit(one["mode"], one["steps"], one["why"])
        else:
            commit = self._ask(step)
        self.engine.use(commit.mode)
        with self.clock.paused("compile"):
            self.engine.warm(self.batch(step), range(step, self._end(step, commit.steps)), self.hyper[step])
        self.until = None if commit.steps is None else step + commit.steps
        new = [asdict(point) for point in self.points[seen:]]
        self.past.append({"step": step, "mode": commit.mode, "steps": commit.steps, "points": new})
        now = self.clock.settle()
        return Decided(step, commit.mode, commit.steps, commit.why, now - began, now, self.replay is not None)

    def _end(self, step: int, steps: int | None) -> int:
        return self.total if steps is None else min(step + steps, self.total)

    def _ask(self, step: int) -> Commit:
        """Put the policy's questions to the engine until it decides."""
        policy = load.common(self.node["policy"]["module"])
        options = load.arguments(self.node["policy"])
        arrays, skeleton = self.engine.snapshot()
        before = {name: value.copy() for name, value in arrays.items()}, skeleton
        self.points.append(self._point(step))
        state = Situation(step, self.total, list(self.points), self._best())
        asking, answer = self.asking, state
        if asking is None:
            kinds, answer = sorted(set(self.engine.kinds.values())), None
            self.asking = asking = policy.decide(list(self.node["candidates"]), kinds, state, **options)
        while True:
            request = self.engine.ranks.tell(asking.send(answer))  # rank 0 decides for all
            if isinstance(request, Commit):
                return request
            answer = self.engine.ranks.tell(self._tried(request, step, before))

    @functools.cached_property
    def _model(self) -> Model:
        compiling = functools.partial(self.clock.paused, "compile")
        how = {"measure": self._measured, "paused": compiling, "settle": self.clock.settle}
        return Model(self.config, self.task, self.engine, **how)

    def _measured(self, request: Measure) -> float:
        self.engine.use(request.mode)
        with self.clock.paused("compile"):
            self.engine.exchange(request.kind)
        seconds = []
        for _ in range(request.repeats):
            began = self.clock.settle()
            self.engine.exchange(request.kind)
            seconds.append(self.clock.settle() - began)
        return self.engine.ranks.slowest(statistics.median(seconds))

    def _tried(self, request: Probe | Measure | Predict, step: int, before: Any) -> float | Predicted | Probed:
        if isinstance(request, Predict):
            return self._model.answer(request)
        if isinstance(request, Measure):
            return self._measured(request)
        self.engine.use(request.mode)
        steps = range(step, min(step + request.steps, self.total))
        with self.clock.paused("compile"):
            self.engine.warm(self.batch(step), steps, self.hyper[step])
        marks = {step + math.ceil(len(steps) * (part + 1) / request.scores) for part in range(request.scores)}
        points, spent = [], 0.0
        for number in steps:
            batch = self.batch(number)
            began = self.clock.settle()
            self.engine.step(number, batch, self.hyper[number])
            spent += self.clock.settle() - began
            if number + 1 in marks:
                points.append(self._point(number + 1))
        self.engine.restore(*before)
        return Probed(self.engine.ranks.slowest(spent / len(steps)), points)

    def _point(self, step: int) -> Point:
        """The last target's metric now, signed so that more is better."""
        target = self.task.targets[-1]
        value = float(self.evaluate()[target.metric])
        return Point(step, value if target.higher_is_better else -value)

    def _best(self) -> float:
        """Accuracies end at 1 or at 100 %; losses, signed, at 0."""
        target = self.task.targets[-1]
        if not target.higher_is_better:
            return 0.0
        return 1.0 if target.value <= 1 else 100.0
