"""What a run needs to know is found out once in the process that launches it."""

import json
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import yaml
from tiny_runs import CONF, Call

from suite import published
from suite.launch import checks, job
from suite.record import dependencies, environment
from suite.settings import effects
from suite.training import weights

RUN = (*CONF, "+task=tiny", "max_steps=2", "eval_every=2")
QUESTIONS: tuple[Callable[..., Any], ...] = (
    job.make_task,
    job.count_processes,
    job.count_threads,
    job.make_header,
    checks.check_run,
    checks.check_memory,
    effects.hash_run,
    environment.capture_environment,
    environment.list_changes,
    dependencies.hash_data,
    weights.initialize_from,
    weights.identify_weights,
    published.find_rows,
)


@pytest.mark.parametrize("world", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_each_question_is_asked_once(suite: Call, store: Path, world: int) -> None:
    """Of a run with initial weights and MLflow that is resumed although its environment has changed."""
    names = {question.__code__: question.__name__ for question in QUESTIONS}
    asked: Counter[str] = Counter()

    def count(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code in names:
            asked[names[frame.f_code]] += 1

    words = (*RUN, f"world={world}", "run_dir=here", "init_from=first", "resume=anyway")
    assert suite(*RUN, "track=none", "save=final", "run_dir=first")[0] == 0
    assert suite(*words, "track=none")[0] == 0
    Path("here/result.json").unlink()
    header = json.loads(Path("here/header.json").read_text())
    header["environment"]["python"], header["fingerprint"] = "3.0", "another"
    Path("here/header.json").write_text(json.dumps(header))
    sys.setprofile(count)
    try:
        code, said = suite(*words)
    finally:
        sys.setprofile(None)
    assert code == 0 and "although this has changed: python" in said, said
    result = json.loads(Path("here/result.json").read_text())
    assert result["spec"]["config"] == yaml.safe_load(Path("here/config.yaml").read_text()), "it names the last command"
    assert asked == dict.fromkeys(names.values(), 1)
