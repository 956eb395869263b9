"""Greedy and beam search in NumPy, over any function that scores the next word.

A search calls `advance(state, rows, token, position)` (see `suite.contract.Generates`): it selects rows of the state,
lets each read its token at the position, and returns log-probabilities of the next word. The result of a sentence
depends only on that sentence, not on its batch.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from suite.tasks.transformer.architecture import BOS, EOS, PAD

Advance = Callable[[Any, np.ndarray, np.ndarray, int], tuple[np.ndarray, Any]]


def length_penalty(length: int, alpha: float) -> float:
    """((5 + length) / 6)**alpha, by which a hypothesis' log-probability is divided (Wu et al. 2016, eq. 14)."""
    return ((5.0 + length) / 6.0) ** alpha


def greedy_search(state: Any, advance: Advance, *, sentences: int, length: int) -> np.ndarray:
    """Greedy search: take the most probable next word in each step.

    Args:
        state: the model's state after reading the sources.
        advance: reads one token per row.
        sentences: number of rows of the state.
        length: most words of a translation, including the end.

    Returns:
        Words (sentences, length) int32, without the start, ended by EOS if it was reached, then PAD.
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


def beam_search(state: Any, advance: Advance, *, sentences: int, length: int, width: int, alpha: float) -> np.ndarray:
    """Beam search.

    In each step, every live hypothesis is extended by every word, and the best 2·width extensions are considered. Those
    that end, among the first `width`, are finished; the first `width` that do not end stay live. A sentence is complete
    when `width` of its hypotheses have finished, or at `length`. The result is the finished hypothesis with the highest
    log-probability divided by `length_penalty`, where the end counts as a word; without a finished one, the most
    probable live one. T2T's beam search instead continues until no live hypothesis can overtake the finished ones. With
    width 1 this is `greedy_search`.

    Args:
        state: the model's state after reading the sources.
        advance: reads one token per row; the rows are sentences times width, with a sentence's hypotheses adjacent.
        sentences: number of sentences.
        length: most words of a translation, including the end.
        width: number of live hypotheses.
        alpha: exponent of the length penalty; 0 compares the log-probabilities.

    Returns:
        Words (sentences, length) int32, as from `greedy_search`.
    """
    sentence = np.arange(sentences)[:, None]
    words = np.full((sentences, width, length), PAD, np.int32)
    total = np.where(np.arange(width) == 0, 0.0, -np.inf) + np.zeros(
        (sentences, 1)
    )  # all hypotheses are equal at the start, so one is enough
    best, best_score = np.full((sentences, length), PAD, np.int32), np.full(sentences, -np.inf)
    count = np.zeros(sentences, int)  # hypotheses that have ended
    rows, token = np.repeat(np.arange(sentences), width), np.full(sentences * width, BOS)
    for position in range(length):
        scores, state = advance(state, rows, token, position)
        vocabulary = scores.shape[1]
        extended = (total[..., None] + scores.reshape(sentences, width, vocabulary)).reshape(sentences, -1)
        first = _top(extended, 2 * width)  # at most `width` of them end, so `width` stay live
        value, parent, word = extended[sentence, first], first // vocabulary, first % vocabulary
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
        total, parent = value[sentence, lives], parent[sentence, lives]
        words = words[sentence, parent]
        words[:, :, position] = word[sentence, lives]
        if (count >= width).all():
            break
        rows, token = (sentence * width + parent).ravel(), words[:, :, position].ravel()
    return np.where((count > 0)[:, None], best, words[:, 0])


def _top(values: np.ndarray, count: int) -> np.ndarray:
    """Columns of the `count` largest values of each row, largest first, the earlier column first among equals."""
    largest = np.sort(np.argpartition(-values, count - 1, axis=1)[:, :count], 1)
    order = np.argsort(-np.take_along_axis(values, largest, 1), 1, kind="stable")
    return np.take_along_axis(largest, order, 1)
