"""Overrides that nobody should type: each is one line of error, and none trains."""

import itertools
from collections.abc import Iterator

import pytest

from suite.contract import UserError
from suite.settings.configure import resolve
from suite.settings.overrides import expand_sweep
from suite.settings.run import Run

TASK = "task=resnet50"
GROUPS = ("task", "optimizer", "comm", "schedule", "launch", "track", "tuning", "comm.codec", "comm.factors")
LEAVES = ("seed", "max_steps", "optimizer.lr", "task.batch_size", "schedule.warmup", "comm.bucket_mib", "world")
LEAVES += ("accumulate", "eval_every", "log_every", "prefetch")
NONSENSE = ("abc", "a b", "0x1", "1.5.2", "[1,2]", "{a: 1}", "null", "''", "true", "-1", "1e400", "nan")
TYPOS = (
    "sede",
    "max_step",
    "optimiser",
    "task.batchsize",
    "optimizer.learning_rate",
    "comm.bukcet_mib",
    "schedule.shap",
)


def malformed() -> Iterator[str]:
    """About three hundred, of every kind."""
    for key, plus in itertools.product(TYPOS, ("", "+", "++")):
        yield f"{plus}{key}=1"
    for key, value in itertools.product(LEAVES, NONSENSE):
        yield f"{key}={value}"
    for group, value in itertools.product(GROUPS, ("3", "null", "[1]", "abc", "{nonsense: 1}")):
        yield f"{group}={value}"
    for key in (*LEAVES, *GROUPS, "task.name", "optimizer.module", "scale", "backend"):
        yield f"~{key}"
        yield f"~{key}=1"
        yield f"{key}"
    for key, kind in itertools.product(
        ("seed", "optimizer.lr", "task"), ("glob(*)", "interval(0,1)", "choice()", "sort(")
    ):
        yield f"{key}={kind}"
    yield from (
        "optimizer.name=adamw",
        "task.name=x",
        "task.targets=[]",
        "task.targets=[a]",
        "seed=18446744073709551616",
    )
    yield from (
        "schedule.shape=round",
        "schedule.floor=-1",
        "task.data=nothing",
        "task.variant=v9",
        "task.blocks=4",
        "=1",
        "=",
    )
    yield from (
        "task.source.size=a",
        "task.source.sizes=1",
        "comm.codec.module=nowhere.codec",
        "optimizer.module=nowhere",
        "a b=1",
    )
    yield from (
        "comm.kinds.linear.codec=3",
        "comm.kinds.linear.nothing=1",
        "comm.candidates.x=1",
        "comm.policy=abc",
        "network=lan",
    )
    yield from (
        "partition=auto partition.stages=0",
        "threads=0",
        "threads=many",
        "require=all",
        "save=all",
        "resume=maybe",
        "--cfg=x",
    )


MALFORMED = list(dict.fromkeys(malformed()))


def answer(override: str) -> str:
    """The error; "" where the override makes a run."""
    try:
        for words in expand_sweep([TASK, *override.split(" ")] if " " in override else [TASK, override]):
            assert isinstance(resolve(words), Run)
    except UserError as error:
        return str(error)
    return ""


def check(overrides: list[str]) -> None:
    answers = {override: answer(override) for override in overrides}
    assert not {override: said for override, said in answers.items() if "\n" in said}
    assert not {override for override, said in answers.items() if not said}, "accepted"


@pytest.mark.quick
def test_malformed_overrides_are_one_line_of_error() -> None:
    check(MALFORMED[::12])


@pytest.mark.slow
def test_three_hundred_malformed_overrides() -> None:
    assert len(MALFORMED) >= 300
    check(MALFORMED)
