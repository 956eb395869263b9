"""Checksums of exchanges: one changed bit changes a row's sum, whatever its type, in torch and in jax."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from suite import engine
from suite.comm.transport import jax as jax_transport
from suite.comm.transport.torch_checksums import Checksums, word_sums

KINDS = {"uint8": (np.uint8, 13), "float16": (np.float16, 7), "int32": (np.int32, 5), "float64": (np.float64, 3)}


@pytest.mark.parametrize("kind", KINDS)
def test_every_single_bit_counts(kind: str) -> None:
    dtype, count = KINDS[kind]
    rows = np.arange(2 * count).astype(dtype).reshape(2, count)
    flipped = []
    for bit in range(rows[0].nbytes * 8):
        row = rows.copy()
        row[0].view(np.uint8)[bit // 8] ^= 1 << bit % 8
        flipped.append(row)
    torch_sums = [word_sums(torch.from_numpy(row)).tolist() for row in (rows, *flipped)]
    with jax.enable_x64(True):
        sums = jax.jit(jax_transport.word_sums)
        jax_sums = [np.asarray(sums(jnp.asarray(row))).tolist() for row in (rows, *flipped)]
    for (right, other), *wrong in (torch_sums, jax_sums):
        assert all(first != right and second == other for first, second in wrong)


def test_rows_at_odd_places_and_empty_rows() -> None:
    whole = torch.arange(40, dtype=torch.uint8)
    assert word_sums(whole[3:35].view(2, 16)).tolist() == word_sums(whole[3:35].clone().view(2, 16)).tolist()
    for count in range(1, 30):  # rows shorter than a word, and one row, whose stride torch may choose
        for rank_count in (1, 2, 3):
            rows = torch.arange(rank_count * count, dtype=torch.uint8).view(rank_count, count)
            parts = [word_sums(row[None]).item() for row in rows]
            assert word_sums(rows).tolist() == parts == [word_sums(row.clone()[None]).item() for row in rows]
    column = torch.arange(6, dtype=torch.float32).view(2, 3)[:, :1]
    assert word_sums(column).tolist() == word_sums(column.clone()).tolist()
    sums = Checksums(2)
    sums.send([0, 1], torch.empty(2, 0))
    assert sums.numbers() == [[0, 0], [0, 0]]


def test_the_pair_of_ranks_is_named() -> None:
    sent = np.arange(9).reshape(3, 3)
    engine.compare_exchanges(sent, sent.T)
    received = sent.T.copy()
    received[2, 0] += 1
    with pytest.raises(engine.RanksDiffer, match="rank 2 received different bytes from rank 0 than rank 0 sent"):
        engine.compare_exchanges(sent, received)
