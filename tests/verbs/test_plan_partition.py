"""`suite plan` with partition=: the picture, and RaNNC's rules."""

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import conftest
import pytest
from small import SMALL_BERT

from suite.contract import UserError
from suite.settings import configure

DOCS = conftest.TESTS.parent / "docs"
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
        configure.reject_unread(configure.resolve(typed), typed)


def test_a_run_by_the_corrected_rules_is_not() -> None:
    typed = [*WORDS[:-1]]
    configure.reject_unread(configure.resolve(typed), typed)


def test_the_picture_of_the_page_is_what_its_command_draws(suite: Call) -> None:
    [words] = re.findall(
        r"^\$ suite (plan .* --picture partition\.svg)$", (DOCS / "partition.md").read_text(), re.MULTILINE
    )
    code, text = suite(*shlex.split(words))
    assert code in (0, 1), text
    drawn = Path("partition.svg").read_text()
    assert drawn == (DOCS / "images" / "partition.svg").read_text()
    assert 'class="again"' in drawn and "stage 3" in drawn


def test_a_picture_needs_stages(suite: Call) -> None:
    code, text = suite("plan", "+task=bert", "optimizer=lamb", "--picture", "plan.svg")
    assert code == 2 and "--picture: without partition= there are no stages to draw" in text
    assert not Path("plan.svg").exists()


def test_a_picture_that_cannot_be_written_is_named(suite: Call) -> None:
    code, text = suite("plan", *WORDS, "--picture", "nowhere/plan.svg")
    assert code == 2 and "nowhere/plan.svg" in text
