"""Runs a policy, which chooses the communication mode during training.

A policy (`suite.comm.policies`) requests trials. The engine executes them and is restored afterwards. The policy runs
on rank 0, which broadcasts requests and decisions. Decisions are events of the run: a restored run continues with them,
and `decisions=RESULT` replays those of another run without trials.
"""

import functools
import math
import statistics
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, JsonValue, NonNegativeInt, PositiveInt, TypeAdapter

from suite import disk
from suite.comm.policies._policy import Commit, Measure, Point, Predict, Predicted, Probe, Probed, Situation
from suite.contract import Batch, Decided, Engine, Snapshot, Task, UserError
from suite.projection.predict import Model
from suite.record import record
from suite.settings.run import Run
from suite.training.checkpoint import Past, Score
from suite.training.clock import Clock

Answer = Situation | Predicted | Probed | float | None  # to a policy; None before its first request


def read_decisions(path: str) -> "list[Decision]":
    """Read the decisions of a `result.json` or an `events.jsonl`.

    Args:
        path: the file, as in `decisions=`.

    Raises:
        UserError: the file cannot be read or has no decisions.
    """
    try:
        if path.endswith(".jsonl"):
            decisions = [event for event in record.read_events(Path(path)) if event["event"] == "decided"]
        else:
            decisions = disk.read_json(Path(path))["decisions"]
        return TypeAdapter(list[Decision]).validate_python(decisions)
    except (KeyError, TypeError, ValueError) as error:
        cause = " ".join(str(error).split())
        raise UserError(f"decisions={path}: no record of decisions ({cause}); name a result.json") from error


class Decision(BaseModel):
    """Part of a recorded decision that is repeated."""

    model_config = ConfigDict(strict=True, extra="ignore")

    step: NonNegativeInt
    mode: str | dict[str, str]
    steps: PositiveInt | None
    why: dict[str, JsonValue]


class Adaptation:
    """Chooses the communication mode before some of the steps.

    Args:
        run: the run.
        task: the task; the metric of its last target scores the trials.
        engine: one backend's engine.
        clock: the training clock, which bills the trials.
        batch: makes a training batch from its number.
        hyper: hyper-parameters by step.
        evaluate: computes the validation split's metrics at the engine's current state, and whether its outputs are
            finite.
    """

    def __init__(
        self,
        run: Run,
        task: Task,
        engine: Engine,
        clock: Clock,
        *,
        batch: Callable[[int], Batch],
        hyper: Sequence[Mapping[str, float]],
        evaluate: Callable[[], tuple[Mapping[str, float | None], bool]],
    ):
        self.node, self.total = run.comm, run.max_steps
        self.run, self.task, self.engine, self.clock = run, task, engine, clock
        self.batch, self.hyper, self.evaluate = batch, hyper, evaluate
        decisions = read_decisions(run.decisions) if run.decisions else None
        self.replay = None if decisions is None else {decision.step: decision for decision in decisions}
        self.past: list[Past] = []
        self.points: list[Point] = []
        self.until: int | None = 0
        # the policy, after the first decision began
        self.asking: Generator[Commit | Measure | Predict | Probe, Answer, None] | None = None

    def restore(self, past: Sequence[Past]) -> None:
        """Continue with the decisions of a checkpoint."""
        self.past = list(past)
        if self.past:
            last = self.past[-1]
            self.points = [Point(**point) for decision in self.past for point in decision["points"]]
            self.until = None if last["steps"] is None else last["step"] + last["steps"]
            self.engine.use(last["mode"])

    def before(self, step: int) -> Decided | None:
        """Decide before update `step` (from 0) if a decision is due, else return None.

        Raises:
            UserError: the replayed run has no decision for this step.
        """
        if step != self.until:
            return None
        began, seen = self.clock.settle(), len(self.points)
        if self.replay is not None:
            if step not in self.replay:
                raise UserError(f"decisions=: none for step {step}; they are of a run with another policy or length")
            decision = self.replay[step]
            commit = Commit(decision.mode, decision.steps, decision.why)
        else:
            commit = self._ask(step)
        self.engine.use(commit.mode)
        with self.clock.paused("compile"):
            self.engine.warm(self.batch(step), range(step, self._end(step, commit.steps)), self.hyper[step])
        self.until = None if commit.steps is None else step + commit.steps
        new = [Score(step=point.step, score=point.score) for point in self.points[seen:]]
        self.past.append({"step": step, "mode": commit.mode, "steps": commit.steps, "points": new})
        now = self.clock.settle()
        return Decided(step, commit.mode, commit.steps, commit.why, now - began, now, self.replay is not None)

    def _end(self, step: int, steps: int | None) -> int:
        return self.total if steps is None else min(step + steps, self.total)

    def _ask(self, step: int) -> Commit:
        """Execute the policy's requests until it decides."""
        assert self.node.policy
        policy, options = self.node.policy.member, self.node.policy.options()
        arrays, skeleton = self.engine.snapshot()
        before = {name: value.copy() for name, value in arrays.items()}, skeleton
        self.points.append(self._point(step))
        state = Situation(step, self.total, list(self.points), self._best())
        asking = self.asking
        answer: Answer = state
        if asking is None:
            kinds, answer = sorted(set(self.engine.kinds.values())), None
            self.asking = asking = policy.decide(list(self.node.candidates), kinds, state, **options)
        while True:
            request = self.engine.ranks.broadcast(asking.send(answer))  # rank 0 decides for all
            if isinstance(request, Commit):
                return request
            answer = self.engine.ranks.broadcast(self._execute(request, step, before))

    @functools.cached_property
    def _model(self) -> Model:
        compiling = functools.partial(self.clock.paused, "compile")
        settle = self.clock.settle
        return Model(self.run, self.task, self.engine, measure=self._measured, paused=compiling, settle=settle)

    def _measured(self, request: Measure) -> float:
        self.engine.use(request.mode)
        with self.clock.paused("compile"):
            self.engine.exchange(request.kind)
        seconds: list[float] = []
        for _ in range(request.repeats):
            began = self.clock.settle()
            self.engine.exchange(request.kind)
            seconds.append(self.clock.settle() - began)
        return self.engine.ranks.slowest(statistics.median(seconds))

    def _execute(self, request: Probe | Measure | Predict, step: int, before: Snapshot) -> float | Predicted | Probed:
        if isinstance(request, Predict):
            return self._model.answer(request)
        if isinstance(request, Measure):
            return self._measured(request)
        self.engine.use(request.mode)
        steps = range(step, min(step + request.steps, self.total))
        with self.clock.paused("compile"):
            self.engine.warm(self.batch(step), steps, self.hyper[step])
        marks = {step + math.ceil(len(steps) * (part + 1) / request.scores) for part in range(request.scores)}
        points: list[Point] = []
        spent = 0.0
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
        """Return the current value of the last target's metric, negated if lower is better; -inf for a diverged model.

        Raises:
            UserError: the validation split does not define it.
        """
        target = self.task.targets[-1]
        metrics, finite = self.evaluate()
        if not finite:
            return Point(step, -math.inf)
        value = metrics[target.metric]
        if value is None:
            raise UserError(
                f"{target.metric} is undefined on the validation split, so that communication modes cannot be compared "
                "by it; choose one, as in comm=float32"
            )
        return Point(step, value if target.higher_is_better else -value)

    def _best(self) -> float:
        """Return the best possible value: 1 or 100 for accuracies, 0 for negated losses."""
        target = self.task.targets[-1]
        if not target.higher_is_better:
            return 0.0
        return 1.0 if target.value <= 1 else 100.0
