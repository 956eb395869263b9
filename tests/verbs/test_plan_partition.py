"""`suite plan` with partition=: RaNNC's rules."""

import json
from collections.abc import Callable

import pytest
from small import SMALL_BERT

from suite.contract import UserError
from suite.settings import configure, validation

Call = Callable[..., tuple[int, str]]
BERT = ("+task=bert", *(f"task.{word}" for word in SMALL_BERT))
WORDS = (*BERT, "optimizer=lamb", "partition=v100", "partition.stages=2", "world=2", "network=100gbit")


def test_a_plan_by_rannc_s_rules(suite: Call) -> None:
    code, text = suite("plan", *WORDS, "partition.rannc_compat=true")
    assert code == 0 and "by RaNNC's rules" in text and "schedule gpipe" in text
    code, text = suite("plan", *WORDS, "partition.rannc_compat=true", "--json")
    stages = json.loads(text)["partition"]["stages"]
    assert len(stages) == 2 and all(stage["recompute"] for stage in stages)


def test_a_run_by_rannc_s_rules_is_rejected() -> None:
    typed = [*WORDS[:-1], "partition.rannc_compat=true"]
    with pytest.raises(UserError, match=r"partition\.rannc_compat=true: .* only `suite plan` reads this setting"):
        validation.reject_unread(configure.compose(typed), typed)


def test_a_run_by_the_corrected_rules_is_not() -> None:
    typed = [*WORDS[:-1]]
    validation.reject_unread(configure.compose(typed), typed)
