"""Time that the leaderboard takes for many results: `pytest tests/bench/test_board.py -m bench -s`."""

import json
import time
from pathlib import Path

import pytest
from boards import rank, result

from suite.board.site import pages
from suite.entries import intake

from .measure import ONCE, check_limit

RESULTS, LIMIT = 500 if ONCE else 10_000, 20.0  # seconds on an idle core
TASKS = ("autoencoder", "bert", "caffenet", "cifar10", "dlrm", "frnn", "resnet50", "transformer")


def many(count: int) -> list[dict]:
    """Results of eight tasks, in two frameworks and four communication modes, with curves of 32 evaluations."""
    results = []
    for index in range(count):
        seed, rest = index % 5, index // 5
        step = 100 + 37 * rest % 150 + 3 * seed
        some = result(seed=seed, optimizer=f"method{rest // 8 % 12}", lr=0.01 * (rest // 96 % 8), step=step)
        curve = [
            {"step": 10 * k, "train_seconds": 20.0 * k, "metrics": {"top1": min(85.0, 850.0 * k / step), "loss": 1 / k}}
            for k in range(1, 33)
        ]
        spec = some["spec"] | {"task": TASKS[rest % 8], "backend": ("torch", "jax")[rest // 768 % 2]}
        spec["comm"] = ("float32", "fp8", "onebit", "table1")[rest // 1536 % 4]
        task = spec["config"]["task"] | {"name": TASKS[rest % 8]}
        config = spec["config"] | {"task": task, "max_steps": 1000 + rest // 6144}
        results.append(some | {"spec": spec | {"config": config}, "curve": curve})
    return results


@pytest.mark.bench
def test_ten_thousand_results_make_a_site_in_less_than_the_limit(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    for index, some in enumerate(many(RESULTS)):
        (tmp_path / "runs" / f"{index}.json").write_text(json.dumps(some))
    start = time.process_time()
    results, left_out = intake.read_results(sorted((tmp_path / "runs").iterdir()))
    read = time.process_time() - start
    board = rank(results)
    ranked = time.process_time() - start
    written = pages.render_pages(board, [], tmp_path / "site")
    spent = time.process_time() - start
    print(f"\nread {read:.1f} s, ranked {ranked - read:.1f} s, written {spent - ranked:.1f} s; {len(written)} pages")
    assert not left_out and len(results) == RESULTS
    assert max(path.stat().st_size for path in written) <= 500_000
    check_limit(spent < LIMIT)
