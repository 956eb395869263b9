"""A snapshot of several ranks and its restoring move nothing but checksums: each rank keeps what is its own."""

from pathlib import Path

import pool
import snapshots
from sampling import mostly_torch

SMALL = 512  # bytes: checksums of weights, names and sizes of files


@mostly_torch
def test_no_rank_receives_what_is_anothers(tmp_path: Path, backend: str) -> None:
    """Neither when a snapshot is taken and written, nor when it is read and restored; and each has something."""
    answers = pool.run(backend, 2, "snapshots.restore", tmp_path)
    for name, (_, _, words) in snapshots.CASES.items():
        told = [answer[name] for answer in answers]
        for one in told:
            assert one["moved"] < SMALL < one["own"], one
            assert one["ledger"] == [], "a snapshot is in the ledger"
            assert one["words"] == words
        assert told[0]["residuals"] != told[1]["residuals"], "both ranks have the same residuals"
        assert told[0]["names"] != told[1]["names"], "rank 1 writes what rank 0 does"


@mostly_torch
def test_only_rank_0_receives_rows_of_a_table_that_is_saved(tmp_path: Path, backend: str) -> None:
    """It receives one share at a time, of 7 rows over 3 ranks, and the file holds the table as the ranks do."""
    first, *others = pool.run(backend, 3, "snapshots.save", tmp_path)
    assert first["lengths"] == [3, 3, 1]
    assert others == [{"moved": 0, "lengths": []}] * 2
    assert [path.name for path in tmp_path.iterdir()] == ["weights.safetensors"]
