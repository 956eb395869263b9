"""Preparing Criteo's lines as arrays, beside reading them field by field."""

import time
from pathlib import Path
from typing import Any

import pytest
from click_lines import draw_lines, read_plainly

from suite.tasks.dlrm import criteo

from .measure import ONCE, check_limit, interleaved, ratio

pytestmark = pytest.mark.bench
ROUNDS, LINES, WORDS = 5, 1000 if ONCE else 50_000, 20_000


@pytest.mark.parametrize("hash_rows, least", [(1000, 2.5), (0, 2.5)])
def test_preparing_clicks(hash_rows: int, least: float, tmp_path: Path, benchmark: Any, capsys: Any) -> None:
    """Plain reading checks and writes nothing, so the ratio is smaller than with these."""
    (tmp_path / "raw").mkdir()
    for name, lines in (("train", LINES), ("valid", 1)):
        (tmp_path / "raw" / f"{name}.txt").write_text("\n".join(draw_lines(lines, WORDS)))
    train = tmp_path / "raw" / "train.txt"
    made = iter(range(ROUNDS + 2))
    calls = {
        "plain": lambda: read_plainly(train.read_text().splitlines(), [{} for _ in range(26)], hash_rows),
        "suite": lambda: criteo.prepare(tmp_path / "raw", tmp_path / str(next(made)), hash_rows=hash_rows),
    }
    seconds = interleaved(calls, ROUNDS, clock=time.process_time)
    found = ratio(seconds, "plain", "suite")
    benchmark.pedantic(calls["plain"], rounds=1)
    benchmark.extra_info |= {"ratio": found["median"]}
    with capsys.disabled():
        print(f"\nhash_rows={hash_rows}: {found['median']:.1f} x ({found['least']:.1f} to {found['most']:.1f})")
    check_limit(found["median"] >= least, found)
