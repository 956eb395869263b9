"""Greedy and beam search in NumPy, over any function that scores the next word.

A search is handed `advance(state, rows, token, position)`, as `suite.contract.Generates` describes it: the state's rows
are taken, each reads its token at its position, and log-probabilities of the next word come back. A sentence's result
depends on that sentence alone: neither on the others in its batch nor on how a batch is shared out.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from suite.tasks.transformer.architecture import BOS, EOS, PAD

Advance = Callable[[Any, np.ndarray, np.ndarray, int], tuple[np.ndarray, Any]]


def length_penalty(length: int, alpha: float) -> float:
    """((5 + length) / 6)**alpha, by which a hypothesis' log-probability is divided (Wu et al. 2016, eq. 14)."""
    return ((5.0 + length) / 6.0) ** alpha


def greedy(state: Any, advance: Advance, *, sentences: int, length: int) -> np.ndarray:
    """The most probable next word, again and again.

    Args:
        state: what the model knows of the sources.
        advance: reads one token a row.
        sentences: rows of the state.
        length: most words to write, the end included.

    Returns:
        Words (sentences, length) int32, without the start, closed by EOS where it came in time, then PAD.
    """
    written = np.full((sentences, length), PAD, np.int32)
    rows, token, ended = np.arange(sentences), np.full(sentences, BOS), np.zeros(sentences, bool)
    for position in range(length):
        scores, state = advance(state, rows, token, position)
        token = np.where(ended, PAD, scores.argmax(1))
        written[:, position] = token
        ended |= token == EOS
        if ended.all():
            break
    return written


def beam(state: Any, advance: Advance, *, sentences: int, length: int, width: int, alpha: float) -> np.ndarray:
    """The best of several hypotheses kept side by side.

    In each step every live hypothesis is extended by every word, and the best 2·width extensions are looked at: those
    among the first `width` that end are set aside, and the first `width` that do not end live on. A sentence is done
    when `width` hypotheses of it have ended, or at `length`. The answer is the one of highest log-probability divided
    by `length_penalty`, the end counted as a word; where none has ended, the most probable live one. T2T's beam search
    differs in when it stops: it goes on until no live hypothesis can overtake. With width 1 this is `greedy`.

    Args:
        state: what the model knows of the sources.
        advance: reads one token a row; rows are sentences times width, a sentence's own side by side.
        sentences: rows of the state.
        length: most words to write, the end included.
        width: hypotheses kept.
        alpha: exponent of the length penalty; 0 compares log-probabilities as they are.

    Returns:
        Words (sentences, length) int32, as from `greedy`.
    """
    each = np.arange(sentences)[:, None]
    words = np.full((sentences, width, length), PAD, np.int32)
    total = np.where(np.arange(width) == 0, 0.0, -np.inf) + np.zeros((sentences, 1))  # all start alike: one is enough
    best, best_score = np.full((sentences, length), PAD, np.int32), np.full(sentences, -np.inf)
    count = np.zeros(sentences, int)  # hypotheses that have ended
    rows, token = np.repeat(np.arange(sentences), width), np.full(sentences * width, BOS)
    for position in range(length):
        scores, state = advance(state, rows, token, position)
        vocabulary = scores.shape[1]
        extended = (total[..., None] + scores.reshape(sentences, width, vocabulary)).reshape(sentences, -1)
        first = _top(extended, 2 * width)  # at most `width` of them end, so `width` live on
        value, parent, word = extended[each, first], first // vocabulary, first % vocabulary
        ends = (word == EOS) & (value > -np.inf)

        candidate = ends & (np.arange(2 * width) < width) & (count < width)[:, None]
        final = np.where(candidate, value / length_penalty(position + 1, alpha), -np.inf)
        chosen = final.argmax(1)
        better = final.max(1) > best_score
        best[better] = words[better, parent[better, chosen[better]]]
        best[better, position] = EOS
        best_score = np.maximum(best_score, final.max(1))
        count += candidate.sum(1)

        lives = np.argsort(ends, 1, kind="stable")[:, :width]
        total, parent = value[each, lives], parent[each, lives]
        words = words[each, parent]
        words[:, :, position] = word[each, lives]
        if (count >= width).all():
            break
        rows, token = (each * width + parent).ravel(), words[:, :, position].ravel()
    return np.where((count > 0)[:, None], best, words[:, 0])


def _top(values: np.ndarray, count: int) -> np.ndarray:
    """Columns of the `count` largest values of each row, largest first, the earlier column first among equals."""
    some = np.sort(np.argpartition(-values, count - 1, axis=1)[:, :count], 1)
    order = np.argsort(-np.take_along_axis(values, some, 1), 1, kind="stable")
    return np.take_along_axis(some, order, 1)
